"""Work out how many ranks each elastic trial should have, given what the cluster holds and which trials run or wait."""

from __future__ import annotations

import math

from tuner.domain.experiment import Objective, Scaling
from tuner.domain.trial import Population, Segment, Trial
from tuner.driver.core.state.leaderboard import Leaderboard
from tuner.driver.core.state.segments import Segments

LEAST_REPORTS = 2
"""A segment's speed is known once it has made this many reports."""


class Sizes:
    """The ranks of elastic trials: how many there are, how many each trial should have, and what a restart costs.

    Part of `State`. It is used only if trials are elastic.

    Attributes:
        held: how many ranks the cluster holds; None if that is unknown.
        granted: how many ranks the experiment may use now, while other experiments use the rest.
        restart_s: the longest time that a segment took to start, counted from when it had its resources.
        exponent: how speed grows with size: a group that is k times as large is k ** exponent times as fast. It is 1 at
            first, and learned from resizes.
    """

    def __init__(
        self,
        scaling: Scaling,
        objective: Objective,
        trials: Population,
        segments: Segments,
        leaderboard: Leaderboard,
    ) -> None:
        self.least, self.most = scaling.num_workers, scaling.most_workers
        self._top = scaling.resources_allocation == "top"
        self._objective, self._trials, self._segments, self._leaderboard = objective, trials, segments, leaderboard
        self.held: int | None = None
        self.granted: int | None = None
        self.restart_s = 0.0
        self.exponent = 1.0

    def room(self, slots: int) -> tuple[int, int]:
        """Return how many ranks the cluster holds, and how many of them the experiment may use now.

        slots: how many trials may run at once. If the size of the cluster is unknown, it is assumed to hold this many
            trials of the smallest size.
        """
        held = max(self.least, self.least * slots if self.held is None else self.held)
        return held, held if self.granted is None else min(held, max(self.least, self.granted))

    def started(self, startup_s: float) -> None:
        """Record how long the start of a segment took."""
        self.restart_s = max(self.restart_s, startup_s)

    def ended(self, trial: Trial) -> None:
        """Compare the speed of the trial's newest segment, which has ended, with that of a segment of a different size."""
        newest = trial.segments[-1]
        speed = _speed(newest)
        for before in reversed(trial.segments[:-1]):
            if before.workers == newest.workers:
                return
            if speed is not None and (other := _speed(before)) is not None:
                found = math.log(speed / other) / math.log(newest.workers / before.workers)
                self.exponent = min(1.0, max(0.0, found))
                return

    def committed(self) -> int:
        """Return the number of ranks of the open segments, plus the additional ranks of planned segments that are larger."""
        holding = self._segments.holding
        more = (max(0, self._plan(number) - holding.get(number, 0)) for number in self._segments.planned)
        return self._segments.ranks + sum(more)

    def expected(self) -> int:
        """Return how many ranks the experiment will hold once the segments that are leaving have ended."""
        stay = (
            workers
            for number, workers in self._segments.holding.items()
            if not self._trials[number].segments[-1].leaving
        )
        return sum(stay) + sum(map(self._plan, self._segments.planned))

    def target(self, trial: Trial, room: int, more: int = 0) -> int:
        """Return how many ranks a trial that runs should have.

        room: how many ranks the trials share. more: how many more trials will soon start, besides the trials that run or wait.
        """
        sharing = self._sharing()
        count = len(sharing) + more
        better = sum(self._rank(other) > self._rank(trial) for other in sharing)
        if self._top:
            extra = room - self.least * count - better * (self.most - self.least)
            return self.least + max(0, min(self.most - self.least, extra))
        share, rest = divmod(room, count)
        return max(self.least, min(self.most, share + (better < rest)))

    def waiting(self) -> list[int]:
        """Return the trials that wait for ranks: their next segment is planned, and they have no open one."""
        return [number for number in self._segments.planned if number not in self._segments.holding]

    def count(self) -> int:
        """Return how many trials run or wait."""
        return len(self._sharing())

    def left_s(self, trial: Trial, max_t: float | None, start_t: float) -> float:
        """Return how many seconds of training the trial has left with its current number of ranks.

        If max_t is not set, the time is unknown. The trial is then expected to train for as long again as it has so far.

        start_t: the value of time_attr at the start of the current segment.
        """
        segment = trial.segments[-1]
        if max_t is None:
            return trial.running_s
        done = trial.t - start_t
        return (max_t - trial.t) * segment.trained_s / done if done > 0 else 0.0

    def cost_s(self, trial: Trial) -> float:
        """Return how many seconds of training a resize of the trial is expected to cost."""
        return self.restart_s + (trial.checkpoint.took_s if trial.checkpoint is not None else 0.0)

    def slower(self, trial: Trial) -> float | None:
        """Return the fraction of the trial's remaining time that undoing its last growth would save.

        Return None if the trial has not grown, became faster, or has not made enough reports to tell.
        """
        if len(trial.segments) < 2 or trial.segments[-1].workers <= trial.segments[-2].workers:
            return None
        now, before = _speed(trial.segments[-1]), _speed(trial.segments[-2])
        return 1.0 - now / before if now is not None and before is not None and now < before else None

    def gain(self, workers: int, new: int) -> float:
        """Return the fraction of a trial's remaining time that a change of its number of ranks would save."""
        return float(1.0 - (workers / new) ** self.exponent)

    def _sharing(self) -> list[Trial]:
        """Return the trials that run or wait."""
        holding, planned = self._segments.holding, self._segments.planned
        numbers = {number: None for number in holding if not self._trials[number].segments[-1].leaving}
        numbers |= planned
        return [self._trials[number] for number in numbers]

    def _rank(self, trial: Trial) -> tuple[float, int]:
        """Return a key that is larger for better trials, and for earlier ones if they are equally good."""
        mark = self._leaderboard.of(trial)
        return -math.inf if mark is None else self._objective.score(mark.value), -trial.number

    def _plan(self, number: int) -> int:
        """Return how many ranks a trial's planned segment should have.

        A trial that waits needs only the smallest number.
        """
        planned = self._trials[number].next
        return planned.workers if planned is not None and number in self._segments.holding else self.least


def _speed(segment: Segment) -> float | None:
    """Return the number of reports per second since the segment's start; None if that is unknown."""
    seconds = segment.trained_s
    return segment.report_no / seconds if segment.report_no >= LEAST_REPORTS and seconds > 0 else None
