"""Recommend a scheduler, by replaying past experiments under several schedulers and comparing the outcomes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.driver.replay import Replay
from tuner.errors import SpecError
from tuner.experiment.analysis.replay import replay
from tuner.plurals import counted
from tuner.store import ExperimentRecord, Store

CANDIDATES: tuple[Mapping[str, Any], ...] = (
    *({"type": "asha", "reduction_factor": eta} for eta in (2, 3, 4)),
    {"type": "asha_promotion", "reduction_factor": 3},
    {"type": "median"},
    {"type": "hyperband", "reduction_factor": 3},
)
FEWEST = 8
"""Experiments with fewer trials than this are left out."""

TOLERANCE = 0.05
"""The largest acceptable mean loss over experiments.

A loss of 1 is as large as the difference between the best and the median trial of an experiment.
"""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over experiments, with its 95 % confidence interval, which is None if there is only one experiment."""

    mean: float
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        mean = statistics.mean(values)
        if len(values) < 2:
            return cls(mean, None)
        half = _t95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean, (mean - half, mean + half))


@dataclass(frozen=True, slots=True)
class Option:
    """The performance of one scheduler over the experiments.

    Attributes:
        method: the scheduler in a few words.
        scheduler: the JSON form of the scheduler, to pass to `tuner.run`.
        saved: the share of the training that the scheduler would have saved; negative if it would have trained more.
        lost: the loss of the replay's best trial: 0 if that is as good as the experiment's best trial, 1 if only as good as the
            median.
        experiments: the names of the experiments on which the scheduler was replayed.
        censored: the number of experiments that were left out, because the scheduler would have trained trials for longer than
            they were recorded.
    """

    method: str
    scheduler: Mapping[str, Any]
    saved: Estimate
    lost: Estimate
    experiments: tuple[str, ...]
    censored: int


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A recommendation, and the comparison on which it is based.

    Attributes:
        best: among the options that save training and lose at most 5 % on average, the option that saves the most; None if
            there is none.
        options: all options, ordered by the training that they save, largest first.
        left_out: name of an experiment -> why it could not be replayed.
        summary: the outcome in one sentence.
    """

    best: Option | None
    options: tuple[Option, ...]
    left_out: Mapping[str, str]
    summary: str


def recommend(
    store: Store, records: Iterable[ExperimentRecord], schedulers: Sequence[Any] | None = None
) -> Recommendation:
    """Replay experiments under several schedulers and recommend one.

    Only replays without censored trials count, because their cost and result are known exactly. A trial is censored if the
    replayed scheduler would have trained it for longer than it was recorded.
    """
    candidates = list(CANDIDATES if schedulers is None else schedulers)
    known: list[list[tuple[str, Replay]]] = [[] for _ in candidates]
    cut = [0] * len(candidates)
    left_out: dict[str, str] = {}
    for record in records:
        if sum(record.counts.values()) < FEWEST:
            left_out[record.name] = f"the experiment has fewer than {FEWEST} trials"
            continue
        reasons, used = [], False
        for at, candidate in enumerate(candidates):
            try:
                found = replay(store, record, scheduler=candidate)
            except SpecError as error:
                reasons.append(str(error))
                continue
            if found.censored:
                cut[at] += 1
                reasons.append("the experiment's trials were stopped too early to know their later values")
            else:
                used = True
                known[at].append((record.name, found))
        if not used and reasons:
            left_out[record.name] = reasons[0]
    options = []
    for at, replays in enumerate(known):
        if replays:
            _, one = replays[0]
            saved = Estimate.of([found.saved for _, found in replays])
            lost = Estimate.of([_lost(found) for _, found in replays])
            names = tuple(name for name, _ in replays)
            options.append(Option(one.method, one.scheduler, saved, lost, names, cut[at]))
    options.sort(key=lambda option: -option.saved.mean)
    best = next((option for option in options if option.lost.mean <= TOLERANCE and option.saved.mean > 0), None)
    return Recommendation(best, tuple(options), left_out, _summary(best, options))


def _lost(found: Replay) -> float:
    """Return the loss of a replay's best trial, relative to the difference between the recorded best and median trials."""
    values = sorted(trial.recorded.value for trial in found.trials if trial.recorded.value is not None)
    then, now = found.recorded.best_value, found.replayed.best_value
    if then is None or not values:
        return 0.0
    width = abs(then - statistics.median(values))
    if now is None:
        return 1.0
    return abs(then - now) / width if width else 0.0


def _summary(best: Option | None, options: Sequence[Option]) -> str:
    if not options:
        return "no experiment could be replayed: run one with scheduler='fifo', which trains all trials to the end, and try again"
    if best is None:
        most = f"{100 * TOLERANCE:.0f} % on average"
        none = f"none of {len(options)} schedulers would" if len(options) > 1 else f"{options[0].method} would not"
        return f"{none} have saved training without losing more than {most}"
    over = counted(len(best.experiments), "experiment")
    saved = _shown(best.saved)
    return f"{best.method} would have saved {saved} of the training of {over} and lost {_shown(best.lost)}"


def _shown(estimate: Estimate) -> str:
    if estimate.interval is None:
        return f"{100 * estimate.mean:.0f} %"
    low, high = estimate.interval
    return f"{100 * estimate.mean:.0f} % (95 % interval: {100 * low:.0f} % to {100 * high:.0f} %)"


def _t95(degrees: int) -> float:
    """Return the 97.5 % point of Student's t distribution."""
    table = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
    return table[degrees - 1] if degrees <= len(table) else 1.96 + 2.5 / degrees
