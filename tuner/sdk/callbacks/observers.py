"""Read the log of a search and call callbacks with its entries. Each callback has its own thread.

A thread reads a limited number of entries at a time. The log is durable, so a slow callback falls behind but misses nothing. The
position of each callback in the log is stored in a file in the home.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tuner.domain.keys import trial_id
from tuner.domain.thinned import why_thinned
from tuner.domain.trial import drawn_as
from tuner.errors import SpecError, text_of
from tuner.experiment.code.by_value import runnable_space
from tuner.sdk.callbacks.base import Callback, ObservedTrial
from tuner.sdk.callbacks.files import OWN
from tuner.sdk.trial_result import renamed
from tuner.space import Space
from tuner.store import Store
from tuner.store.records import ExperimentRecord

LIMIT = 500
"""The maximum number of log entries that a thread holds in memory."""
POLL_S = 0.3
SAVE_EVERY_S = 1.0
PATIENCE_S = 30.0
"""The time that `tuner.run` waits at the end for callbacks that have fallen behind, in seconds."""
SETUP_S = 120.0
"""The further time that it waits for a callback that is still in `setup`, such as one that loads a large library, in seconds."""
TOLD = 5
"""The number of errors of each callback that are logged with their tracebacks. Further errors are only counted."""

log = logging.getLogger("tuner.callbacks")


class Entry(Protocol):
    """An entry of a log."""

    @property
    def seq(self) -> int: ...
    @property
    def event(self) -> str: ...
    @property
    def time(self) -> float: ...
    @property
    def trial(self) -> int | None: ...
    @property
    def data(self) -> Mapping[str, Any]: ...


class LogSource(Protocol):
    """A source of one experiment's log. It may be read from several threads."""

    def experiment(self) -> ExperimentRecord:
        """Return the experiment as it is now."""

    def space_blob(self, experiment: ExperimentRecord) -> bytes | None:
        """Return the pickled Python objects of the space. None if it has none, or if this process cannot use them."""

    def entries(self, after: int, limit: int) -> Sequence[Entry]:
        """Return the next entries after this event_seq, in order. The result is empty if no new entry was committed."""


class StoredLog:
    """A log in a database."""

    def __init__(self, store: Store, experiment_id: str) -> None:
        self._store, self._experiment_id = store, experiment_id
        self._id = store.experiments.get(experiment_id).id

    def experiment(self) -> ExperimentRecord:
        return self._store.experiments.get(self._experiment_id)

    def space_blob(self, experiment: ExperimentRecord) -> bytes | None:
        code = self._store.code.get(experiment.code_hash) if experiment.code_hash is not None else None
        return runnable_space(code)

    def entries(self, after: int, limit: int) -> Sequence[Entry]:
        return self._store.log.events_after(self._id, after, limit)


class Call(NamedTuple):
    """A call to a callback's method: the method's name and arguments."""

    method: str
    keywords: dict[str, Any]


