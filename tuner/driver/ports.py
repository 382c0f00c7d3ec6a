"""The three ports of a shell: inbound (events), journal (commits) and groups (where segments run).

A shell owns a core. It passes each event to the core, lets the journal commit the outcome, and then carries out the core's
actions with the groups. Before the commit, no rank gets an answer and no action is carried out. `tuner.driver.loop` is the
real-time shell, with the groups and the journal of `tuner.hosts.driven`; `tuner.driver.virtual_loop` is the
virtual-time shell. `tests/driver/test_contract.py` tests both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from tuner.domain.batch import Batch
from tuner.domain.events import Event, Reported
from tuner.domain.segments import CheckpointInfo, Interruption, Outcome, SegmentRef, Verdict
from tuner.domain.trial import Population
from tuner.search.base import Searcher, Suggestion


class Inbound(Protocol):
    """The port through which a shell gets events. It handles the events of one segment in the order in which they are put."""

    def put(self, event: Event) -> Awaitable[Verdict | None]:
        """Take an event. Return a future that is done once the event is committed, and that need not be awaited."""

    async def report(self, events: Sequence[Reported]) -> Verdict | None:
        """Commit reports of one segment, in order. Return the verdict if the ranks wait at the last report, else None."""


class Journal(Protocol):
    """Makes batches durable. The shell is its only writer."""

    async def commit(self, batch: Batch) -> Collection[str]:
        """Write the whole batch, or nothing. Raise LostLease if another driver has taken over the experiment.

        Return the ids in `batch.deletes` that users have pinned. From then on, the others can no longer be pinned.

        Until this returns, the core does not change the objects in the batch, so another thread may read them.
        """


class Groups(Protocol):
    """Runs segments. Its methods may be called concurrently."""

    async def run(self, segment: SegmentRef, milestone: int | None) -> Outcome:
        """Run a segment to its end, and put its reports into the inbound port.

        After a verdict other than "continue", and after an interrupt, the outcome is "left".

        milestone: the report_no of the first report at which the ranks wait for a verdict; None if they never wait.
        """

    async def upload_end(self, segment: SegmentRef, info: CheckpointInfo) -> CheckpointInfo | str:
        """Wait until an upload that `Outcome.uploading` names has ended. Return the checkpoint, or why it is lost."""

    async def interrupt(self, segment: SegmentRef, why: Interruption) -> None:
        """Make a segment's ranks ask for a verdict soon, or exit; if `why` is "kill", kill them immediately.

        If the segment has ended already, a "kill" aborts its uploads, and anything else does nothing.
        """

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        """Delete the content of a checkpoint. Do nothing if it does not exist."""

    async def offload(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a pure function without blocking the shell, and return its value."""

    async def suggest(self, searcher: Searcher, number: int, trials: Population) -> Suggestion | None:
        """Return a slow searcher's suggestion for trial `number`, without blocking the shell."""

    async def judge(self, number: int, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        """Return the answers of the user's stop functions for a trial with these metrics, in the form of `StopJudged`."""


class CallsHere:
    """The methods of `Groups` that call functions, for a shell that calls every function in this process."""

    async def offload(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    async def suggest(self, searcher: Searcher, number: int, trials: Population) -> Suggestion | None:
        return searcher.suggest(number, trials)

    async def judge(self, number: int, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        return []  # stop functions are called in this process
