"""Multi-objective ASHA: with one objective it is ASHA, with several it follows the definition computed slowly."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tuner
from tests.schedulers.driving import Feed, context
from tuner.domain.decisions import Stop
from tuner.domain.experiment import Objective
from tuner.domain.states import TrialState
from tuner.driver.virtual import Step, simulate
from tuner.errors import SpecError
from tuner.schedulers import ASHAScheduler, MOASHAScheduler
from tuner.schedulers.shared import pareto

points = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12)


def slow_fronts(given: Sequence[tuple[float, ...]]) -> list[list[int]]:
    """Take away the points that none of the rest dominates, again and again."""
    left, found = list(range(len(given))), []
    while left:
        front = [
            i
            for i in left
            if not any(
                all(a >= b for a, b in zip(given[j], given[i], strict=True)) and given[j] != given[i] for j in left
            )
        ]
        found.append(front)
        left = [i for i in left if i not in front]
    return found


@given(given_points=points)
def test_fronts_are_those_of_the_definition(given_points: list[tuple[int, int]]) -> None:
    assert pareto.fronts(given_points) == slow_fronts(given_points)


def test_not_every_pair_of_points_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    # A decision in a rung with 1,000 trials took two seconds, and one with 4,000 took 40 s.
    monkeypatch.setattr(pareto, "dominates", None)
    assert pareto.fronts([(1.0, -math.inf), (2.0, 1.0), (1.0, 1.0), (0.0, 3.0), (2.0, 1.0)]) == [[1, 3, 4], [2], [0]]
    feed = Feed(MOASHAScheduler(reduction_factor=2), context(objectives=TWO))
    for number, values in enumerate([(0.5, 3.0), (0.6, 2.0), (0.7, 1.0)]):
        feed.start()
        assert feed.report(number, 1, values[0], {"size": values[1]}) == []


@given(given_points=points)
def test_each_next_point_of_the_net_is_the_farthest_from_those_before(given_points: list[tuple[int, int]]) -> None:
    order = pareto.epsilon_net(given_points)
    assert sorted(order) == list(range(len(given_points)))
    assert given_points[order[0]][0] == max(p[0] for p in given_points)
    x = np.array(given_points, dtype=float)
    width = x.max(0) - x.min(0)
    x = (x - x.min(0)) / np.where(width == 0, 1, width)
    for k in range(1, len(order)):
        near = [min(math.dist(x[i], x[j]) for j in order[:k]) for i in order[k:]]
        assert near[0] == pytest.approx(max(near))


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=8))
def test_the_hypervolume_is_the_share_of_a_grid_that_is_dominated(given_points: list[tuple[int, int, int]]) -> None:
    cells = sum(
        any(p[0] > x and p[1] > y and p[2] > z for p in given_points)
        for x in range(4)
        for y in range(4)
        for z in range(4)
    )
    assert pareto.hypervolume(given_points, (0, 0, 0)) == pytest.approx(cells)


def test_trials_without_a_value_of_the_first_objective_stop_in_the_order_of_their_reports() -> None:
    """Each of them had counted as the best of them when it reported, so that none was ever stopped."""
    feed = Feed(MOASHAScheduler(reduction_factor=2), context(objectives=TWO))
    for number in range(4):
        feed.start()
        stopped = feed.report(number, 1, -math.inf, {"size": float(number)})
        assert bool(stopped) == (number > 0)
    assert "it has no finite value of m, and trials that have one come first" in stopped[0].reason


@given(seed=st.integers(0, 10**6), eta=st.sampled_from([2, 3, 4]), digits=st.sampled_from([1, 6]))
def test_with_one_objective_it_is_asha(seed: int, eta: int, digits: int) -> None:
    rng = random.Random(seed)
    one, other = (
        Feed(ASHAScheduler(reduction_factor=eta), context()),
        Feed(MOASHAScheduler(reduction_factor=eta), context()),
    )
    ended: set[int] = set()
    for _ in range(30):
        one.start()
        other.start()
    for t in range(1, 10):
        for number in rng.sample(range(30), 30):
            if number in ended:
                continue
            value = round(rng.random(), digits)
            first, second = one.report(number, t, value), other.report(number, t, value)
            assert [type(d) for d in first] == [type(d) for d in second]
            if first:
                ended.add(number)
                one.take(first[0])
                other.take(second[0])
    assert ended


TWO = (Objective("m", "max"), Objective("size", "min"))


def test_the_reason_has_the_names_of_the_metrics_as_they_are() -> None:
    """The reason named a metric "both" as "all" if there were three objectives."""
    three = (Objective("m", "max"), Objective("both", "min"), Objective("size", "min"))
    feed = Feed(MOASHAScheduler(reduction_factor=2), context(objectives=three))
    for number, values in enumerate(((0.9, 9.0, 9.0), (0.1, 1.0, 1.0))):
        feed.start()
        decisions = feed.report(number, 1, values[0], {"both": values[1], "size": values[2]})
    assert "both 1, size 1: no trial is better in all, but" in decisions[0].reason


def test_a_rung_keeps_the_front_and_says_why_others_are_stopped() -> None:
    feed = Feed(MOASHAScheduler(reduction_factor=2), context(objectives=TWO))
    for _ in range(6):
        feed.start()
    assert feed.report(0, 1, 0.9, {"size": 9.0}) == []
    [beside] = feed.report(1, 1, 0.1, {"size": 1.0})
    assert "no trial is better in both, but those that continue cover the front better; rank 2 of 2" in beside.reason
    [stopped] = feed.report(2, 1, 0.05, {"size": 8.0})
    assert isinstance(stopped, Stop)
    assert "m 0.05, size 8: 1 trial is at least as good in m and size and better in one; rank 3 of 3" in stopped.reason


def slow_decision(entries: list[tuple[float, ...]], eta: int) -> bool:
    """Say whether the last entry is stopped, straight from the definition."""
    ranked: list[int] = []
    for front in slow_fronts(entries):
        ranked += [front[i] for i in pareto.epsilon_net([entries[i] for i in front])]
    top = {entries[i] for i in ranked[: max(1, len(entries) // eta)]}
    return entries[-1] not in top


@given(seed=st.integers(0, 10**6), eta=st.sampled_from([2, 3]))
def test_decisions_follow_the_definition(seed: int, eta: int) -> None:
    rng = random.Random(seed)
    feed = Feed(MOASHAScheduler(reduction_factor=eta), context(objectives=TWO))
    entries: list[tuple[float, ...]] = []
    for number in range(25):
        feed.start()
        value, size = rng.randint(0, 5), rng.randint(0, 5)
        entries.append((float(value), -float(size)))
        decided = feed.report(number, 1, float(value), {"size": float(size)})
        assert bool(decided) == slow_decision(entries, eta)


@pytest.mark.parametrize("reported", [{}, {"size": math.nan}])
def test_an_objective_that_was_not_reported_counts_as_the_worst(reported: dict[str, float]) -> None:
    feed = Feed(MOASHAScheduler(reduction_factor=2), context(objectives=TWO))
    for _ in range(3):
        feed.start()
    feed.report(0, 1, 0.5, {"size": 3.0})
    [stopped] = feed.report(1, 1, 0.4, reported)
    assert isinstance(stopped, Stop)
    assert "1 trial is at least as good in m and size and better in one" in stopped.reason


def curve(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    for step in range((checkpoint or 0) + 1, 28):
        yield Step({"loss": config["x"] + 1 / step, "size": 1 - config["x"] + config["waste"]}, checkpoint=step)


def test_a_search_with_two_objectives_stops_what_is_dominated_and_keeps_the_whole_front() -> None:
    space = {"x": tuner.uniform(0, 1), "waste": tuner.uniform(0, 1)}
    known = {"metric": ["loss", "size"], "mode": ["min", "min"], "num_samples": 60, "max_t": 27, "search_alg": "random"}
    found = simulate(curve, space, scheduler={"type": "moasha", "reduction_factor": 2}, **known)  # type: ignore[arg-type]
    assert len(found.history) < 0.5 * 60 * 27
    finished = [c for t, c in zip(found.trials, found.configs, strict=True) if t.state is TrialState.COMPLETED]
    stopped = [c for t, c in zip(found.trials, found.configs, strict=True) if t.state is TrialState.STOPPED]
    assert np.mean([c["waste"] for c in finished]) < 0.7 * np.mean([c["waste"] for c in stopped])
    assert max(c["x"] for c in finished) - min(c["x"] for c in finished) > 0.5, "both ends of the front are trained"


@pytest.mark.parametrize("scheduler", ["asha", "median", "hyperband", "freeze_thaw"])
def test_schedulers_for_one_objective_refuse_several_and_name_the_one_that_takes_them(scheduler: str) -> None:
    with pytest.raises(SpecError, match="supports only one objective; use moasha to stop trials early by several"):
        simulate(
            curve,
            {"x": tuner.uniform(0, 1), "waste": tuner.uniform(0, 1)},
            metric=["loss", "size"],
            mode=["min", "min"],
            num_samples=4,
            max_t=9,
            scheduler=scheduler,
        )
