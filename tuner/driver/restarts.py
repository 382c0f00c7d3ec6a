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
"""The number of restarts while the number of events doubles. Each takes as long as the search so far, without its training."""


def with_restarts(core: Core, again: Callable[[], Core]) -> Core:
    """Return `core`, changed so that it raises RestartError if a restart of its driver would change its decisions.

    Before many of its events, build another core from the log so far, as a new driver does. It must have the same
    state of the scheduler, and must make the same decisions about the event.

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
    """Fold the log into another core, and return it. Its ranks wait at the reports that they were told before the restart."""
    for seq, entry in log:
        other.fold(seq, copy.deepcopy(entry))
    live, folded = repr(core.scheduler.state), repr(other.scheduler.state)
    if live != folded:
        raise RestartError(
            f"after a restart behind {len(log)} log entries, the scheduler has another state: before {_around(live, folded)}, "
            f"after {_around(folded, live)}. Change the state only in `record` and `enacted`, and keep nothing else"
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
        f"after a restart before event {count}, {event}, the decisions are others: without the restart {live}, with it "
        f"{folded}. `decide`, `choose` and `milestone` may read only the state, the context, and the trials"
    )


def _around(text: str, other: str) -> str:
    """Return the place where a text first differs from another one."""
    at = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    return f"{'...' if at > 60 else ''}{text[max(0, at - 60) : at + 60]}{'...' if len(text) > at + 60 else ''}"
