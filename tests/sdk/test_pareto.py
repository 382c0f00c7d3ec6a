"""`Result.pareto_front` and `Result.hypervolume`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner.errors import SpecError
from tuner.sdk.result import Result


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a home of its own."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.delenv("TUNER_DATABASE_URL", raising=False)


def told(values: list[dict[str, float]], **options: Any) -> Result:
    given: dict[str, Any] = {"metric": ["loss", "size"], "mode": ["min", "min"], "search_alg": "random", **options}
    with tuner.create_study({"x": tuner.uniform(0, 1)}, num_samples=len(values), scheduler="fifo", **given) as study:
        for value in values:
            trial = study.ask()
            assert trial is not None
            trial.tell(value)
        return study.result()


def test_the_front_is_what_no_other_trial_is_better_than() -> None:
    result = told(
        [
            {"loss": 1.0, "size": 1.0},
            {"loss": 0.5, "size": 2.0},
            {"loss": 1.5, "size": 1.5},
            {"loss": 0.5, "size": 2.5},
            {"loss": 0.1, "size": 9.0},
        ]
    )
    assert [trial.number for trial in result.pareto_front()] == [0, 1, 4]


def test_constraints_hold_on_the_front() -> None:
    result = told(
        [{"loss": 1.0, "size": 1.0, "ms": 9.0}, {"loss": 2.0, "size": 2.0, "ms": 1.0}, {"loss": 3.0, "size": 1.5}],
        search_alg={"type": "tpe", "constraints": {"ms": {"max": 5}}},
    )
    assert [trial.number for trial in result.pareto_front()] == [1]


def test_with_one_objective_it_is_the_best_trial() -> None:
    result = told([{"loss": 3.0}, {"loss": 1.0}, {"loss": 2.0}], metric="loss", mode="min")
    assert [trial.number for trial in result.pareto_front()] == [1]
    assert result.best_trial is not None
    assert result.best_trial.number == 1


def test_the_hypervolume_grows_with_each_report_that_enlarges_it() -> None:
    result = told(
        [
            {"loss": 4.0, "size": 4.0},
            {"loss": 2.0, "size": 6.0},
            {"loss": 5.0, "size": 5.0},
            {"loss": 20.0, "size": 0.0},
            {"loss": 1.0, "size": 1.0},
        ]
    )
    grown = result.hypervolume({"loss": 10.0, "size": 10.0})
    assert [volume for _, volume in grown] == pytest.approx([36.0, 44.0, 81.0])
    assert grown[0][0] == 0.0
    assert [time for time, _ in grown] == sorted(time for time, _ in grown)
    with pytest.raises(SpecError, match="a value is needed for size"):
        result.hypervolume({"loss": 1.0})


def test_a_metric_called_time_is_an_objective_but_not_the_time_of_a_report() -> None:
    result = told(
        [{"loss": 4.0, "time": 9.0}, {"loss": 2.0, "time": 5.0}, {"loss": 1.0, "time": 1.0}], metric=["loss", "time"]
    )
    grown = result.hypervolume({"loss": 10.0, "time": 10.0})
    assert [volume for _, volume in grown] == pytest.approx([6.0, 40.0, 81.0])
    assert grown[0][0] == 0.0
    assert all(time >= 0 for time, _ in grown)
