"""The session of a trial, and the functions that user code calls.

These functions are `report`, `get_checkpoint`, `get_context` and `should_checkpoint`.

There is one `Session` for each rank and segment. A milestone is the number of a report at which the ranks wait. Every
rank knows the next milestone before reaching it. So all ranks wait, continue and leave at the same report, without
communicating between milestones.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, NoReturn, Protocol

from tuner.domain.events import CheckpointInfo
from tuner.domain.experiment import Mode
from tuner.domain.segments import Report, Verdict
from tuner.errors import OutsideTrial
from tuner.trials.checkpoints.checkpoints import Checkpoint, Source
from tuner.trials.training import script_client
from tuner.trials.training.metrics import MetricWarnings, flatten, own_step


class LeaveTrial(BaseException):
    """Ends the training function at a report. It is a BaseException, so `except Exception` does not catch it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"{verdict.action}: {verdict.reason}" if verdict.reason else verdict.action)
        self.verdict = verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Information about the trial and the rank in this process, such as ids and the configuration."""

    experiment_id: str
    trial_id: str
    trial_number: int
    segment_id: str
    world_size: int
    world_rank: int
    local_rank: int
    local_world_size: int
    node_rank: int
    config: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    start_iteration: int = 0  # the training_iteration of the checkpoint from which this segment starts
    devices: tuple[int, ...] = ()  # this rank's CUDA devices, as indices into CUDA_VISIBLE_DEVICES
    resources: Mapping[str, float] = field(default_factory=dict)  # the resources of each rank, for example {"CPU": 1.0}
    log_file: str = ""
    trial_dir: str = ""  # this rank's own directory; the same for all segments of the trial on this node
    base_world_size: int | None = None  # the smallest number of ranks, if the trial is elastic
    keep_global_batch_size: bool = True  # see `scaling.keep_global_batch_size`

    def get_experiment_id(self) -> str:
        return self.experiment_id

    def get_experiment_name(self) -> str:
        """Return the id of the experiment, which is unique. The method is here because Ray's context has it too."""
        return self.experiment_id

    def get_trial_id(self) -> str:
        return self.trial_id

    def get_trial_resources(self) -> list[dict[str, float]]:
        """Return a list with the resources of each rank."""
        return [dict(self.resources) for _ in range(self.world_size)]

    def get_trial_name(self) -> str:
        return f"trial_{self.trial_number:05d}"

    def get_trial_number(self) -> int:
        return self.trial_number

    def get_world_size(self) -> int:
        return self.world_size

    def get_base_world_size(self) -> int:
        """Return the smallest number of ranks of an elastic trial, or the number of ranks if the trial is not elastic.

        The global batch size is the batch size of one rank's loader times this number, unless `keep_global_batch_size`
        is false.
        """
        return self.base_world_size or self.world_size

    def get_world_rank(self) -> int:
        return self.world_rank

    def get_local_rank(self) -> int:
        return self.local_rank

    def get_local_world_size(self) -> int:
        return self.local_world_size

    def get_node_rank(self) -> int:
        return self.node_rank

    def get_trial_dir(self) -> str:
        return self.trial_dir

    def get_seed(self) -> int:
        return self.seed

    def get_config(self) -> Mapping[str, Any]:
        return self.config


class Reports(Protocol):
    """Sends reports from rank 0 to the driver."""

    def put(self, message: Report) -> None:
        """Send a report in the background, and return at once."""

    def ask(self, message: Report) -> Verdict:
        """Send all reports up to this one, wait for the driver's verdict on it, and return the verdict."""


class Peers(Protocol):
    """The connection between the ranks of a worker group with several ranks."""

    def hand_out(self, report_no: int, verdict: Verdict) -> None:
        """Send the verdict on a report to all other ranks. Only rank 0 calls this."""

    def take(self, report_no: int) -> Verdict:
        """Wait until rank 0 sends the verdict on a report, and return it. Only the other ranks call this.

        If rank 0 has finished, return the verdict to continue.
        """

    def ended(self) -> None:
        """Tell the other ranks to stop waiting for verdicts, because rank 0's training function has returned."""

    def announce(self) -> None:
        """Tell the other ranks that rank 0 is making a report. Only rank 0 calls this."""

    def heard(self) -> Literal["report", "verdict", "ended"] | None:
        """Return the kind of rank 0's next message, or None if no message has arrived. Only the other ranks call this.

        A verdict is not removed: `take` returns it.
        """


