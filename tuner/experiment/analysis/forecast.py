"""Forecast the end of an experiment, its best value at that time, and the gain from another GPU hour."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tuner.domain.experiment import Spec
from tuner.driver.assemble import runs_grid
from tuner.plurals import counted
from tuner.schedulers.shared.forecast import FACTORS, Gain, expected_gain, room
from tuner.schedulers.shared.wording import shown
from tuner.search.base import SearcherContext
from tuner.search.grid import GridSearch
from tuner.space import Space
from tuner.store import ExperimentRecord, Store

HOUR_S = 3600.0

LEAST = 0.02  # the remaining training is assumed to be at least this share of the training so far

Limit = Literal["num_samples", "budget", "time_budget_s", "gpu_hours"]

ENDS: Mapping[str, Sequence[tuple[float, float, float]]] = {
    "samples": (
        (0.456, 0.958, 1.939),
        (0.618, 1.091, 2.6),
        (0.662, 1.389, 3.678),
        (0.901, 3.058, 19.244),
    ),
    "units": (
        (0.91, 1.239, 1.996),
        (0.931, 1.328, 2.369),
        (1.006, 1.49, 2.46),
        (1.095, 1.935, 7.613),
    ),
    "budget": (
        (0.356, 1.012, 1.334),
        (0.537, 1.081, 1.493),
        (0.795, 1.22, 1.988),
        (0.964, 1.528, 2.9),
    ),
}
"""The actual remaining time divided by the expected remaining time (low, middle, high), for each quarter of a search.

"samples": only the number of trials is known. "units": the total training of all trials is known, in units of time_attr.
"budget": as "units", but for freeze-thaw, which trains the leading trial to the end after all other trials have stopped.
`python -m benchmarks.forecast --fit` measures these figures on recorded learning curves. They differ from 1 because the last
trials often run longer, and because fewer trials run at the same time near the end.
"""


@dataclass(frozen=True, slots=True)
class Range:
    """An expected value with an 80 % prediction interval."""

    expected: float
    low: float
    high: float

    def later(self, seconds: float) -> Range:
        """Return this range, shifted by a number of seconds."""
        return Range(self.expected + seconds, self.low + seconds, self.high + seconds)


@dataclass(frozen=True, slots=True)
class End:
    """The expected end of an experiment.

    Attributes:
        limit: the limit that is expected to end the experiment.
        seconds: the remaining running time in seconds, excluding pauses. It includes `starting`.
        starting: the seconds until the first trials train again, if none has trained since the search was continued or its driver
            was restarted; otherwise 0.
    """

    limit: Limit
    seconds: Range
    starting: float = 0.0


@dataclass(frozen=True, slots=True)
class More:
    """The effect of more training.

    Attributes:
        gpu_hours: the GPU hours of the additional training; None if trials use no GPUs.
        seconds: the seconds that the additional training takes at the current pace.
        gain: the improvement of the best value, which is positive in both modes.
        furthest: True if the requested training was cut to twice the training so far, which is as far as forecasts go.
    """

    gpu_hours: float | None
    seconds: float
    gain: Gain
    furthest: bool = False


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast, as of the newest event of the experiment.

    Attributes:
        metric: the first objective.
        time: the time of the newest event; None before the first event.
        end: the expected end of the experiment; None if it is not known yet, or if the experiment has ended.
        best: the expected best value at the end; None if it is not known yet. The interval excludes values worse than the
            current best value.
        best_is_open: True if the interval of `best` reaches the end of the scale, such as 0 for a loss, so that it does not say
            how much the best value may improve.
        more: the effect of more training, for the requested number of hours; None if it is not known yet.
        summary: the forecast in sentences, or why there is none.
        budget_spent: the share of the budget of full trainings that is spent, at most 1; None without such a budget, or if it is
            not known.
    """

    metric: str
    time: float | None
    end: End | None
    best: Range | None
    more: More | None
    summary: str
    best_is_open: bool = False
    budget_spent: float | None = None


def forecast(store: Store, record: ExperimentRecord, hours: float = 1.0) -> Forecast:
    """Return the forecast of an experiment.

    Args:
        store: the database.
        record: the experiment.
        hours: the additional GPU hours whose effect is forecast as `more`. If trials use no GPUs, these are hours of the
            experiment. At most twice the training so far is forecast, because a longer forecast would be a guess.
    """
    spec, metric = record.spec, record.spec.objective.metric
    now = store.log.newest_time(record.id)
    if record.state.ended:
        return Forecast(metric, now, None, None, None, "it has ended")
    spans = store.trials.spans(record.id)
    pace = None if now is None else _Pace.of(spans, now)
    if now is None or pace is None:
        return Forecast(
            metric, now, None, None, None, "there is no forecast before the first trial has trained for a while"
        )
    end = _end(store, record, pace)
    found = _Found.of(store, record, pace)
    best = None if end is None or found is None else found.best_after(end, pace)
    more = None if found is None else found.more(hours, pace)
    why = "" if end is None or found is None else found.unknown(end, pace)
    if end is not None and (starting := _starting(store, record, spans)):
        end = End(end.limit, end.seconds.later(starting), starting)
    is_open = best is not None and found is not None and found.is_open(best)
    summary = _summary(spec, end, best, is_open, more, found, why)
    return Forecast(metric, now, end, best, more, summary, is_open, record.budget_spent)


