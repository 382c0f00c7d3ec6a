"""Count how long worker groups have held resources: the GPU hours and CPU hours of an experiment."""

from __future__ import annotations

from tuner.domain.experiment import Scaling


class Usage:
    """Adds up the time for which the groups of an experiment held resources. Part of `State`."""

    def __init__(self, scaling: Scaling) -> None:
        bundle = scaling.bundle()
        self.gpus = bundle.get("GPU", 0.0) * scaling.num_workers
        self.cpus = bundle.get("CPU", 0.0) * scaling.num_workers
        self.ended_s = 0.0  # seconds for which groups that have ended held resources
        self.saved_s = 0.0  # seconds that stopped trials would have needed to reach max_t
        self.since: dict[int, float] = {}  # trial -> when its current group got its resources
        self.sizes: dict[int, float] = {}  # trial -> the size of its group, if it has grown; see `begin`
        # Sums over the trials in `since`. They make the usage, which is needed at each commit, cheap with any number of groups.
        self._size_now = 0.0  # the sizes
        # the sizes times `since`, which is counted from `_zero` because small numbers are more precise
        self._begun = 0.0
        self._zero: float | None = None

    def begin(self, trial: int, time: float, size: float = 1.0) -> None:
        """Record when the group of a trial got its resources. If several times are recorded for a group, the earliest counts.

        The first report may arrive before `SegmentStarted`, which says how long the group has already held resources.

        size: the number of ranks of the group, divided by `scaling.num_workers`. A second of a group of size 2 counts as two.
        """
        if self._zero is None:
            self._zero = time
        earlier = self._leave(trial)
        if earlier is not None:
            time = min(time, earlier)
        if size != 1.0:
            self.sizes[trial] = size
        self.since[trial] = time
        self._add(trial, time, 1)

    def end(self, trial: int, time: float) -> None:
        """Record that the trial's group has released its resources."""
        size = self._size(trial)
        if (since := self._leave(trial)) is not None:
            self.ended_s += max(0.0, time - since) * size
            self.sizes.pop(trial, None)

    def _leave(self, trial: int) -> float | None:
        """Remove a trial from the sums. Return the time at which its group got its resources; None if it has no group."""
        if (since := self.since.pop(trial, None)) is not None:
            self._add(trial, since, -1)
            if not self.since:
                self._size_now = self._begun = 0.0  # the exact value, without the rounding errors of the sums
        return since

    def _add(self, trial: int, since: float, sign: int) -> None:
        size = sign * self._size(trial)
        self._size_now += size
        self._begun += size * (since - (self._zero or 0.0))

    def stop(self, trained_s: float, t: float, max_t: float | None) -> None:
        """Record that a trial was stopped at `t`, a value of time_attr, after `trained_s` seconds of training.

        The seconds that it would have needed from `t` to `max_t`, at the same pace, count as saved.
        """
        if max_t is not None and 0 < t < max_t:
            self.saved_s += trained_s * (max_t / t - 1)

    def seconds(self, now: float) -> float:
        """Return the number of seconds for which all groups together have held resources until now."""
        return self.ended_s + max(0.0, self._size_now * (now - (self._zero or 0.0)) - self._begun)

    def _size(self, trial: int) -> float:
        return self.sizes.get(trial, 1.0)

    def gpu_hours(self, now: float) -> float:
        return self.seconds(now) * self.gpus / 3600

    def cpu_hours(self, now: float) -> float:
        return self.seconds(now) * self.cpus / 3600

    def gpu_hours_saved(self) -> float:
        return self.saved_s * self.gpus / 3600

    def left_s(self, gpu_hours: float, now: float) -> float | None:
        """Return the seconds until the running groups will have used up `gpu_hours`; None if no group has a GPU."""
        rate = self._size_now * self.gpus / 3600
        return max(0.0, gpu_hours - self.gpu_hours(now)) / rate if rate else None
