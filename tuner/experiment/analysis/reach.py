"""Predict how far a scheduler will train the trials of an experiment that has not started."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from tuner.domain.experiment import Spec
from tuner.driver.virtual import Step, simulate
from tuner.space import uniform

MOST_TRIALS = 1000
MOST_REPORTS = 5000
"""The maximum size of a simulation. A larger one would take more than a second or two."""

ALL = ("fifo", "pbt", "pb2")
"""Types of schedulers that train every trial to its end."""

BY_RANK = ("asha", "asha_promotion", "moasha", "hyperband")
"""Types of schedulers that decide at fixed iterations by the order of the trials there, regardless of the values themselves."""


def reached(spec: Spec, scheduler: Mapping[str, Any], trials: int | None) -> Sequence[tuple[int, int]] | None:
    """Return pairs (iteration, number of trials that are trained to at least this iteration), in ascending order.

    Successive-halving schedulers are run in virtual time, with trials whose order is random and stays the same.

    Args:
        spec: the experiment's spec, with all choices made.
        scheduler: the scheduler as JSON, with all its options.
        trials: the number of trials that the experiment starts; None: unknown.

    Returns:
        The pairs; None if the decisions depend on the values that will be reported, or the experiment is too large. Limits on
        time and GPU hours are ignored, and so are all conditions of `stop` except training_iteration.
    """
    kind = scheduler["type"]
    if trials is None or spec.max_t is None or spec.time_attr != "training_iteration":
        return None
    most = spec.stop.get("training_iteration")
    if most is not None:
        most = max(1, math.ceil(most))
        whole = reached(replace(spec, stop={}), scheduler, trials)
        return None if whole is None else _cut(whole, most)
    if kind in ALL:
        return [(spec.max_t, trials)]
    if kind not in BY_RANK or trials > MOST_TRIALS:
        return None
    reports = iter(range(MOST_REPORTS))
    names = [f"value {number}" for number, _ in enumerate(spec.objectives)]

    def constant(config: Mapping[str, Any], checkpoint: int | None) -> Iterator[Step]:
        step = checkpoint or 0
        while next(reports, None) is not None:
            step += 1
            yield Step(metrics={name: config[name] for name in names}, seconds=1.0, checkpoint=step)

    done = simulate(
        constant,
        {name: uniform(0, 1) for name in names},
        metric=names,
        mode=["min"] * len(names),
        num_samples=trials,
        scheduler=dict(scheduler),
        search_alg="random",
        max_t=spec.max_t,
        max_concurrent_trials=spec.limits.max_concurrent_trials or 4,
        seed=spec.seed,
    )
    if next(reports, None) is None:
        return None
    last = sorted(Counter(trial.iteration for trial in done.trials).items(), reverse=True)
    return [(iteration, count) for (iteration, _), count in zip(last, accumulate(n for _, n in last), strict=True)][
        ::-1
    ]


def _cut(pairs: Sequence[tuple[int, int]], most: int) -> Sequence[tuple[int, int]]:
    """Return the pairs for the case that every trial ends at iteration `most` or earlier."""
    beyond = [trials for iteration, trials in pairs if iteration >= most]
    return [(iteration, trials) for iteration, trials in pairs if iteration < most] + [(most, n) for n in beyond[:1]]
