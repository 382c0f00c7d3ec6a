"""Test that a search of an earlier version goes on by the rules by which it began."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.driver.bench import Bench
from tuner.experiment.specs.spec import parse_spec

SPACE = {"x": {"type": "uniform", "lower": 0, "upper": 1}}
SEARCH: dict[str, Any] = {"type": "random", "constraints": {"size": {"max": 0.5}}}


@pytest.mark.parametrize("kind", ["asha_promotion", "hyperband"])
@pytest.mark.parametrize("old", [False, True])
def test_constraints_rank_trials_only_in_searches_that_began_so(kind: str, old: bool) -> None:
    """By the other rule, a restarted driver stopped the trials that had won, or never resumed any trial that had lost."""
    scheduler = {"type": kind, "reduction_factor": 3}
    asked = {"entrypoint": "module:train", "space": SPACE, "metric": "loss", "mode": "min", "max_t": 9}
    resolved = parse_spec({**asked, "scheduler": scheduler, "search": SEARCH}).resolved
    assert resolved["constraints_rank"]
    if old:
        resolved = {name: value for name, value in resolved.items() if name != "constraints_rank"}
    bench = Bench(
        num_samples=9,
        max_t=9,
        scheduler=scheduler,
        search=SEARCH,
        limits={"max_concurrent_trials": 9},
        resolved=json.loads(json.dumps(resolved)),
    )
    for number in range(9):
        bench.started(number)
    for number in range(9):
        violates = number < 6
        bench.reported(number, 0.1 if violates else 0.5, checkpoint=True, size=1.0 if violates else 0.1)
        if bench.core.trials[number].segments[-1].leaving:
            bench.ended(number)
    ahead = {number for number, state in enumerate(bench.states) if state in ("pending", "running")}
    assert ahead == {0, 1, 2} if old else ahead >= {6, 7}