class Saver(Protocol):
    """Saves the checkpoints of this rank."""

    def take(self, source: Source, report_no: int, iteration: int, *, at_end: bool = False) -> CheckpointInfo | None:
        """Move or copy the contents of a checkpoint, and let the background thread save it.

        On rank 0, return the description of the checkpoint; on other ranks, return None. at_end: True if the checkpoint
        was passed with an earlier report and is saved now because the training function has returned.
        """

    def passed(self, report_no: int) -> None:
        """Record that this rank has made this report without a checkpoint, so that rank 0 does not wait for one."""


class Watch(Protocol):
    """A check for a mistake in training code that raises no error by itself."""

    def check(self) -> str | None:
        """Check at a report whether the mistake was made.

        Return a message if the mistake was made, "" if it was not, and None if it is too early to tell.
        """


class Session:
    def __init__(
        self,
        context: Context,
        *,
        reports: Reports | None,
        peers: Peers | None,
        saver: Saver,
        checkpoint: Checkpoint | None = None,
        first_milestone: int | None = 1,
        checkpoint_every: int | None = None,
        milestone_checkpoints: bool = False,
        checkpoint_at_end: bool = False,
        objective: str | None = None,
        modes: Sequence[Mode] = (),
        watch: Watch | None = None,
    ) -> None:
        self.context = context
        self._pid = os.getpid()
        self.objective, self.modes = objective, modes
        self._metric_warnings = MetricWarnings(objective)
        self._watch = watch
        self.warning = ""  # messages about likely mistakes
        self._told_of_empty = False
        self._checkpoint, self._took_checkpoint = checkpoint, False
        self.restored = False  # whether a Lightning Trainer has restored the checkpoint
        self._reports = reports
        self._peers = peers
        self._saver = saver
        self._every = checkpoint_every
        self._at_milestones = milestone_checkpoints
        self._at_end = checkpoint_at_end
        # the newest callable that was passed as a checkpoint, until it is called
        self._pending: Callable[[str], Any] | None = None
        self._saved_at = 0
        self._offered = 0  # the number of the latest report with a callable as its checkpoint
        self._offers_every = 1  # the interval between the last two such reports

        self._reporting = threading.RLock()  # reports from several threads are made one after the other
        self._gate = threading.Condition()
        self._count = 0
        self._milestone = first_milestone
        self._holds: set[str] = set()  # interrupts whose milestone is not known yet
        self._released: set[str] = set()  # interrupts that are over
        self._interrupts: set[int] = set()  # the milestones that interrupts have set, in addition to `_milestone`
        self._answered = (0, False)  # the latest report about which should_checkpoint was asked, and its answer
        self._left: LeaveTrial | None = None
        self._unsaved: Verdict | None = None  # the verdict to leave at which the last checkpoint could not be saved
        self.on_leave: Callable[[Verdict], None] | None = None
        self._reported: set[str] = set()  # the names of all metrics so far
        self._last = False  # whether the training has ended, and its last report is being made
        self.as_value = False  # whether the only report is the return value of the training function
        self.waiting_for_verdict = False
        self.saving = False  # whether this rank is saving a checkpoint before it leaves
        self.progressed_at = time.monotonic()

    @property
    def count(self) -> int:
        return self._count

    @property
    def left(self) -> LeaveTrial | None:
        return self._left

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint to continue from, or None. Code that reads this property is assumed to load the checkpoint."""
        self._took_checkpoint = True
        return self._checkpoint

    def _ignores_checkpoint(self) -> bool:
        return self.context.world_rank == 0 and self._checkpoint is not None and not self._took_checkpoint

    def _warn(self, found: str) -> None:
        """Print a warning, and add it to `warning`, for the experiment's decision log. Do nothing if the warning is empty."""
        if found:
            self.warning = "; ".join(filter(None, (self.warning, found)))
            print(f"warning: {found}", file=sys.stderr)

    # -- called by user code

    def report(self, metrics: Mapping[str, Any], *, step: int | None = None, checkpoint: Source | None = None) -> None:
        if os.getpid() != self._pid:  # a fork shares the rank's connections, which would mix up what the two send
            raise _not_here("report")
        with self._reporting:
            self._report(metrics, step, checkpoint)

    def report_last(self, metrics: Mapping[str, Any], *, checkpoint: Source | None = None) -> None:
        """Make the trial's last report: what the training function has returned, or the report with which it ends."""
        self._last = True
        self.report(metrics, checkpoint=checkpoint)

    def _report(self, metrics: Mapping[str, Any], step: int | None, checkpoint: Source | None) -> None:
        if self._left is not None:
            raise self._left
        if self._unsaved is not None:  # the training function has caught the error, and has not ended
            self._leave(self._unsaved)
        step = own_step(step)
        values = flatten(metrics, self._metric_warnings) if self._reports is not None else {}
        self._reported |= values.keys()
        if self._watch is not None and (found := self._watch.check()) is not None:
            self._watch = None
            self._warn(found)
        if not self._count and self._ignores_checkpoint():
            self._warn(
                f"this segment starts from the checkpoint of iteration {self.context.start_iteration}, but its "
                "function has not loaded it before the first report, so it trains from the beginning again: call "
                "tuner.get_checkpoint() at its start, and load the checkpoint that it returns"
            )
        with self._gate:
            self._pass_gate()
            self._count = number = self._count + 1
            milestone = self._is_milestone(number)
        self.progressed_at = time.monotonic()

        info, failure = None, None
        try:
            if checkpoint is not None:
                info = self._save(checkpoint, number, self._due(number, milestone))
        except BaseException as error:
            if self.context.world_size == 1 or not isinstance(error, Exception):
                with self._gate:
                    self._count -= 1  # the report was not made, so the next one has its number
                raise
            failure = error  # the report is made without a checkpoint, so that all ranks still make the same reports
        if callable(checkpoint):
            self._offered, self._offers_every = number, number - self._offered
        if milestone:
            self._follow_verdict(number, self._verdict(number, values, step, info), failure)
        else:
            self._through_with(number)
            if self._reports is not None:
                self._reports.put(
                    Report(
                        report_no=number,
                        metrics=values,
                        time=time.monotonic(),
                        step=step,
                        checkpoint=info,
                        last=self._last,
                    )
                )
        if failure is not None:
            raise failure

    def ignore_result(self, result: Mapping[str, Any]) -> None:
        """Warn if the training function has returned metrics that it has never reported: they are lost."""
        found = [name for name, value in result.items() if not isinstance(value, bool) and isinstance(value, Real)]
        lost = [name for name in found if name not in self._reported]
        if lost and self.context.world_rank == 0:
            names = ", ".join(map(repr, lost[:5])) + ", ..." * (len(lost) > 5)
            self._warn(
                f"the training function has returned metrics that it has not reported, so they are not stored: {names}. Pass "
                "them to tuner.report before it returns"
            )

    def should_checkpoint(self) -> bool:
        """Return whether a checkpoint is due at the next `report`. All ranks get the same answer."""
        with self._gate:
            self._pass_gate()
            number = self._count + 1
            if self._answered[0] != number:
                self._answered = number, self._due(number, self._is_milestone(number))
            return self._answered[1]

    def finish(self) -> None:
        """End the session after the training function has returned.

        If the checkpoint policy calls for it, save the last state with the newest callable that was passed as a
        checkpoint. On rank 0, release the ranks that are still waiting because they make more reports than rank 0.
        """
        if self._reports is not None and self._peers is not None:
            self._peers.ended()
        if self._at_end and self._pending is not None and self._saved_at < self._count:
            self.saving = True
            self._save(self._pending, self._count, True, at_end=True)
        self._pending = None

    # -- for scripts that print their metrics: rank 0 makes a report for each line with metrics, and other ranks follow

    def announce(self) -> None:
        """Tell the other ranks that rank 0 is making a report, whether or not the ranks wait at this report."""
        if self._reports is not None and self._peers is not None:
            self._peers.announce()

    def heard(self) -> Literal["report", "verdict", "ended"] | None:
        """Return the kind of rank 0's next message, or None if no message has arrived.

        If a verdict arrives without an announcement, rank 0's script calls `tuner.report` instead of printing metrics.
        """
        return self._peers.heard() if self._peers is not None else None

    # -- called for the driver, from another thread

    def hold(self, interrupt: str) -> int:
        """Block the next report until `release` is called. interrupt: the id of the interrupt that blocks it.

        Return the number of the latest report that can no longer become a milestone on this rank. This is the latest report that
        has begun or, if `should_checkpoint` has already answered for the next report, the next report. The driver takes the
        largest number of all ranks. Every report after that one can become a milestone.

        The caller must release every rank. There is no time limit, because a rank that continued by itself could leave
        at a different report than the other ranks.
        """
        with self._gate:
            if interrupt not in self._released:  # the calls for one interrupt may arrive in the wrong order
                self._holds.add(interrupt)
            return max(self._count, self._answered[0])

    def release(self, interrupt: str, milestone: int | None) -> None:
        """Stop blocking reports for this interrupt, and set a milestone unless it is None. A second call does nothing.

        Several interrupts may set milestones at the same time. The ranks wait at each of them.
        """
        with self._gate:
            if interrupt in self._released:
                return
            self._released.add(interrupt)
            self._holds.discard(interrupt)
            if milestone is not None:
                self._interrupts.add(milestone)
            self._gate.notify_all()

    def _pass_gate(self) -> None:
        while self._holds:
            self._gate.wait()

    def _interrupted(self, number: int) -> bool:
        return any(number >= interrupt for interrupt in self._interrupts)

    def _is_milestone(self, number: int) -> bool:
        return (self._milestone is not None and number >= self._milestone) or self._interrupted(number)

    def _due(self, number: int, milestone: bool) -> bool:
        if self._every and number % self._every == 0:
            return True
        return milestone and (self._at_milestones or self._interrupted(number))

    def _through_with(self, number: int) -> None:
        if self._peers is not None and self._saved_at != number:
            self._saver.passed(number)

    def _save(self, source: Source, number: int, due: bool, at_end: bool = False) -> CheckpointInfo | None:
        if callable(source) and not due:
            self._pending = source
            return None
        self._pending = None
        info = self._saver.take(source, number, self.context.start_iteration + number, at_end=at_end)
        self._saved_at = number
        if info is not None and info.bytes == 0 and not self._told_of_empty:
            self._told_of_empty = True
            self._warn(
                f"the checkpoint of iteration {info.step} is empty, so nothing can be loaded from it: save the state to a file "
                "in the directory that the function gets"
            )
        return info

    def _verdict(self, number: int, values: dict[str, float], step: int | None, info: CheckpointInfo | None) -> Verdict:
        self.waiting_for_verdict = True
        try:
            if self._reports is None:
                assert self._peers is not None
                return self._peers.take(number)
            verdict = self._reports.ask(
                Report(
                    report_no=number,
                    metrics=values,
                    time=time.monotonic(),
                    step=step,
                    checkpoint=info,
                    waits=True,
                    last=self._last,
                    offer=self._next_offer(number),
                )
            )
            if self._peers is not None:
                self._peers.hand_out(number, verdict)
            return verdict
        finally:
            self.waiting_for_verdict = False
            self.progressed_at = time.monotonic()

    def _next_offer(self, number: int) -> int | None:
        """Predict the number of the next report whose checkpoint is a callable; None if there has been no such report.

        The interval between the last two such reports is assumed to stay the same.
        """
        if not self._offered:
            return None
        return number + self._offers_every - (number - self._offered) % self._offers_every

    def _follow_verdict(self, number: int, verdict: Verdict, failure: Exception | None) -> None:
        """Do what the driver wants. failure: the error of this report's checkpoint, which is raised before the rank leaves."""
        # This comes first, since training code may catch the error of a checkpoint. All ranks wait at the same reports.
        with self._gate:
            self._milestone = verdict.next_milestone
            self._interrupts = {interrupt for interrupt in self._interrupts if interrupt > number}
        if verdict.save_checkpoint and self._pending is not None and self._saved_at < number:
            leaves = self.saving = verdict.action != "continue"
            try:
                self._save(self._pending, number, True)
            except BaseException:
                self.saving, self._unsaved = False, verdict if leaves else None
                raise
        self._through_with(number)
        if verdict.action != "continue":
            if failure is not None:
                self._unsaved = verdict
                raise failure
            self._leave(verdict)

    def _leave(self, verdict: Verdict) -> NoReturn:
        self._left = LeaveTrial(verdict)
        if self.on_leave is not None:
            self.on_leave(verdict)
        raise self._left


