"""Blue/green rollouts: the old model answers until the new model is ready, and stays if the new model fails."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from tuner.errors import RolloutFailed
from tuner.serving.origin import Origin

log = logging.getLogger(__name__)

T = TypeVar("T")
DRAIN_S = 300.0
"""Seconds after which an old model is shut down even if it is still predicting."""
POLL_S = 0.05

Find = Callable[[], Origin]
"""A function that returns the current best checkpoint of the experiment."""


class Predictor(Protocol):
    """The interface of the class that a user writes to serve a model. `predict` may also be asynchronous."""

    def __init__(self, checkpoint: Any, config: dict[str, Any]) -> None: ...

    def predict(self, inputs: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Release:
    """A model that was rolled out. Versions count the deployment's releases from 1."""

    version: int
    origin: Origin
    made_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def info(self) -> dict[str, Any]:
        """Return the answer to `GET /info`."""
        return {"version": self.version, "made_at": self.made_at.isoformat(), **self.origin.facts()}


class Running(Protocol):
    """A model that is ready to predict."""

    release: Release

    async def predict(self, inputs: Any) -> Any: ...


class Stage(Protocol):
    """A place where models run: this process, or Ray Serve."""

    async def up(self, release: Release) -> Running:
        """Bring up a model and return it once it is ready. If the model fails, raise the error and leave nothing behind."""
        ...

    async def down(self, running: Running) -> None:
        """Shut down a model that gets no more inputs, after it has answered the inputs that it already has."""
        ...


class Rollouts:
    """Holds the model that answers, and replaces it with the next one."""

    def __init__(self, find: Find, stage: Stage, current: Running) -> None:
        self._find, self._stage = find, stage
        self.current = current
        self._newest = current.release.version  # failed releases count too, so that no version is used twice
        self._one_at_a_time = asyncio.Lock()
        self._in_flight: Counter[int] = Counter()  # version -> number of predictions in progress
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    async def start(cls, find: Find, stage: Stage) -> Rollouts:
        """Bring up the first model. If the model fails, raise its error."""
        found = await asyncio.to_thread(find)
        return cls(find, stage, await stage.up(Release(1, found)))

    def info(self) -> dict[str, Any]:
        return self.current.release.info()

    async def predict(self, inputs: Any) -> tuple[Any, int]:
        """Return the outputs, and the version of the model that computed them."""
        running = self.current
        version = running.release.version
        self._in_flight[version] += 1
        try:
            return await running.predict(inputs), version
        finally:
            self._in_flight[version] -= 1

    async def roll_out(self) -> dict[str, Any]:
        """Replace the current model if another checkpoint is now the best. Return `Release.info` and whether it was replaced.

        If the caller is cancelled, the rollout continues, because an unfinished rollout would leave a model behind.

        Raises:
            RolloutFailed: the best checkpoint cannot be found, or its model did not come up.
        """
        return await asyncio.shield(self._task(self._roll_out()))

    async def _roll_out(self) -> dict[str, Any]:
        async with self._one_at_a_time:
            old = self.current
            try:
                found = await asyncio.to_thread(self._find)
                if found.checkpoint.path == old.release.origin.checkpoint.path:
                    return {"changed": False, **self.info()}
                self._newest += 1
                self.current = await self._stage.up(Release(self._newest, found))
            except Exception as error:
                log.warning("the rollout failed; version %d still answers", old.release.version, exc_info=True)
                raise RolloutFailed(
                    f"version {old.release.version} still answers, since the new one failed: {type(error).__name__}: {error}"
                ) from error
            self._task(self._end(old))
            return {"changed": True, **self.info()}

    async def _end(self, old: Running) -> None:
        """Shut down a model that gets no more inputs, once it has answered the inputs that it already has."""
        version = old.release.version
        deadline = time.monotonic() + DRAIN_S
        while self._in_flight[version] and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
        await self._stage.down(old)
        if not self._in_flight[version]:
            del self._in_flight[version]

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that continues even if its caller is cancelled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the error is logged where it is raised, since the caller may be gone


class Model:
    """A user's predictor with the release that it was made from. Ray Serve runs one in each replica."""

    def __init__(self, release: Release, predictor: Callable[..., Any]) -> None:
        self.release = release
        self.predictor: Predictor = predictor(release.origin.checkpoint, dict(release.origin.config))

    async def predict(self, inputs: Any) -> Any:
        """Return the outputs as JSON values."""
        outputs = self.predictor.predict(inputs)
        return as_json(await outputs if inspect.isawaitable(outputs) else outputs)

    async def get_release(self) -> Release:
        return self.release


class InProcess:
    """Models in this process, without Ray. Each model gets one input at a time, in a thread."""

    def __init__(self, predictor: Callable[..., Any]) -> None:
        self._predictor = predictor

    async def up(self, release: Release) -> Running:
        return _InThread(await asyncio.to_thread(Model, release, self._predictor))

    async def down(self, running: Running) -> None:
        """Do nothing, because the model is freed after its last call."""


class _InThread:
    def __init__(self, model: Model) -> None:
        self.release = model.release
        self._model = model
        self._one_at_a_time = asyncio.Lock()

    async def predict(self, inputs: Any) -> Any:
        async with self._one_at_a_time:
            return await asyncio.to_thread(lambda: asyncio.run(self._model.predict(inputs)))


def as_json(value: Any) -> Any:
    """Convert tensors, NumPy arrays and NumPy numbers to lists and numbers.

    Raises:
        TypeError: the value contains an object that JSON cannot represent.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): as_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    if isinstance(value, str | int | float | bool | None):
        return value
    raise TypeError(f"predict returned a {type(value).__name__}, which JSON cannot represent")
