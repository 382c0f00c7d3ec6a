"""Check that a search makes the same decisions after a restart of its driver."""

from __future__ import annotations

import copy
from collections.abc import Callable

from tuner.domain import events as e
from tuner.domain.batch import Entry
from tuner.domain.events import Event
from tuner.driver.core import Core, Effects
from tuner.errors import RestartError

PER_DOUBLING = 16
"""The number of restarts to check each time the number of events doubles. Each repeats all decisions of the search so far."""


def with_restarts(core: Core, again: Callable[[], Core]) -> Core:
    """Return `core`, changed so that it raises RestartError if a restart of its driver would change its decisions.

    Before many of its events, build another core from the log so far, as a new driver does. The scheduler of that core must have
    the same state, and that core must make the same decisions about the event.

    again: returns a new core for the same experiment.
    """
    handle, log, count = core.handle, list[Entry](), 0

    def checked(event: Event) -> Effects:
        nonlocal count
        count += 1
        due = count % max(1, count // PER_DOUBLING) == 0 and not isinstance(event, e.DriverStarted | e.Suggested)
        rebuilt = _rebuilt(core, again(), log) if due else None
        out = handle(event)
        if rebuilt is not None:
            _compare(
                [entry for _, entry in out.log[1:]], [entry for _, entry in rebuilt.handle(event).log[1:]], count, event
            )
        log.extend(out.log)
        return out

    core.handle = checked  # type: ignore[method-assign]
    return core


def _rebuilt(core: Core, other: Core, log: list[Entry]) -> Core:
    """Fold the log into another core, and return it. Its segments have the same next milestones as those of `core`."""
    for seq, entry in log:
        other.fold(seq, copy.deepcopy(entry))
    live, folded = repr(core.scheduler.state), repr(other.scheduler.state)
    if live != folded:
        entries = "1 log entry" if len(log) == 1 else f"{len(log)} log entries"
        raise RestartError(
            f"a restart after {entries} changes the scheduler's state from {_around(live, folded)} "
            f"to {_around(folded, live)}. Change the state only in `record` and `enacted`, and keep nothing else"
        )
    for trial in other.trials:
        if trial.segments:
            segment, told = trial.segments[-1], core.trials[trial.number].segments[-1]
            segment.milestone, segment.decide_at = told.milestone, told.decide_at
    return other


def _compare(live: list[object], folded: list[object], count: int, event: Event) -> None:
    if live == folded:
        return
    raise RestartError(
        f"a restart before event {count}, {event}, changes the decisions: they are {live} without the restart, and {folded} "
        f"with it. `decide`, `choose` and `milestone` may read only the state, the context, and the trials"
    )


def _around(text: str, other: str) -> str:
    """Return the place where a text first differs from another one."""
    at = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    return f"{'...' if at > 60 else ''}{text[max(0, at - 60) : at + 60]}{'...' if len(text) > at + 60 else ''}"
