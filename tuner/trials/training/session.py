"""A trial as the user's function sees it: `report`, `get_checkpoint`, `get_context`, `should_checkpoint`.

One `Session` per rank and segment. Milestones are report counts that every rank knows before it reaches them, so all of them
wait, go on and leave at the same report without talking in between.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tuner.domain.events import CheckpointInfo
from tuner.domain.segments import Report, Verdict
from tuner.errors import TunerError
from tuner.trials.checkpoints.checkpoints import Checkpoint, Source
from tuner.trials.training.metrics import Oddities, flatten


class LeaveTrial(BaseException):
    """Ends the training function at a report. Not an Exception, so that `except Exception` lets it through."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"{verdict.action}: {verdict.reason}" if verdict.reason else verdict.action)
        self.verdict = verdict


class OutsideTrial(TunerError, RuntimeError):
    """A function that only means something inside a trial was called elsewhere, or in a child process of a trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where and as what this process runs."""

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
    start_iteration: int = 0  # training_iteration of the checkpoint that this run starts from
    devices: tuple[int, ...] = ()  # CUDA devices of this rank, as indices into CUDA_VISIBLE_DEVICES
    resources: Mapping[str, float] = field(default_factory=dict)  # of this rank, and of each: {"CPU": 1.0}
    log_file: str = ""
    trial_dir: str = ""  # this rank's own directory, the same in each segment of the trial on this node

    def get_experiment_id(self) -> str:
        return self.experiment_id

    def get_experiment_name(self) -> str:
        """The id, which no other experiment has, as in Ray's context."""
        return self.experiment_id

    def get_trial_id(self) -> str:
        return self.trial_id

    def get_trial_resources(self) -> list[dict[str, float]]:
        """What each rank has, by rank."""
        return [dict(self.resources) for _ in range(self.world_size)]

    def get_trial_name(self) -> str:
        return f"trial_{self.trial_number:05d}"

    def get_trial_number(self) -> int:
        return self.trial_number

    def get_world_size(self) -> int:
        return self.world_size

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
    """Rank 0's way to the driver."""

    def put(self, message: Report) -> None:
        """Send some time soon; returns at once."""

    def ask(self, message: Report) -> Verdict:
        """Send everything up to this message and wait for the verdict."""


class Peers(Protocol):
    """The way between the ranks of the group. A group of one has none."""

    def hand_out(self, report_no: int, verdict: Verdict) -> None:
        """Rank 0: the verdict for this report, to all others."""

    def take(self, report_no: int) -> Verdict:
        """Other ranks: wait for it. Once rank 0 has ended: go on without any more."""

    def ended(self) -> None:
        """Rank 0: its function has returned, so that nobody may wait for a verdict any more."""


class Saver(Protocol):
    """What takes checkpoints over."""

    def take(self, source: Source, report_no: int, iteration: int, *, at_end: bool = False) -> CheckpointInfo | None:
        """Take the content over before returning; commit in the background. `at_end`: after the last report, not at it."""

    def passed(self, report_no: int) -> None:
        """This rank has no checkpoint at this report."""