class Reader:
    """Turns log entries into calls. Callbacks see trials as they were at the last entry that was read.

    Args:
        experiment: the experiment.
        space_blob: the pickled Python objects of its spaces. They must come from a trusted source.
    """

    def __init__(self, experiment: ExperimentRecord, space_blob: bytes | None = None) -> None:
        self._id, self._seed = experiment.public_id, experiment.spec.seed
        self._blob = space_blob
        self._spaces = [self._space(each) for each in (*experiment.spec.former_spaces, experiment.spec.space)]
        self._revision = 0  # the revision of the space at the last entry that was read
        self.trials: dict[int, ObservedTrial] = {}
        # the same trials; all calls share this list, since a copy for each takes long
        self.all: list[ObservedTrial] = []
        self._drawn_as: dict[int, int] = {}  # trial -> the number by which functions of `sample_from` draw for it
        self._begun: dict[int, int] = {}  # trial -> the last of its segments that has begun
        self._thinned = experiment.thinned_at is not None

    def read(self, entry: Entry) -> Iterator[Call]:
        """Yield the calls that an entry causes."""
        data = entry.data
        if entry.event == "amended" and "former_spaces" in data["changes"]:
            self._revision = len(data["changes"]["former_spaces"])
            if self._revision == len(self._spaces):  # the space was changed after this reader was created
                self._spaces.append(self._space(data["changes"]["space"]))
        if entry.event == "decision" and data["kind"] == "start":
            number = data["payload"]["number"]
            self.trials[number] = ObservedTrial(
                number=number, trial_id=trial_id(self._id, number), experiment_id=self._id, config={}, params={},
                reason=data["reason"],
            )  # fmt: skip
            self.all.append(self.trials[number])
            self._drawn_as[number] = drawn_as(data["payload"].get("tags", {}), number)
            self._configure(self.trials[number], data["payload"]["params"] or {}, data["payload"].get("space_revision"))
        trial = self.trials.get(entry.trial) if entry.trial is not None else None
        if trial is None:
            return
        about: dict[str, Any] = {"trial": trial, "trials": self.all, "event_seq": entry.seq}
        about["timestamp"] = entry.time
        about["iteration"] = trial.last_result.get("training_iteration", 0)
        match entry.event:
            case "decision":
                yield from self._decided(trial, data["kind"], data["reason"], data["payload"], about)
            case "segment_started":
                yield from self._begins(trial, data["segment"], about)
            case "drawn":
                self._configure(trial, {**trial.params, data["name"]: data["value"]})
            case "reported" if not data["metrics"] and self._thinned:
                pass  # the points of the report were deleted
            case "reported":
                iteration = data["iteration"]
                trial.last_result = {
                    **renamed(data["metrics"], OWN), "training_iteration": iteration, "timestamp": entry.time,
                    "trial_id": trial.trial_id, "config": trial.config,
                }  # fmt: skip
                # The first report of a segment can come before the event that says that all ranks have started.
                yield from self._begins(trial, data["segment"], about)
                yield Call("on_trial_result", {**about, "iteration": iteration, "result": dict(trial.last_result)})
                # The files of a checkpoint that is not ready are still being written; `checkpoint_saved` will follow.
                if data["checkpoint"] and data["checkpoint"].get("ready", True):
                    yield self._saved(trial, data["checkpoint"], about)
            case "checkpoint_saved":
                yield self._saved(trial, data["checkpoint"], about)
            case "segment_ended":
                trial.error = (data["failure"] or {}).get("message") or trial.error

    def _space(self, json: Mapping[str, Any]) -> Space:
        try:
            return Space.from_json(json, self._blob, opaque=self._blob is None)
        except SpecError:  # this process cannot import the code of the objects
            self._blob = None
            return Space.from_json(json, opaque=True)

    def _begins(self, trial: ObservedTrial, segment: int, about: dict[str, Any]) -> Iterator[Call]:
        """Yield the call for the start of a segment, unless the segment has begun already."""
        before = self._begun.get(trial.number)
        if segment == before:
            return
        self._begun[trial.number] = segment
        trial.status, trial.error = "running", None
        yield Call("on_trial_start" if before is None else "on_trial_restore", about)

    def _decided(
        self, trial: ObservedTrial, kind: str, reason: str, payload: Mapping[str, Any], about: dict[str, Any]
    ) -> Iterator[Call]:
        ends = {"complete": "completed", "stop": "stopped", "cancel": "cancelled"}
        if kind != "note":
            trial.reason = reason
        if kind in ends:
            trial.status = ends[kind]
            yield Call("on_trial_complete", about)
        elif kind == "fail":
            trial.status, trial.error = "failed", trial.error or reason
            yield Call("on_trial_error", about)
        elif kind == "retry":
            yield Call("on_trial_recover", about)
        elif kind == "exploit":
            self._configure(trial, payload["params"], payload.get("space_revision"))
        elif kind == "pause":
            trial.status = "paused"

    def _configure(self, trial: ObservedTrial, params: Mapping[str, Any], revision: int | None = None) -> None:
        space = self._spaces[self._revision if revision is None else revision]
        trial.params = dict(space.readable(params))
        own = {name: value for name, value in params.items() if name not in space}
        trial.config = dict(trial.params)
        with contextlib.suppress(SpecError):  # parameters are missing
            trial.config = own | space.config_without_functions(params)
        if self._blob is not None:  # otherwise only the training processes have the functions of the space
            with contextlib.suppress(SpecError):  # parameters are missing, or a function fails
                trial.config = own | space.config(params, self._seed, self._drawn_as[trial.number])

    def _saved(self, trial: ObservedTrial, checkpoint: Mapping[str, Any], about: dict[str, Any]) -> Call:
        trial.checkpoint = dict(checkpoint)
        return Call("on_checkpoint", {**about, "checkpoint": trial.checkpoint})