_current: Session | None = None


def activate(session: Session | None) -> None:
    """Make `session` the session of this process. If it is None, leave the process without a session."""
    global _current
    _current = session


def current() -> Session | None:
    return _current


RANK_PROCESS = "_TUNER_RANK_PROCESS"
"""The name of an environment variable that is set in each rank's process, and so in all processes that it starts."""


@dataclass(slots=True)
class _Outside:
    """Prints reports when there is no trial, because a training function was called directly to debug it."""

    reports: int = 0
    odd: MetricWarnings = field(default_factory=MetricWarnings)

    def report(self, metrics: Mapping[str, Any], step: int | None) -> None:
        values, step = flatten(metrics, self.odd), own_step(step)
        self.reports += 1
        at = f" (step {step})" if step is not None else ""
        print(f"report {self.reports}{at}: " + " ".join(f"{name}={value:.6g}" for name, value in values.items()))


_outside = _Outside()


def _inside(name: str) -> Session | script_client.ScriptClient | None:
    """Return the session of this process or, in a script, the client. Return None if the process belongs to no trial.

    name: the public function that was called, for the error message.
    """
    if _current is None and (script := script_client.connected()) is not None:
        return script
    if _current is None and RANK_PROCESS in os.environ:
        raise _not_here(name)
    return _current


