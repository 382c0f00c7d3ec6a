"""Test repeats of leading configurations in studies and in `tuner.run`, with a real driver and a real database."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.invariants import check_all
from tuner.domain.states import TrialState
from tuner.driver import asked
from tuner.driver.recording import recording
from tuner.sdk.study import Study
from tuner.store import Store

SPACE = {"x": tuner.uniform(0, 1)}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Return the database of a home of its own."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.delenv("TUNER_DATABASE_URL", raising=False)
    monkeypatch.setattr(asked, "KEEP_S", 0.05)
    with Store.open(sqlite_url) as store:
        yield store


def study_of(**options: Any) -> Study:
    given = {"num_samples": 15, "scheduler": "fifo", "search_alg": "random", "repeats": 3, **options}
    return tuner.create_study(SPACE, metric="loss", mode="min", max_t=2, name="noisy", **given)


def train(study: Study, most: int = 100) -> int:
    """Train the trials that the study hands out, each with luck of its own. Return how many there were."""
    for count in range(most):
        if (trial := study.ask()) is None:
            return count
        luck = random.Random(trial.number).gauss(0, 0.3)
        for epoch in (1, 2):
            trial.report({"loss": trial.config["x"] ** 2 + luck + 1 / epoch})
        trial.tell()
    return most


def test_a_study_hands_out_its_leaders_again_also_after_a_restart(store: Store) -> None:
    with study_of() as study:
        train(study, most=16)
    with study_of() as study:
        assert train(study) == 2
        assert study.state == "completed"
        result = study.result()
    again = [trial for trial in result.trials if trial.repeat_of is not None]
    assert [trial.number for trial in again] == [15, 16, 17]
    assert all(trial.config == result.trials[trial.repeat_of].config for trial in again if trial.repeat_of is not None)
    assert {trial.state for trial in again} == {TrialState.COMPLETED}
    best = result.best
    assert best.repeat_of is None
    assert result.best_runs[0] == best
    values = [trial.best_value or 0.0 for trial in result.best_runs]
    assert result.best_value == pytest.approx(sum(values) / len(values))
    assert result.noise == pytest.approx(0.3, rel=0.8)
    assert result.best_config == best.config
    frame = result.dataframe()
    assert list(frame["repeat_of"].dropna()) == [trial.repeat_of for trial in again]
    assert "runs" in result._repr_html_()
    assert "3 repeats made" in result.reason
    check_all(store, set())


def test_a_search_without_repeats_has_none_of_this() -> None:
    with study_of(repeats=0) as study:
        assert train(study) == 15
        result = study.result()
    assert result.noise is None
    assert result.best_runs == [result.best_trial]
    assert "repeat_of" not in result.dataframe()


def test_replays_and_warm_starts_leave_repeats_out(store: Store) -> None:
    with study_of() as study:
        train(study)
        record = store.experiments.get(study.id)
        numbers = recording(store.drivers.load(record.id)).trials
    assert sorted(numbers) == list(range(15))
    replayed = tuner.replay("noisy", scheduler="asha")
    assert (replayed.recorded.trials, replayed.replayed.trials) == (15, 15)


def noisy(config: dict[str, Any]) -> None:
    luck = random.gauss(0, 0.3)
    for epoch in (1, 2, 3):
        tuner.report({"loss": config["x"] ** 2 + luck + 1 / epoch})


def fixed(config: dict[str, Any]) -> None:
    random.seed(1)
    noisy(config)


def test_runs_of_a_configuration_differ_unless_the_function_seeds_itself() -> None:
    """The random numbers of a trial are seeded by its number, so a repeat draws others."""
    options: dict[str, Any] = {"metric": "loss", "mode": "min", "num_samples": 10, "executor": "local", "verbose": 0}
    differs = tuner.run(noisy, SPACE, scheduler="fifo", search_alg="random", repeats=2, max_t=3, **options)
    first, *others = differs.best_runs
    assert differs.noise
    assert all(trial.best_value != first.best_value for trial in others)
    assert sum(trial.repeat_of is not None for trial in differs.trials) == 2
    same = tuner.run(fixed, SPACE, scheduler="asha", repeats=5, max_t=3, **options)
    assert sum(trial.repeat_of is not None for trial in same.trials) == 1
    assert same.best_value == same.best.best_value
