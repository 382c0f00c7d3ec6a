"""Training code in the form of a class, with one step per report, and methods that save and load its state.

class Digits:
    def setup(self, config): ...          # initializes a new object; an exploit creates a new one too
    def step(self) -> dict: ...           # the metrics of one report; {"done": True} among them ends the trial
    def save(self, folder: str): ...      # optional, with load; without them, a resumed trial starts from the beginning
    def load(self, folder: str): ...
    def cleanup(self): ...                # optional; also called when the trial is stopped

`ray.tune.Trainable` classes work unchanged. Every rank has its own object and calls all its methods. The checkpoint consists
of the files that rank 0 saves. If the class has ``save_on_every_rank = True``, it consists of the files of all ranks, which
must then have different names.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tuner.errors import EntrypointError, OutsideTrial, WrongArgument
from tuner.trials.compat import ray_compat
from tuner.trials.training import session


class Steps(Protocol):
    """An object that trains step by step, created from a class for one segment. saves: whether it can save checkpoints."""

    saves: bool

    def step(self) -> Mapping[str, Any]:
        """Run one step and return the metrics of its report."""

    def save(self, folder: str) -> None:
        """Write a checkpoint to an empty directory."""

    def load(self, folder: str, iteration: int) -> None:
        """Restore a checkpoint from a directory that `save` has filled. iteration: the number of steps before that save."""

    def close(self) -> None:
        """Clean up, no matter how the trial has ended."""


@dataclass(frozen=True)
class ClassForm:
    """A class with `setup` and `step`, as a training function. `objects` are passed to `setup` as keyword arguments."""

    cls: type
    objects: Mapping[str, Any] = field(default_factory=dict)

    @property
    def __name__(self) -> str:
        return self.cls.__name__

    @property
    def inner(self) -> type:
        return self.cls

    def __call__(self, config: dict[str, Any]) -> None:
        here = session.current()
        if here is None:
            raise OutsideTrial(f"{self.cls.__name__} works only inside a trial: pass it to tuner.run")
        steps = self._create(config, here)
        try:
            if here.checkpoint is not None:
                with here.checkpoint.as_directory() as folder:
                    steps.load(folder, here.context.start_iteration)
            self._run(steps, here)
            here.finish()  # may save the object, so `close` comes later
        finally:
            steps.close()

    def _create(self, config: dict[str, Any], here: session.Session) -> Steps:
        if is_ray_trainable(self.cls):
            return ray_compat.RayTrainable(self.cls, config, self.objects, ray_compat.Trial(here))
        return _Own(self.cls, config, self.objects)

    def _run(self, steps: Steps, here: session.Session) -> None:
        keeps = here.context.world_rank == 0 or getattr(self.cls, "save_on_every_rank", False)

        def save(folder: str) -> None:
            steps.save(folder)
            if not keeps:  # `save` was called anyway, because it may communicate with the other ranks
                for entry in os.scandir(folder):
                    shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)

        while True:
            metrics = dict(steps.step())
            done = bool(metrics.pop("done", False))  # a comparison of NumPy or torch values does not return a bool
            asked = bool(metrics.pop("should_checkpoint", False))
            report = here.report_last if done else here.report
            if not steps.saves:
                report(metrics)
            elif asked:
                with tempfile.TemporaryDirectory(prefix="tuner-step-") as folder:
                    save(folder)
                    report(metrics, checkpoint=folder)
            else:
                report(metrics, checkpoint=save)
            if done:
                return


class _Own:
    def __init__(self, cls: type, config: dict[str, Any], objects: Mapping[str, Any]) -> None:
        self._object: Any = cls()
        self._object.setup(config, **objects)
        self.saves = hasattr(self._object, "save")

    def step(self) -> Mapping[str, Any]:
        metrics: Any = self._object.step()
        if not isinstance(metrics, Mapping):
            raise WrongArgument(f"{type(self._object).__name__}.step() must return a dict of metrics, not {metrics!r}")
        return metrics

    def save(self, folder: str) -> None:
        self._object.save(folder)

    def load(self, folder: str, iteration: int) -> None:
        if not hasattr(self._object, "load"):
            raise EntrypointError(
                f"{type(self._object).__name__} has no load(folder), so its trials cannot be paused or continue from a checkpoint"
            )
        self._object.load(folder)

    def close(self) -> None:
        if hasattr(self._object, "cleanup"):
            self._object.cleanup()


def is_ray_trainable(cls: type) -> bool:
    return any(base.__name__ == "Trainable" and base.__module__.startswith("ray.tune.") for base in cls.__mro__)