@dataclass(frozen=True, slots=True)
class _Pace:
    """The training over time. Training is measured in seconds, summed over trials.

    Attributes:
        times: the times at which the number of running trials changed (n,), ascending.
        done: the training up to each of these times (n,).
        active: the seconds, up to each of these times, during which any trial ran (n,).
    """

    times: NDArray[np.float64]
    done: NDArray[np.float64]
    active: NDArray[np.float64]

    @classmethod
    def of(cls, spans: Sequence[tuple[float, float | None]], now: float) -> _Pace | None:
        begins = np.array([begin for begin, _ in spans])
        ends = np.array([now if end is None else end for _, end in spans])
        times = np.concatenate([begins, np.maximum(ends, begins), [now]])
        change = np.concatenate([np.ones(len(begins)), -np.ones(len(ends)), [0.0]])
        order = np.argsort(times, kind="stable")
        times, running = times[order], np.cumsum(change[order])
        passed = np.diff(times)
        done = np.concatenate([[0.0], np.cumsum(passed * running[:-1])])
        active = np.concatenate([[0.0], np.cumsum(passed * (running[:-1] > 0))])
        return cls(times, done, active) if done[-1] > 0 else None

    @property
    def total(self) -> float:
        """Return the training so far, in seconds."""
        return float(self.done[-1])

    @property
    def ran(self) -> float:
        """Return the seconds so far during which any trial ran."""
        return float(self.active[-1])

    @property
    def at_once(self) -> float:
        """Return the average number of running trials in the second half of the training."""
        half = float(np.interp(self.total / 2, self.done, self.active))
        return self.total / 2 / (self.ran - half)

    def trained_by(self, times: Sequence[float]) -> list[float]:
        """Return the training done up to each of these times."""
        return [float(done) for done in np.interp(times, self.times, self.done)]


# -- when it ends --------------------------------------------------------------------------------------------------------


def _end(store: Store, record: ExperimentRecord, pace: _Pace) -> End | None:
    """Return the limit that is expected to be reached first, and the time until then."""
    limits = record.spec.limits
    known: list[End] = []
    if limits.time_budget_s is not None:
        left = max(limits.time_budget_s - pace.ran, 0.0)
        known.append(End("time_budget_s", Range(left, left, left)))
    if limits.gpu_hours is not None and (gpus := _gpus(record.spec)):
        left = max(limits.gpu_hours - record.gpu_hours, 0.0) * HOUR_S / gpus
        known.append(_ending("gpu_hours", ENDS["units"], left, pace))
    if (whole := _whole(record)) is not None:
        limit, units = whole
        if (training := _by_units(store, record, limit, units, pace)) is not None:
            known.append(_ending(limit, ENDS["budget" if limit == "budget" else "units"], training, pace))
    elif (training := _by_samples(record, pace)) is not None:
        known.append(_ending("num_samples", ENDS["samples"], training, pace))
    return min(known, key=lambda end: end.seconds.expected, default=None)


def _starting(store: Store, record: ExperimentRecord, spans: Sequence[tuple[float, float | None]]) -> float:
    """Return how long trials take to start if none has started since the last pause: the middle of the earlier cold starts.

    A pause is any time in which the search did not run: it was paused by a user, had ended, or had no driver.
    """
    pauses = record.clock.pauses
    if not pauses:
        return 0.0
    _, resumed = pauses[-1]
    if resumed is not None and spans and spans[-1][0] >= resumed:
        return 0.0
    return store.trials.cold_start(record.id) or 0.0


def _ending(limit: Limit, figures: Sequence[tuple[float, float, float]], training: float, pace: _Pace) -> End:
    training = max(training, LEAST * pace.total)
    quarter = min(int(4 * pace.total / (pace.total + training)), 3)
    low, middle, high = (factor * training / pace.at_once for factor in figures[quarter])
    return End(limit, Range(middle, low, high))


def _by_samples(record: ExperimentRecord, pace: _Pace) -> float | None:
    """Return the remaining training if further trials train as long as the trials so far. Running trials count as half done."""
    ended = sum(record.counts.get(state, 0) for state in ("completed", "stopped", "failed", "cancelled"))
    samples = samples_of(record.spec) if ended else None
    if samples is None:
        return None
    done = ended + record.counts.get("running", 0) / 2
    return max(pace.total * (samples / done - 1), 0.0)