class Observer:
    """The thread of one callback."""

    def __init__(self, callback: Any, name: str, source: LogSource, folder: Path) -> None:
        self.callback, self.name = callback, name
        self.error = ""  # the first error
        self.errors = 0
        self.is_set_up = False
        self._source, self._folder = source, folder
        self._file = folder / f"{name}.json"
        kept: dict[str, int] = {}
        if self._file.exists():
            try:
                kept = json.loads(self._file.read_text(encoding="utf-8"))
            except ValueError:  # it is empty, as after a loss of power
                log.warning("callback %s: %s cannot be read, so it is told the whole log again", name, self._file)
        self.seq, self._ended_at = int(kept.get("seq", 0)), int(kept.get("ended_at", 0))
        self._accepts: dict[str, frozenset[str] | None] = {}
        self._last = threading.Event()  # the search has ended: read to the end and stop
        self._stop = threading.Event()  # stop as soon as possible
        self._saved_at = 0.0
        self.thread = threading.Thread(target=self._main, name=f"tuner-callback-{name}", daemon=True)

    def read_to_the_end(self) -> None:
        """Make the thread exit once it has read all entries that are now in the log."""
        self._last.set()

    def stop(self) -> None:
        """Make the thread exit after the call that it is in."""
        self._stop.set()

    def joined(self, deadline: float | None) -> bool:
        """Wait until the thread has ended or the deadline has passed. Return True if the thread has ended."""
        self.thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not self.thread.is_alive()

    def _main(self) -> None:
        try:
            self._observe()
        except BaseException as error:  # an observer's failure must not affect the search
            self._note("reading the log", error)

    def _observe(self) -> None:
        experiment = self._source.experiment()
        reader = Reader(experiment, self._source.space_blob(experiment))
        if experiment.thinned_at is not None:
            why = why_thinned(experiment.thinned_at, "a callback for every report")
            log.warning("%s: %s; callbacks get the reports that are left", experiment.public_id, why)
        at = 0
        # Entries that the callback received before a resume.
        while at < self.seq and (known := self._source.entries(at, LIMIT)):
            for entry in known:
                if entry.seq <= self.seq:
                    for _ in reader.read(entry):
                        pass
                at = entry.seq
        objective = experiment.spec.objective
        ready = self._call(
            "setup",
            {
                "name": experiment.name, "experiment_id": experiment.public_id, "metric": objective.metric,
                "mode": objective.mode, "folder": str(self._folder), "stop": None, "num_samples": experiment.spec.num_samples,
                "total_num_samples": experiment.spec.num_samples,
            },
        )  # fmt: skip
        self.is_set_up = True
        if not ready:  # the other methods would fail, too
            return
        try:
            self._follow(reader)
        finally:
            self._save()
            self._call("close", {})

    def _follow(self, reader: Reader) -> None:
        while not self._stop.is_set():
            # Read this first, so that the code below sees all entries that were committed before.
            last = self._last.is_set()
            try:
                found = self._source.entries(self.seq, LIMIT)
                experiment = None if found else self._source.experiment()
            except Exception as error:  # the database or the service is unreachable
                self._note("reading the log", error)
                if last:
                    return
                self._stop.wait(POLL_S * 10)
                continue
            for entry in found:
                if self._stop.is_set():
                    return
                for call in reader.read(entry):
                    self._call(*call)
                self.seq = entry.seq
                if time.monotonic() - self._saved_at > SAVE_EVERY_S:
                    self._save()
            if experiment is None or experiment.last_event_seq > self.seq:
                continue
            if experiment.state.ended and self.seq > self._ended_at:
                self._call("on_experiment_end", {"trials": reader.all, "event_seq": self.seq})
                self._ended_at = self.seq
                self._save()
            if last:
                return
            self._last.wait(POLL_S)

    def _call(self, method: str, keywords: Mapping[str, Any]) -> bool:
        """Call the callback's method with this name, if it has one. Return False if the method fails."""
        function = getattr(self.callback, method, None)
        if function is None:
            return True
        try:
            if method not in self._accepts:
                self._accepts[method] = _parameters(function)
            accepted = self._accepts[method]
            function(**{name: value for name, value in keywords.items() if accepted is None or name in accepted})
        except BaseException as error:
            self._note(method, error)
            return False
        return True

    def _note(self, what: str, error: BaseException) -> None:
        self.error = self.error or f"{what}: {type(error).__name__}: {text_of(error)}"
        self.errors += 1
        if self.errors <= TOLD:
            log.warning("callback %s: %s failed; the search continues", self.name, what, exc_info=error)

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        temporary = self._file.with_suffix(".new")
        try:
            temporary.write_text(json.dumps({"seq": self.seq, "ended_at": self._ended_at}), encoding="utf-8")
            os.replace(temporary, self._file)
        except OSError as error:  # the disk is full, for example; the callback may still be called
            self._note("storing its position in the log", error)


