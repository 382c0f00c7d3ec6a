"""One decision: what the model is shown, which candidates are compared, and which one wins in clear cases."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tuner.schedulers.freeze_thaw.decisions import novelty
from tuner.schedulers.freeze_thaw.decisions.acquisition import DecisionInputs, Winner, choose_next
from tuner.schedulers.freeze_thaw.decisions.novelty import DISTANCES
from tuner.schedulers.freeze_thaw.model.curve_model import Floats, Prior
from tuner.schedulers.freeze_thaw.model.levels import levels
from tuner.schedulers.freeze_thaw.model.results import MAX_ROWS, TOP_TRIALS, Results
from tuner.schedulers.freeze_thaw.model.unit_cube import Cube
from tuner.space import Space, uniform

LEVELS = np.array(levels(1.0, 27.0))  # 1, 2, 3, 5, 8, 12, 18, 27
CUBE = Cube(Space({"a": uniform(0, 1), "b": uniform(0, 1)}))


def place(number: int) -> Floats:
    return np.random.default_rng(number).random(2)


def results_of(curves: dict[int, list[float]], repeats: set[int] | None = None) -> Results:
    """Return results of trials with scores at the first levels."""
    listed: list[tuple[int, int, float | None]] = [
        (trial, level, score) for trial, scores in curves.items() for level, score in enumerate(scores)
    ]
    return Results.of(listed, place, lambda number: number in (repeats or set()))


def ask(results: Results, seed: int = 0, **more: Any) -> Winner | None:
    started = np.array([n for n, new in zip(results.number, results.newest, strict=True) if results.level[new] < 7])
    options: dict[str, Any] = {
        "theta": np.concatenate([np.log([0.5, 0.5, 1.0, 0.3, 1e-3, 1e-6, 0.1]), [0.0]]),
        "best": float(results.best.max()),
        "started": started,
        "held": False,
        "waste": np.zeros(len(more.get("started", started))),
        "running": np.array([], dtype=np.int64),
        "start_cost": 0.0,
        "may_start": False,
        "thaw": 0.0,
        **more,
    }
    inputs = DecisionInputs(results=results, levels=LEVELS, **options)
    return choose_next(inputs, CUBE, place, np.random.default_rng(seed))


# -- what the model is shown


def many(count: int = 600) -> dict[int, list[float]]:
    g = np.random.default_rng(1)
    curves = {n: [float(v) for v in 0.1 * g.random(2)] for n in range(count)}
    for n in range(0, 60, 2):  # the best, with longer curves
        curves[n] = [0.2 * k + 0.001 * n for k in range(6)]
    return curves


def test_the_curves_of_the_best_stay_whole_however_many_others_there_are() -> None:
    results = results_of(many())
    kept = results.thinned(np.random.default_rng(0))
    assert len(kept) == MAX_ROWS
    for slot in results.top(30):
        assert (results.slot[kept] == slot).sum() == 6
    others = np.setdiff1d(results.slot[kept], results.top(TOP_TRIALS))
    assert len(others) > 80, "and of the others there are some"
    assert np.isin(results.newest[others], kept).all(), "with their newest results"


def test_repeats_are_not_shown() -> None:
    repeats = set(range(0, 60, 4))
    few, lots = results_of({n: c for n, c in many().items() if n < 80}, repeats), results_of(many(), repeats)
    for results in (few, lots):
        seen = set(results.number[results.slot[results.thinned(np.random.default_rng(0))]].tolist())
        assert not seen & repeats
        assert not set(results.number[results.top(40)].tolist()) & repeats


def test_the_trial_that_reported_is_always_shown() -> None:
    results = results_of(many())
    for seed in range(5):
        assert results.newest[599] in results.thinned(np.random.default_rng(seed), always=599)


def test_no_trial_is_weighed_of_which_the_model_was_not_told_how_it_went() -> None:
    """All curves are known to be flat, so none promises much. A trial whose results the model is not shown would."""
    flat = {n: [0.0] * 6 + [0.001 * math.sin(n)] for n in range(500)} | {1000: [0.2 * k for k in range(8)]}
    for seed in range(5):
        winner = ask(results_of(flat), seed, thaw=1.0)
        assert winner is not None
        assert winner.forecast.sd < 0.1


def test_where_none_can_be_shown_some_are_weighed_all_the_same() -> None:
    curves = {n: [0.3 * k for k in range(8)] for n in range(400)} | {1000: [0.0]}
    winner = ask(results_of(curves))
    assert winner is not None
    assert winner.trial == 1000


# -- who wins


def test_a_new_trial_is_not_put_off_for_started_ones_that_promise_nothing() -> None:
    flat = {n: [0.001 * n] * 5 for n in range(10)} | {1000: [0.15 * k for k in range(8)]}
    winner = ask(results_of(flat), thaw=1.0, may_start=True)
    assert winner is not None
    assert winner.trial is None


def test_a_started_trial_that_promises_as_much_is_thawed() -> None:
    rising = {n: [0.0, 0.05, 0.1] for n in range(6)} | {
        20: [0.1 * k for k in range(7)],
        21: [0.01 * k for k in range(8)],
    }
    for seed in range(5):
        winner = ask(results_of(rising), seed, thaw=1.0, may_start=True)
        assert winner is not None
        assert winner.trial == 20


def test_a_horizon_within_which_nobody_can_win_is_not_asked_about() -> None:
    """Trial 0 stagnates at 8, far below the best score. Only much later could it be better, whatever horizon is drawn."""
    curves = {0: [0.0] * 5, 1: [0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0]}
    found = [ask(results_of(curves), seed) for seed in range(40)]
    assert min(winner.forecast.until for winner in found if winner is not None) >= 14


def test_the_winner_and_who_comes_next_are_shown_as_they_were_weighed() -> None:
    results = results_of({n: [0.1 * n, 0.1 * n + 0.05] for n in range(6)} | {9: [0.2 * k for k in range(8)]})
    costs = {"waste": np.full(6, 4.0), "start_cost": 4.0}
    for seed in range(20):
        found = ask(results, seed, may_start=True, thaw=0.5, **costs)
        assert found is not None
        assert found.rival is not None
        assert found.new
        rival = found.rival[1]
        for forecast in (found.forecast, rival):
            assert 0 < forecast.adjusted < forecast.chance
        if found.thaw:
            assert found.goal == pytest.approx(1.4)
            new_one_behind = found.trial is not None and found.rival[0] is None
            assert found.forecast.adjusted * (10 if new_one_behind else 1) >= rival.adjusted
            assert found.trial is not None or found.forecast.adjusted > 10 * rival.adjusted
        else:
            assert found.goal > 1.4
            assert found.forecast.chance < 1
            assert found.forecast.adjusted >= rival.adjusted


def test_what_it_expects_to_gain_is_in_units_of_the_score() -> None:
    curves = {0: [0.1 * k for k in range(7)], 1: [0.01 * k for k in range(8)]}
    small, large = (
        ask(results_of({n: [unit * s for s in c] for n, c in curves.items()}), thaw=1.0) for unit in (1, 1000)
    )
    assert small is not None
    assert large is not None
    assert large.forecast.chance == pytest.approx(1000 * small.forecast.chance, rel=1e-6)
    assert small.forecast.chance == pytest.approx(small.forecast.mean - small.goal, abs=2 * small.forecast.sd)


def test_new_trials_keep_away_from_where_they_would_be_repeats() -> None:
    results = results_of({n: [0.1 * n, 0.2 * n] for n in range(6)} | {9: [0.2 * k for k in range(8)]})
    cells = np.where(DISTANCES < 0.3, 0.99, 0.0)

    def nearest(**more: Any) -> list[float]:
        found = [ask(results, seed, may_start=True, started=np.array([], dtype=np.int64), **more) for seed in range(8)]
        points = [winner.point for winner in found if winner is not None and winner.point is not None]
        assert len(points) == 8
        return [float(np.sqrt(((results.points - point) ** 2).sum(1).min())) for point in points]

    assert np.median(nearest()) < 0.25
    assert min(nearest(repeats=cells)) > 0.29


def test_new_trials_are_no_near_copies_of_tried_or_running_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near copies of the best trial are the most likely to improve a little, if close neighbors are alike."""
    results = results_of({n: [0.1 * n, 0.2 * n] for n in range(6)} | {9: [0.2 * k for k in range(8)]})
    nobody, running = np.array([], dtype=np.int64), np.array([1000])
    known = np.concatenate([results.points, place(1000)[None]])
    alike = np.concatenate([np.log([0.5, 0.5, 1.0, 0.3, 1e-3, 1.0, 0.1]), [0.0]])

    def nearest() -> Floats:
        more = {"may_start": True, "started": nobody, "running": running, "theta": alike}
        found = [ask(results, seed, **more) for seed in range(8)]
        points = np.array([winner.point for winner in found if winner is not None])
        distances: Floats = np.sqrt(((points[:, None] - known) ** 2).sum(2).min(1))
        return distances

    assert len(nearest()) == 8
    assert nearest().min() > 0.08
    monkeypatch.setattr(novelty, "CROWDED", 1e-9)
    assert np.median(nearest()) < 0.03


