"""Test that what is known of equal configurations is kept up to date, trial by trial."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.driver.bench import Bench
from tuner.domain.events import Amended, Drawn, Failure
from tuner.domain.states import ExperimentState
from tuner.driver.core.state.repeats import Repeats


def anew(bench: Bench) -> Repeats:
    """Return what a first look at all trials says."""
    state = bench.core.experiment
    found = Repeats(state.spec, state.trials, state.leaderboard)
    for trial in state.trials:
        found.changed(trial.number)
        if trial.repeat_of is not None:
            found.started(trial)
    return found


def said(repeats: Repeats) -> Any:
    best = repeats.best
    return repeats.ranking, repeats.equal, list(repeats.dropped.items()), repeats.summary(), best and best.number


@pytest.mark.parametrize("seed", range(6))
def test_what_is_known_after_each_event_is_what_a_first_look_at_all_trials_says(seed: int) -> None:
    rng = Random(seed)
    often = {"frequency": 1, "interval_s": None}
    points = [{"x": x} for x in (0.1, 0.1, 0.2, 0.3, 0.3)]
    limits = {"max_concurrent_trials": 3, "repeats": 6, "max_failures": 1}
    bench = Bench(num_samples=9, max_t=3, limits=limits, points_to_evaluate=tuple(points), checkpoint=often)
    extended = False
    for _ in range(400):
        open_ones = [t for t in bench.core.trials if t.holds_resources]
        if bench.core.state is not ExperimentState.RUNNING:
            if extended:
                break
            extended = True
            bench.feed(Amended(time=bench.tick(), changes={"num_samples": 12}))
            bench.command("continue")
        elif rng.random() < 0.1:
            bench.command(rng.choice(["pause", "resume", "stop", "retry"]), rng.randrange(len(bench.core.trials)))
        elif open_ones:
            trial = rng.choice(open_ones)
            if not trial.segments[-1].started:
                bench.started(trial.number)
            elif trial.segments[-1].leaving is not None:
                bench.ended(trial.number)
            elif rng.random() < 0.1:
                bench.ended(trial.number, "failed", Failure(kind="user", message=f"no {rng.random()}", rank=0))
            else:
                bench.reported(trial.number, rng.choice([0.1, 0.2, rng.random(), float("nan")]), checkpoint=True)
        if rng.random() < 0.5:  # the driver does not ask after each event, either
            assert said(bench.core.experiment.repeats) == said(anew(bench))
    assert bench.core.experiment.repeats.made >= 2


def test_a_report_lets_only_the_configuration_of_its_trial_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    look = Repeats._look
    monkeypatch.setattr(Repeats, "_look", lambda self, text: (looks.append(text), look(self, text))[1])
    bench = Bench(num_samples=30, max_t=1, limits={"max_concurrent_trials": 1, "repeats": 1})
    for number in range(31):
        bench.started(number)
        bench.reported(number, 0.5 - 0.01 * number)
        bench.ended(number)
    assert len(looks) >= 30
    bench.feed(Amended(time=bench.tick(), changes={"num_samples": 31}))
    bench.command("continue")
    bench.started(31)
    assert bench.core.summary()
    looks.clear()
    bench.reported(31, 0.7)
    assert bench.core.summary()
    assert len(set(looks)) == 1


def test_a_value_that_a_trial_draws_while_it_runs_makes_its_configuration_another_one() -> None:
    limits = {"max_concurrent_trials": 2, "repeats": 1}
    bench = Bench(num_samples=2, max_t=1, points_to_evaluate=({"x": 0.5}, {"x": 0.5}), limits=limits)
    repeats = bench.core.experiment.repeats
    bench.started(0)
    bench.started(1)
    assert repeats.ranking is None
    bench.feed(Drawn(time=bench.tick(), trial=1, segment=1, name="y", value=3))
    for number in (0, 1):
        bench.reported(number, 0.5)
    assert repeats.ranking is not None
    assert [one.runs.number for one in repeats.ranking.estimates] == [0, 1]
    assert said(repeats) == said(anew(bench))