def _parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the keyword arguments that a function accepts, or None if it accepts any."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


class Observers:
    """The callbacks of one search, while this process follows it."""

    def __init__(
        self, callbacks: Sequence[Any], source: LogSource, experiment_id: str, home: Path, say: Callable[[str], None]
    ) -> None:
        self._say, self._finished = say, False
        folder = home / "callbacks" / experiment_id
        if callbacks:
            folder.mkdir(parents=True, exist_ok=True)
        self._observers = [Observer(c, name, source, folder) for name, c in named(callbacks).items()]

    def __enter__(self) -> Observers:
        for observer in self._observers:
            observer.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._finished:
            self.finish(PATIENCE_S)

    def finish(self, patience_s: float | None) -> None:
        """Wait until all callbacks have read the whole log, or `patience_s` has passed. Print which failed or are behind."""
        deadline = None if patience_s is None else time.monotonic() + patience_s
        self._finished = True
        for observer in self._observers:
            observer.read_to_the_end()
        for observer in self._observers:
            joined = observer.joined(deadline)
            if not joined and not observer.is_set_up:
                self._say(f"waiting for callback {observer.name}, whose setup has not ended (at most {SETUP_S:.0f} s)")
                joined = observer.joined(time.monotonic() + SETUP_S)
            observer.stop()
            if not joined and not observer.is_set_up:
                self._say(f"the setup of callback {observer.name} has not ended; tuner.observe passes it the log")
            elif not joined:
                self._say(
                    f"callback {observer.name} has fallen behind, at log entry {observer.seq}; tuner.observe continues from there"
                )
            if observer.errors:
                more = f", and {observer.errors - 1} more" if observer.errors > 1 else ""
                self._say(f"callback {observer.name} failed in {observer.error}{more}")


def named(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Return a dict from name to callback. The name is the class name, with a number if several callbacks share it.

    After a resume, each callback's position in the log is found by this name.
    """
    found: dict[str, Any] = {}
    for callback in callbacks:
        kind = re.sub(r"\W+", "_", type(callback).__name__)
        name, count = kind, 1
        while name in found:
            count += 1
            name = f"{kind}-{count}"
        found[name] = callback
    return found


METHODS = [name for name in vars(Callback) if name.startswith("on_")]
"""The methods that are called for entries of the log."""


def checked(callbacks: Any) -> list[Any]:
    """Return the callbacks as a list.

    Raises:
        SpecError: an object has none of a callback's methods.
    """
    several = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks] if callbacks is not None else []
    for i, callback in enumerate(several):
        if isinstance(callback, type) or not any(hasattr(callback, name) for name in METHODS):
            raise SpecError(
                f"expected an object with a method such as on_trial_result, got {callback!r}", f"/callbacks/{i}"
            )
    return several


def never_called(kind: type) -> list[str]:
    """Return the methods of a user's class whose names look like those of a callback, although no callback has them.

    Names of other kinds are left alone: a callback may also be one of Lightning's, which has `on_train_start` and so on.
    """
    users = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in ("ray", "tuner")]
    own = {name for base in users for name in vars(base)}
    return sorted(
        name for name in own.difference(METHODS) if name.startswith(("on_trial_", "on_experiment_", "on_step_"))
    )


@contextlib.contextmanager
def observing(
    callbacks: Sequence[Any], source: LogSource, experiment_id: str, home: Path, say: Callable[[str], None]
) -> Iterator[None]:
    """Call callbacks while the block runs, and afterwards until they have read the whole log."""
    if not callbacks:
        yield
        return
    with Observers(callbacks, source, experiment_id, home, say):
        yield