def samples_of(spec: Spec) -> int | None:
    """Return the total number of trials that the search starts, or None if it is not fixed."""
    if not runs_grid(spec):
        return spec.num_samples
    given = spec.resolved.get("search") or spec.search
    choices = given.get("choices") if given.get("type") == "grid" else False
    of_grid = _combinations(json.dumps(dict(spec.space)), choices) * (spec.num_samples or 1)
    return of_grid + len(spec.points_to_evaluate) + len(spec.earlier.get("portfolio", ()))


@functools.lru_cache(maxsize=256)
def _combinations(space: str, choices: bool | None) -> int:
    """Return the number of combinations in the grid of a search space, which is a JSON string. A large grid takes a second."""
    grid = GridSearch(choices)
    grid.setup(SearcherContext(Space.from_json(json.loads(space), opaque=True), objectives=(), seed=0, num_samples=1))
    return grid.total()


def _by_units(store: Store, record: ExperimentRecord, limit: Limit, whole: float, pace: _Pace) -> float | None:
    """Return the remaining training in seconds if a unit of time_attr continues to take as long as it has taken so far."""
    done, trained = _trained(store, record, limit) or (0.0, 0.0)
    return max(pace.total * (whole - done) / trained, 0.0) if trained > 0 else None


def _trained(store: Store, record: ExperimentRecord, limit: Limit) -> tuple[float, float] | None:
    """Return how much of the training towards the limit is done, and how much all trials have trained.

    Both are in units of time_attr; None if that is a metric, for which the database keeps no totals. Training that a restarted
    trial repeats spends the budget, but does not bring the trial closer to max_t.
    """
    every, searched = store.trials.training(record.id)
    match record.spec.time_attr:
        case "training_iteration":
            return float(searched.reports if limit == "budget" else searched.iterations), float(every.reports)
        case "time_total_s":
            return searched.seconds, every.seconds
        case _:
            return None


def _whole(record: ExperimentRecord) -> tuple[Limit, float] | None:
    """Return the limit that fixes the total training of all trials, and this total in units of time_attr.

    Both are known for freeze-thaw, which has a budget, and for fifo, which trains each trial to max_t. Otherwise return None.
    """
    spec = record.spec
    scheduler: Mapping[str, Any] = spec.resolved.get("scheduler") or {}
    if scheduler.get("type") == "fifo" and spec.max_t is not None and (samples := samples_of(spec)) is not None:
        return "num_samples", float(spec.max_t * samples)
    if scheduler.get("type") != "freeze_thaw" or scheduler.get("max_t") is None:
        return None
    trainings = spec.limits.budget if spec.limits.budget is not None else scheduler.get("budget")
    if trainings is None:
        return None
    # A derived budget grows if trials are added. It no longer applies if num_samples was removed or a time limit was added.
    if spec.limits.budget is None and spec.scheduler.get("budget") is None:
        if spec.num_samples is None or spec.limits.time_budget_s is not None:
            return None
        from tuner.schedulers.freeze_thaw.decisions.budget import derived

        trainings = max(trainings, derived(spec.num_samples))
    return "budget", float(trainings) * float(scheduler["max_t"])