def test_the_best_of_a_few_points_is_no_end_of_a_climb() -> None:
    """Such points are not on an edge, and vary more from one draw to the next than the ends of climbs."""
    results = results_of({n: [0.1 * n, 0.2 * n] for n in range(6)} | {9: [0.2 * k for k in range(8)]})
    nobody = np.array([], dtype=np.int64)

    def points(few: bool) -> Floats:
        found = [ask(results, seed, may_start=True, started=nobody, few=few) for seed in range(12)]
        return np.array([winner.point for winner in found if winner is not None])

    few, climbed = points(True), points(False)
    assert len(few) == len(climbed) == 12
    assert ((few > 0) & (few < 1)).all()
    assert ((climbed == 0) | (climbed == 1)).any()
    assert few.std(0).sum() > 1.5 * climbed.std(0).sum()


def test_priors_have_a_place_for_everything() -> None:
    prior = Prior()
    assert len(prior.mean(2)) == len(prior.sd(2)) == len(prior.bounds(2)) == 2 + 6
    assert all(low <= m <= high for m, (low, high) in zip(prior.mean(2), prior.bounds(2), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_the_same_question_has_the_same_answer(seed: int) -> None:
    results = results_of(many(100))
    first, again = (ask(results, seed, may_start=True) for _ in range(2))
    assert first is not None
    assert again is not None
    if first.point is None:
        assert first == again
    else:
        assert replace(first, point=None) == replace(again, point=None)
        assert np.array_equal(first.point, again.point)  # type: ignore[arg-type]