class Watch(Protocol):
    """Looks for a mistake that reports go on in spite of."""

    def check(self) -> str | None:
        """At a report: what is wrong in words, empty if nothing is, and None as long as that cannot be said."""


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
        watch: Watch | None = None,
    ) -> None:
        self.context = context
        self.objective = objective
        self._odd = Oddities(objective)
        self._watch = watch
        self.warning = ""  # what the watch has found
        self.checkpoint = checkpoint
        self._reports = reports
        self._peers = peers
        self._saver = saver
        self._every = checkpoint_every
        self._at_milestones = milestone_checkpoints
        self._at_end = checkpoint_at_end
        self._pending: Callable[[str], Any] | None = None  # the newest callable that was not asked
        self._saved_at = 0
        self._offered = 0  # the latest report that came with a callable,
        self._offers_every = 1  # and the distance to the one before

        self._gate = threading.Condition()
        self._count = 0
        self._milestone = first_milestone
        self._holds: set[str] = set()  # interrupts that have not said yet where
        self._released: set[str] = set()  # interrupts that are over
        self._interrupts: set[int] = set()  # milestones of users' commands, beside the scheduler's
        self._answered = (0, False)  # the latest report that should_checkpoint was asked about, and what it said
        self._left: LeaveTrial | None = None
        self.on_leave: Callable[[Verdict], None] | None = None
        self.as_value = False  # the only report is what the function returned
        self.waiting_for_verdict = False
        self.saving = False  # on its way out: not to be taken for a rank that stays
        self.progressed_at = time.monotonic()

    @property
    def count(self) -> int:
        return self._count

    @property
    def left(self) -> LeaveTrial | None:
        return self._left

    # The user's side

    def report(self, metrics: Mapping[str, Any], *, step: int | None = None, checkpoint: Source | None = None) -> None:
        if self._left is not None:
            raise self._left
        step = _own_step(step)
        values = flatten(metrics, self._odd) if self._reports is not None else {}
        if self._watch is not None and (found := self._watch.check()) is not None:
            self._watch, self.warning = None, found
            if found:
                print(f"warning: {found}", file=sys.stderr)
        with self._gate:
            self._pass_gate()
            self._count = number = self._count + 1
            milestone = self._is_milestone(number)
        self.progressed_at = time.monotonic()

        if callable(checkpoint):
            self._offered, self._offers_every = number, number - self._offered
        info = self._save(checkpoint, number, self._due(number, milestone)) if checkpoint is not None else None
        if not milestone:
            self._through_with(number)
            if self._reports is not None:
                self._reports.put(
                    Report(report_no=number, metrics=values, time=time.monotonic(), step=step, checkpoint=info)
                )
            return
        self._heed(number, self._verdict(number, values, step, info))

    def should_checkpoint(self) -> bool:
        """Whether a checkpoint passed to the next `report` is wanted. Equal on all ranks."""
        with self._gate:
            self._pass_gate()
            number = self._count + 1
            if self._answered[0] != number:
                self._answered = number, self._due(number, self._is_milestone(number))
            return self._answered[1]

    def finish(self) -> None:
        """The function has returned: save its end where that is wanted, and let ranks that report more often go on."""
        if self._reports is not None and self._peers is not None:
            self._peers.ended()
        if self._at_end and self._pending is not None and self._saved_at < self._count:
            self.saving = True
            self._save(self._pending, self._count, True, at_end=True)
        self._pending = None

    # The driver's side; called from another thread

    def hold(self, interrupt: str) -> int:
        """Keep the next report from beginning until `release`; return the latest report about which all is settled here.

        That is the latest that has begun, or the one after it if `should_checkpoint` has answered for it. A milestone
        after the largest such number of all ranks comes at the same report on each.

        A hold has no time limit: a rank that gave it up alone would leave at another report than the others. Whoever holds
        must release every rank. interrupt: names this hold.
        """
        with self._gate:
            if interrupt not in self._released:  # a release may overtake the hold
                self._holds.add(interrupt)
            return max(self._count, self._answered[0])

    def release(self, interrupt: str, milestone: int | None) -> None:
        """End a hold, with a milestone if all ranks have agreed on one. Safe to repeat.

        Milestones of several interrupts stand beside each other: each rank passes all of them.
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
        self._saved_at = number
        return self._saver.take(source, number, self.context.start_iteration + number, at_end=at_end)

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
        """Where the next callable is to be expected, if they go on to come as often as the last two have."""
        if not self._offered:
            return None
        return number + self._offers_every - (number - self._offered) % self._offers_every

    def _heed(self, number: int, verdict: Verdict) -> None:
        if verdict.save_checkpoint and self._pending is not None and self._saved_at < number:
            self.saving = verdict.action != "continue"
            try:
                self._save(self._pending, number, True)
            except BaseException:
                self.saving = False
                raise
        self._through_with(number)
        with self._gate:
            self._milestone = verdict.next_milestone
            self._interrupts = {interrupt for interrupt in self._interrupts if interrupt > number}
        if verdict.action != "continue":
            self._left = LeaveTrial(verdict)
            if self.on_leave is not None:
                self.on_leave(verdict)
            raise self._left


def _own_step(step: Any) -> int | None:
    """The step as a number that the database can hold. TypeError or ValueError if it is none."""
    if step is None:
        return None
    number = int(step)
    if isinstance(step, str) or number != step:
        raise TypeError(f"step must be a whole number, not {step!r}")
    if abs(number) >= 2**63:
        raise ValueError(f"step must be below 2**63, not {number}")
    return number


_current: Session | None = None


def activate(session: Session | None) -> None:
    """Make this the session of the process, or none."""
    global _current
    _current = session


def current() -> Session | None:
    return _current


RANK_PROCESS = "_TUNER_RANK_PROCESS"
"""Set in the environment of ranks, and so of every process that a rank starts."""


@dataclass(slots=True)
class _Outside:
    """What takes the place of a trial when a training function is called by itself, to debug it."""

    reports: int = 0
    odd: Oddities = field(default_factory=Oddities)

    def report(self, metrics: Mapping[str, Any], step: int | None) -> None:
        values, step = flatten(metrics, self.odd), _own_step(step)
        self.reports += 1
        at = f" (step {step})" if step is not None else ""
        print(f"report {self.reports}{at}: " + " ".join(f"{name}={value:.6g}" for name, value in values.items()))


_outside = _Outside()


def _inside(name: str) -> Session | None:
    """The trial of this process, or None in a process that has nothing to do with trials."""
    if _current is None and RANK_PROCESS in os.environ:
        raise OutsideTrial(
            f"tuner.{name}() was called in a child process of a trial, or after the trial had ended: call it in the training "
            "function itself"
        )
    return _current


def report(metrics: Mapping[str, Any], *, step: int | None = None, checkpoint: Source | None = None) -> None:
    """Report metrics, and maybe a checkpoint. Every rank calls it, equally often.

    `metrics`: numbers by name; nested dicts flatten with "/"; rank 0's count. `step`: your own count (batches, samples), kept
    beside the report: a `step` in `trial.history`, and the x axis `user_step` of the API's curves.
    `checkpoint`: a directory, which is taken over before this returns (moved when it lies in the temp directory, else
    copied), or a callable that is given an empty directory to fill, and only called when a checkpoint is due. Directories of
    several ranks become one checkpoint.

    It returns at once unless the scheduler decides at this report; then it waits for the decision (about a millisecond). A
    trial that is to end leaves the function here, by an exception that `except Exception` does not catch.
    TypeError names the metric that is not a number. A metric that is None is left out; the objective counts as NaN then.

    Outside a trial, as when you call your function yourself to debug it, this checks the metrics and prints them in one
    line. A callable is not called then, and a directory is left alone.
    """
    running = _inside("report")
    if running is not None:
        running.report(metrics, step=step, checkpoint=checkpoint)
    else:
        _outside.report(metrics, step)


def get_checkpoint() -> Checkpoint | None:
    """Return the checkpoint to continue from, or None at a fresh start and outside a trial."""
    running = _inside("get_checkpoint")
    return running.checkpoint if running is not None else None


def get_context() -> Context:
    """Return the ids, ranks and configuration of this trial; outside a trial those of a world of one, with empty ids."""
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
    """Return whether a checkpoint passed to the next `report` would be used. The same on all ranks; False outside a trial."""
    running = _inside("should_checkpoint")
    return running.should_checkpoint() if running is not None else False
