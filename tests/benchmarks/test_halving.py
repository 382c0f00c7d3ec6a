"""The methods of successive halving in the benchmark, against the product's schedulers and slow forms of their papers' rules."""

from __future__ import annotations

import itertools
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import halving
from benchmarks.contenders import Setting, played
from benchmarks.halving import Dehb, HyperTune, Known, Pasha, Promotion, Stopping
from benchmarks.learning_curves import Problem
from benchmarks.methods import play
from tests.benchmarks.test_quality import SETTING, problem
from tests.schedulers.driving import Feed, context
from tuner.schedulers.asha import ASHAScheduler
from tuner.space import Space, uniform


def noisy(max_t: int = 27, noise: float = 0.3) -> Problem:
    """Return a problem whose curves cross, over two numbers."""

    def curve(config: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(int(config["x"] * 1e6))
        values = config["x"] + config["y"] ** 2 + noise * rng.normal(size=max_t) / np.arange(1.0, max_t + 1)
        return values, np.arange(1.0, max_t + 1)

    space = Space({"x": uniform(0, 1), "y": uniform(-1, 1)})
    return Problem("made/noisy", "min", max_t, space, float(max_t), 0.0, 1.0, curve)  # type: ignore[arg-type]


LONG = Setting(workers=4, startup=0.0, end=40, curves=Path("/nowhere"))


@pytest.mark.parametrize("name", halving.METHODS)
@pytest.mark.parametrize("mode", ["min", "max"])
def test_every_method_keeps_to_the_time(name: str, mode: str) -> None:
    found = play(f"halving-{name}", problem(mode), 1, SETTING)
    assert 50 < len(found) <= 54, "six full trainings of nine reports, but for what was under way"
    assert max(t for t, _ in found) <= 27


def test_stopping_decides_as_our_asha() -> None:
    known = noisy()
    contender, feed = Stopping(known, 3, LONG), Feed(ASHAScheduler(reduction_factor=3), context("min", max_t=27))
    stopped = 0
    for _ in range(60):
        config, done, report = contender.start()
        number, values = feed.start(), known.curve(config)[0]
        assert done == 0
        for r, value in enumerate(values[:-1], 1):
            decisions, goes_on = feed.report(number, r, value), report(r, value)
            assert goes_on == (not decisions)
            if not goes_on:
                stopped += 1
                feed.take(decisions[0])
                break
    assert 30 < stopped < 60


def crossings(curves: list[list[float]]) -> list[float]:
    """Return the distances as the paper has them: later the same order, before that the other one, before that the same."""
    found = []
    for a, b in itertools.combinations(curves, 2):
        last = min(len(a), len(b)) - 1
        signs = [x > y for x, y in zip(a, b, strict=False)]
        if any(signs[i] == signs[last] != signs[j] for i, j in itertools.combinations(range(last), 2)):
            found.append(abs(a[last] - b[last]))
    return found


def test_the_noise_of_rankings_is_that_of_pasha() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        curves = [list(rng.normal(size=rng.integers(2, 7))) for _ in range(8)]
        expected = crossings(curves)
        assert halving.noise(curves) == pytest.approx(np.percentile(expected, 90) if expected else 0.0)
    assert halving.noise([]) == halving.noise([[1.0, 2.0]]) == 0.0


def test_two_rungs_have_the_same_order_within_epsilon() -> None:
    lower = [(0.9, 1), (0.85, 2), (0.5, 3)]
    assert halving.same_order([1, 2, 3], lower, 0.0)
    assert not halving.same_order([2, 1, 3], lower, 0.01)
    assert halving.same_order([2, 1, 3], lower, 0.06)
    assert not halving.same_order([1, 3, 2], lower, 0.06)


def test_pasha_trains_further_only_while_rankings_change() -> None:
    stable, changing = Pasha(noisy(noise=0.0), 1, LONG, 40), Pasha(noisy(noise=3.0), 1, LONG, 40)
    played(stable.problem, stable, LONG)
    played(changing.problem, changing, LONG)
    assert max(len(t.scores) for t in stable.trials) == 3, "the two lowest rungs agree"
    assert changing.top > 1
    assert len(stable.trials) == len(changing.trials) == 40


def test_promotion_ends_when_nothing_is_left_to_promote() -> None:
    contender = Promotion(noisy(), 1, LONG, 27)
    played(contender.problem, contender, LONG)
    assert [len(rung) for rung in contender.rungs[:2]] == [27, 9]
    assert contender.rungs[3], "the best was trained to the end"
    assert contender.leader().scores[-1] == max(t.scores[-1] for t in contender.trials if len(t.scores) == 27)


def test_the_precision_of_a_level_counts_the_samples_in_which_it_ranks_most_pairs_right() -> None:
    final, rng = np.array([1.0, 2.0, 3.0, 4.0]), np.random.default_rng(0)
    tied = halving.precisions([-final, final, final], final, rng)
    assert tied[1] > 0.9, "the lowest wins ties; the first is level only in samples of a single configuration"
    assert tied[2] == 0
    swapped = halving.precisions([np.array([2.0, 1.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0])], final, rng)
    assert 0.5 < swapped[0] < 1.0, "it also wins the samples without both of its wrong pair"


def test_the_highest_level_predicts_each_configuration_from_the_others() -> None:
    contender, rng = HyperTune(noisy(), 1, LONG), np.random.default_rng(1)
    contender.trials = [Known(rng.random(2), list(rng.normal(size=27))) for _ in range(6)]
    found = contender.predictions(contender.trials)[-1]
    x = np.array([t.point for t in contender.trials])
    y = halving.ranked(np.array([t.scores[-1] for t in contender.trials]))
    for i in range(6):
        others = np.arange(6) != i
        inside = halving.kernel(x[others], x[others]) + halving.NOISE * np.eye(5)
        assert found[i] == pytest.approx(halving.kernel(x[[i]], x[others]) @ np.linalg.solve(inside, y[others]))


def test_brackets_by_data_begin_in_turn_and_then_follow_the_weights() -> None:
    contender = halving.ByRanks(noisy(), 1, LONG)
    firsts = []
    for _ in range(4):
        firsts.append(contender.bracket())
        contender.new()
    assert firsts == [0, 1, 2, 3]
    contender.trials = [Known(np.zeros(2), [float(i)] * 27) for i in range(5)]
    assert {contender.bracket() for _ in range(20)} == {0}, "the lowest level ranks all of them right"


def test_the_populations_of_dehb_only_become_better() -> None:
    known = noisy(noise=0.0)
    contender = Dehb(known, 1, LONG)
    played(known, contender, LONG)
    assert {level: len(p) for level, p in contender.points.items()} == {1: 27, 3: 12, 9: 6, 27: 4}
    first = -np.array([t.scores[0] for t in contender.trials[:27]])
    assert -contender.scores[1].mean() < 0.8 * first.mean()
    for level, points in contender.points.items():
        for point, score in zip(points, contender.scores[level], strict=True):
            if np.isfinite(score):
                config = known.space.config(known.space.from_unit([float(u) for u in point]))
                assert score == -known.curve(config)[0][level - 1]


def test_the_leader_is_trained_to_the_end() -> None:
    args = Namespace(workers=4, samples=27, curves=Path("/nowhere"))
    took, seen, retrained = halving.to_the_end(Pasha, noisy(noise=0.0), 1, args)
    assert took == pytest.approx((27 + 9 * 2 + 24) / 27, abs=0.5), (
        "27 to 1, nine of them to 3, one to 27, and idle workers"
    )
    assert 0 <= retrained <= seen