def _not_here(name: str) -> OutsideTrial:
    return OutsideTrial(
        f"tuner.{name}() was called in a child process of a trial, or after the trial had ended: call it in the training "
        "function itself"
    )


def report(metrics: Mapping[str, Any], *, step: int | None = None, checkpoint: Source | None = None) -> None:
    """Report metrics, and optionally a checkpoint. Every rank must call this the same number of times.

    The call returns at once, unless the report is one at which the scheduler decides. In that case, the call waits for
    the decision, which takes about a millisecond. If the trial must end, the call raises an exception that `except
    Exception` does not catch.

    Outside a trial, for example when you call your training function directly to debug it, the metrics are checked and
    printed in one line, and the checkpoint is ignored.

    Args:
        metrics: numbers by name. A name has at most 500 characters. Names in nested dicts are joined by "/". Only rank 0's
            metrics count. If the value of a metric is None, the metric is left out or, if it is the objective, reported as NaN.
        step: your own count of batches or samples, which is stored with the report. It becomes the column `step` in
            `trial.history`, and the x axis `user_step` of the API's curves.
        checkpoint: a directory, or a callable that is given an empty directory and fills it. Before `report` returns, a
            directory is moved if it is in the temp directory, else copied. A callable is called only when a checkpoint
            is due. The directories of several ranks become one checkpoint.

    Raises:
        WrongArgument: a metric is not a number, or its name is too long. The message names the metric.
    """
    running = _inside("report")
    if running is not None:
        running.report(metrics, step=step, checkpoint=checkpoint)
    else:
        _outside.report(metrics, step)


def get_checkpoint() -> Checkpoint | None:
    """Return the checkpoint to continue from, or None if the trial starts from the beginning or this is not a trial."""
    running = _inside("get_checkpoint")
    return running.checkpoint if running is not None else None


def get_context() -> Context:
    """Return information about this trial and rank, such as ids, the rank and the configuration.

    Outside a trial, the ids are empty, and the process is described as the only rank.
    """
    running = _inside("get_context")
    if running is not None:
        return running.context
    return Context(
        experiment_id="",
        trial_id="",
        trial_number=0,
        segment_id="",
        world_size=1,
        world_rank=0,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        trial_dir=os.getcwd(),
    )


def should_checkpoint() -> bool:
    """Return whether a checkpoint is due at the next `report`.

    The answer is the same on all ranks, and False outside a trial.
    """
    running = _inside("should_checkpoint")
    return running.should_checkpoint() if running is not None else False
