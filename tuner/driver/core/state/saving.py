"""Work out how many seconds should pass between a trial's checkpoints, so that failures cost the least time.

A checkpoint costs `C` seconds of training. A failure costs the training since the newest checkpoint, half an interval on
average. If failures are `M` seconds apart, an interval of about sqrt(2 C M) minimizes the sum of both costs (J. W.
Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974). `best_interval` adds the
higher-order terms from J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
FGCS 22(3), 2006.
"""

from __future__ import annotations

import math

from tuner.domain.experiment import CheckpointPolicy
from tuner.driver.core.state.usage import Usage

FIRST_S = 60.0
"""The interval, in seconds, until the cost of a checkpoint is known."""

PRIOR_MTBF_S = 6 * 3600.0
"""The expected time between two failures of a worker group, in seconds, before any failure has been seen."""

PRIOR_FAILURES = 0.5
"""The weight of `PRIOR_MTBF_S` in the estimate: as much as half a failure in 3 hours of training."""

LEAST_COST_S = 0.01
"""The minimum cost assumed for a checkpoint, in seconds, because the ranks wait for the driver at its report."""

_TELL_AGAIN = 1.5  # the interval is logged again once it has changed by this factor


def best_interval(cost_s: float, mtbf_s: float) -> float:
    """Return the checkpoint interval, in seconds of training, that loses the least time (Daly 2006, equation 37).

    Args:
        cost_s: the seconds for which a checkpoint delays the training.
        mtbf_s: the mean time between two failures, in seconds.
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


class SaveInterval:
    """The time between a trial's periodic checkpoints. Part of `State`.

    With `checkpoint.interval_s` "auto", it follows from the mean cost of the experiment's checkpoints and from the rate at
    which the experiment's worker groups have failed. The rate is the mean of a gamma distribution, whose prior mean is one
    failure in `PRIOR_MTBF_S`.

    Attributes:
        fresh: True if the newest event has changed the interval so much that the log should say so.
    """

    def __init__(self, policy: CheckpointPolicy, usage: Usage) -> None:
        self.auto = policy.interval_s == "auto"
        self._usage = usage
        self._interval_s: float | None = FIRST_S if policy.interval_s == "auto" else policy.interval_s
        self._cost_s: float | None = None
        self._failures = 0
        self._trained_s = 0.0  # seconds for which worker groups had run when the interval was last worked out
        self._said_s: float | None = None
        self.fresh = False

    def seconds(self, size: float = 1.0) -> float | None:
        """Return the interval, or None if there are no periodic checkpoints.

        size: the number of ranks of the trial, divided by `scaling.num_workers`. A larger group fails more often.
        """
        return self._interval_s if self._interval_s is None or not self.auto else self._interval_s / math.sqrt(size)

    def saved(self, cost_s: float, now: float) -> None:
        """Record the cost of a checkpoint. The mean moves towards it by a fifth of the difference."""
        if self.auto and cost_s > 0:
            before = cost_s if self._cost_s is None else self._cost_s
            self._cost_s = before + 0.2 * (cost_s - before)
            self._work_out(now)

    def failed(self, now: float) -> None:
        """Record that a worker group has failed, and that its trial continues from a checkpoint."""
        self._failures += 1
        if self.auto:
            self._work_out(now)

    def in_words(self) -> str:
        """Return, for the log, the interval and the figures from which it was computed."""
        assert self._interval_s is not None
        assert self._cost_s is not None
        seen = f"{self._failures} failure{'' if self._failures == 1 else 's'} in {_hours(self._trained_s)} of training"
        return (
            f"trials save a checkpoint every {_seconds(self._interval_s)}: a checkpoint costs {_seconds(self._cost_s)}, and "
            f"a failure is expected every {_hours(self._mtbf_s())} ({seen})"
        )

    def _mtbf_s(self) -> float:
        return (PRIOR_FAILURES * PRIOR_MTBF_S + self._trained_s) / (PRIOR_FAILURES + self._failures)

    def _work_out(self, now: float) -> None:
        self._trained_s = self._usage.seconds(now)
        if self._cost_s is None:
            return
        self._interval_s = best_interval(max(LEAST_COST_S, self._cost_s), self._mtbf_s())
        said = self._said_s
        if said is None or max(said, self._interval_s) >= _TELL_AGAIN * min(said, self._interval_s):
            self._said_s, self.fresh = self._interval_s, True


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds / 60:.3g} min"