# -- what it will have found ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """The improvements of the best value so far: for each, the training done until then, and the score (higher is better).

    With scope "last", the best value may become worse. An improvement that was lost again does not count.
    """

    spec: Spec
    work: Sequence[float]
    score: Sequence[float]

    @classmethod
    def of(cls, store: Store, record: ExperimentRecord, pace: _Pace) -> _Found | None:
        objective = record.spec.objective
        if len(record.spec.objectives) > 1 or record.started_at is None:
            return None
        seconds, values = store.metrics.best_so_far(record.id, objective.metric, objective.mode)
        work = pace.trained_by(record.clock.times(seconds).tolist())
        score = [objective.score(value) for value in values]
        return cls(record.spec, work, list(accumulate(reversed(score), min))[::-1]) if values else None

    def gain(self, training: float, pace: _Pace) -> Gain | None:
        """Return the gain from this much additional training, or None if it is unknown or too far ahead."""
        if training > (FACTORS[-1] - 1) * pace.total:
            return None
        rest = room(self.spec.objective, self.score)
        return expected_gain(self.work, self.score, pace.total, training, rest)

    def is_bound(self, gain: float) -> bool:
        """Return True if this gain would reach the end of the scale, so that it says nothing about how much will be gained."""
        return gain >= room(self.spec.objective, self.score)

    def unknown(self, end: End, pace: _Pace) -> str:
        """Return why `best_after` returned None."""
        if self.gain(end.seconds.expected * pace.at_once, pace) is None:
            return "less than a third of the expected training is done"
        return "if it kept improving as it has so far, it would pass the end of the scale"

    def is_open(self, best: Range) -> bool:
        """Return True if the interval reaches the end of the scale, so that it does not say how much the value may improve."""
        most = max(self.spec.objective.score(value) for value in (best.low, best.high))
        return self.is_bound((most - self.score[-1]) * (1 + 1e-9))

    def best_after(self, end: End, pace: _Pace) -> Range | None:
        """Return the best value that is expected at the end."""
        seconds, objective, now = end.seconds, self.spec.objective, self.score[-1]
        furthest = (FACTORS[-1] - 1) * pace.total
        middle = self.gain(seconds.expected * pace.at_once, pace)
        if seconds.expected <= 0:
            return Range(*(objective.score(now),) * 3)
        early = self.gain(min(seconds.low * pace.at_once, furthest), pace)
        late = self.gain(min(seconds.high * pace.at_once, furthest), pace)
        if middle is None or late is None or self.is_bound(middle.middle):
            return None
        scores = (now + middle.middle, now + (early.low if early else 0.0), now + late.high)
        expected, *ends = (objective.score(score) for score in scores)
        return Range(expected, min(ends), max(ends))

    def more(self, hours: float, pace: _Pace) -> More | None:
        gpus = _gpus(self.spec)
        wanted = hours * HOUR_S / gpus if gpus else hours * HOUR_S * pace.at_once
        training = min(wanted, (FACTORS[-1] - 1) * pace.total)
        gain = self.gain(training, pace)
        if gain is None:
            return None
        return More(training * gpus / HOUR_S if gpus else None, training / pace.at_once, gain, training < wanted)


def _gpus(spec: Spec) -> float:
    """Return the number of GPUs that a trial uses."""
    return spec.scaling.bundle().get("GPU", 0.0) * spec.scaling.num_workers


# -- words ---------------------------------------------------------------------------------------------------------------

ENDED_BY: Mapping[Limit, str] = {
    "num_samples": "the last trial has ended",
    "budget": "the budget of full trainings is spent",
    "time_budget_s": "the time budget is spent",
    "gpu_hours": "the GPU hours are used up",
}


def _summary(
    spec: Spec,
    end: End | None,
    best: Range | None,
    is_open: bool,
    more: More | None,
    found: _Found | None,
    unknown: str,
) -> str:
    """Return the forecast in words. unknown: why the best value at the end is unknown; "" if it is known."""
    metric = spec.objective.metric
    said = []
    if end is None:
        said.append("the end of the experiment is not known yet")
    else:
        at = f"the experiment ends in about {_duration(end.seconds.expected)}{_interval(end.seconds, _duration)}"
        first = f", after about {_duration(end.starting)} in which trials start again" if end.starting else ""
        said.append(f"{at}, when {ENDED_BY[end.limit]}{first}")
    if best is not None and found is not None:
        now = shown(spec.objective.score(found.score[-1]))
        what = f"{metric} of a single run" if spec.limits.repeats else metric  # repeats make the best value a mean
        about = f"the best {what} will then be about {_rounded(best.expected)}"
        if is_open:
            said.append(
                f"{about}; it is {now} now and cannot become worse, but how much better it may become is not known"
            )
        else:
            said.append(f"{about}{_interval(best, _rounded)}; it is {now} now")
    elif len(spec.objectives) > 1:
        said.append("the best value is forecast only for experiments with one objective")
    elif end is not None:
        said.append("the best value at the end is not known yet" + (f": {unknown}" if unknown else ""))
    if more is not None:
        gpus = counted(more.gpu_hours, "GPU hour", ".3g") if more.gpu_hours is not None else None
        gain = more.gain
        better = f"would improve the best {metric} with a probability of {100 * gain.chance:.0f} %"
        furthest = " (more training than that cannot be forecast yet)" if more.furthest else ""
        said.append(f"another {gpus or _duration(more.seconds)} of training {better}{furthest}")
        if found is not None and found.is_bound(gain.mean):
            said.append(f"how much {metric} would improve is not known yet")
        else:
            most = f"and by at most {_rounded(gain.high)} in nine of ten cases"
            said.append(f"{metric} would improve by {_rounded(gain.mean)} on average, {most}")
    return ". ".join(one[0].upper() + one[1:] for one in said)


def _interval(found: Range, word: Callable[[float], str]) -> str:
    low, high = word(found.low), word(found.high)
    return "" if low == high else f" ({low} to {high} in eight of ten cases)"


def _rounded(value: float) -> str:
    return f"{value + 0.0:.3g}" if math.isfinite(value) else str(value)  # + 0.0 makes -0.0 positive


def _duration(seconds: float) -> str:
    """Return ``40 s``, ``12 min``, ``3 h 20 min`` or ``2 d 4 h``."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"
