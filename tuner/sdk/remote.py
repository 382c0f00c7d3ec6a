"""Run a search on a service and follow it from this process: `tuner.run(..., address="http://host:8000")`."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tuner.client.records import experiment_record, stream_item, trial_record
from tuner.client.synchronous import Client, ExperimentHandle
from tuner.domain.states import ExperimentState
from tuner.driver.assemble import Parts
from tuner.errors import Conflict, Retryable, ServiceError, SpecError
from tuner.experiment.code import by_value
from tuner.sdk.callbacks.observers import observing
from tuner.sdk.live.interrupts import Interrupts
from tuner.sdk.live.progress import Progress, Warned
from tuner.sdk.result import Result, without_result
from tuner.settings import Settings
from tuner.space import Space
from tuner.store.records import CodeRecord, ExperimentRecord, StreamItem, TrialRecord
from tuner.usercode import archives

POLL_S = 0.5
PATIENCE_S = 2.0
"""The timeout of one progress request, in seconds. After it, the display says that the service does not answer."""


def run_on(
    address: str | Client,
    data: Mapping[str, Any],
    code: CodeRecord,
    space: Space,
    parts: Parts,
    verbose: int,
    callbacks: Sequence[Any] = (),
) -> Result:
    """Create the experiment on a service, show its progress until it has ended or is paused, and return its result.

    The user's own modules that the function imports are sent too; installed packages are not.

    Raises:
        SpecError: something cannot be sent to a service, or the service refuses the spec.
        ServiceUnreachable: no service answers at the address.
        NotAllowed: the token is missing or not valid, or its role does not allow creating experiments.
    """
    spec = _sendable(data, code, parts)
    entrypoint = data.get("entrypoint")
    files = archives.local_modules(code.blob, [entrypoint.partition(":")[0]] if entrypoint is not None else [])

    def begin(client: Client) -> tuple[ExperimentHandle, int]:
        own = {"bundle": client.upload_code(files)} if files else {}
        return client.create({**spec, **own}), -1

    return _begun(address, begin, space, verbose, callbacks)


def _begun(
    address: str | Client,
    begin: Callable[[Client], tuple[ExperimentHandle, int]],
    space: Space | None,
    verbose: int,
    callbacks: Sequence[Any],
) -> Result:
    """Start trials on a service by calling `begin`, follow the experiment to its end, and return its result.

    `begin` returns a handle of the experiment, and the experiment's last_event_seq before the trials were started.
    """
    with ExitStack() as stack:
        client = address if isinstance(address, Client) else stack.enter_context(Client(address))
        looks = stack.enter_context(client.with_patience(PATIENCE_S))
        interrupts = stack.enter_context(Interrupts(lambda name: None, ending=()))
        handle, before = begin(client)
        with interrupts.heard():
            found = _follow(handle, looks.experiment(handle.id), before, interrupts, space, verbose, callbacks)
    return found.with_more(functools.partial(_add, address, handle.id, space, callbacks))


def _add(
    address: str | Client,
    experiment_id: str,
    space: Space | None,
    callbacks: Sequence[Any],
    num_samples: int | None,
    verbose: int,
) -> Result:
    """Run more trials of an experiment on a service."""

    def begin(client: Client) -> tuple[ExperimentHandle, int]:
        handle = client.experiment(experiment_id)
        if handle.get().state in (ExperimentState.PAUSING, ExperimentState.PAUSED):
            handle.resume()  # comes first, so that the search is not paused any more when it is told of more trials
        return handle, handle.continue_(num_samples).last_event_seq

    return _begun(address, begin, space, verbose, callbacks)


def _follow(
    handle: ExperimentHandle,
    looks: ExperimentHandle,
    before: int,
    interrupts: Interrupts,
    space: Space | None,
    verbose: int,
    callbacks: Sequence[Any],
) -> Result:
    """Show the progress of an experiment until it has ended or is paused, and return its result.

    The first Ctrl-C pauses the experiment. A second one ends this call, but not the experiment.

    looks: a handle of the same experiment with a short timeout.
    before: the last_event_seq before the service acted. An end that is logged up to this entry belongs to an earlier run.
    """
    with (
        Progress(_Served(looks), show=verbose > 0, reopens=before >= 0) as progress,
        observing(callbacks, ServedLog(looks), handle.id, Settings.from_env().home, progress.say),
    ):
        progress.say(f"{handle.id} runs at {handle.client.address}")
        while not _is_over(looks, before):
            progress.update()
            if interrupts.news:
                interrupts.news = ""
                progress.say(
                    "pausing: every trial stops at its next report; press Ctrl-C again to leave this to the service"
                )
                try:
                    handle.pause()
                except Conflict as error:  # it is being cancelled, or has just ended
                    progress.say(str(error))
            if interrupts.count > 1:
                raise KeyboardInterrupt
            time.sleep(POLL_S)
    result = handle.result(space)
    if result.state == "paused":
        progress.say(f"paused; continue with: TUNER_ADDRESS={handle.client.address} tuner resume {handle.id}")
    if not verbose and (why := without_result(result)):
        progress.say(why)
    return result


def _is_over(handle: ExperimentHandle, before: int) -> bool:
    """Return True if the experiment has ended or was paused since `before`, False if the service cannot be reached."""
    try:
        found = handle.get()
    except ServiceError as error:
        if not isinstance(error, Retryable):
            raise
        return False
    return found.last_event_seq > before and (found.state.ended or found.state is ExperimentState.PAUSED)


def _sendable(data: Mapping[str, Any], code: CodeRecord, parts: Parts) -> dict[str, Any]:
    """Return the spec, with its function, in the form that the service accepts."""
    if code.space_blob is not None:
        raise SpecError(
            "it has choices or functions that are Python objects, which cannot be sent to a service: use "
            "numbers, strings and lists, and look up the objects in the training function",
            "/space",
        )
    names = {"scheduler": "scheduler", "searcher": "search_alg", "stopper": "stop"}
    own = [name for part, name in names.items() if _is_own(data["search" if part == "searcher" else name])]
    if own or code.parts_blob is not None:
        raise SpecError(
            "it is an object from your own code, which cannot be sent to a service: use one of tuner's, or run the "
            "search without address",
            f"/{(own or ['scheduler'])[0]}",
        )
    sent = {name: value for name, value in data.items() if value is not None}
    return sent if data.get("entrypoint") is not None else {**sent, "function": by_value.written(code)}


def _is_own(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "python"


class ServedLog:
    """A service as a source of the log that callbacks observe."""

    def __init__(self, handle: ExperimentHandle) -> None:
        self._handle = handle

    def experiment(self) -> ExperimentRecord:
        return experiment_record(self._handle.get())

    def space_blob(self, experiment: ExperimentRecord) -> None:
        return None

    def entries(self, after: int, limit: int) -> Sequence[StreamItem]:
        last = self._handle.get().last_event_seq
        found: list[StreamItem] = []
        if last > after:
            for data in self._handle.events(after):
                if data["kind"] != "experiment":
                    found.append(stream_item(data))
                if data["seq"] >= last or len(found) >= limit:
                    break
        return found


class _Served:
    """A service as a source of progress."""

    def __init__(self, handle: ExperimentHandle) -> None:
        self._handle = handle

    def experiment(self) -> ExperimentRecord:
        return experiment_record(self._handle.get())

    def warnings(self, after: int) -> Sequence[Warned]:
        new = itertools.takewhile(lambda note: note.seq > after, self._handle.decisions(kind="note"))
        return [note for note in new if note.payload.get("warning")][::-1]

    def trials(self, state: str, count: int) -> Sequence[TrialRecord]:
        return [trial_record(trial) for trial in self._handle.trials(state=state, limit=count)]

    def newest(self, count: int) -> Sequence[TrialRecord]:
        found = [trial_record(trial) for trial in self._handle.trials(sort="-number", limit=count)]
        return found[::-1]
