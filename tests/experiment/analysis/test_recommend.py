"""Recommend a scheduler from replays of stored experiments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.driver.stored import stored_simulation
from tuner.domain.experiment import Limits, Objective, Spec
from tuner.driver.virtual import Step, simulate
from tuner.experiment.analysis.recommend import Estimate
from tuner.space import Space
from tuner.store import Store

SPACE = Space.from_python({"x": tuner.uniform(0, 1), "late": tuner.uniform(0, 1)})


@pytest.fixture
def home(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Return the database of a home of its own."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.delenv("TUNER_DATABASE_URL", raising=False)
    with Store.open(sqlite_url) as store:
        yield store


def plain(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    for step in range((checkpoint or 0) + 1, 28):
        yield Step({"loss": config["x"] + 1 / step}, checkpoint=step)


def reversing(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    """Yield what is best at first and worst in the end, so that stopping early loses the best trial."""
    for step in range((checkpoint or 0) + 1, 28):
        yield Step({"loss": config["x"] if step < 27 else -5 * config["x"]}, checkpoint=step)


def searched(
    store: Store, name: str, seed: int, evaluate: Any = plain, scheduler: str = "fifo", trials: int = 20
) -> None:
    found = simulate(
        evaluate,
        SPACE,
        metric="loss",
        mode="min",
        num_samples=trials,
        max_t=27,
        scheduler=scheduler,
        search_alg="random",
        seed=seed,
    )
    spec = Spec(
        name=name,
        space=SPACE.to_json(),
        objectives=(Objective("loss", "min"),),
        scheduler={"type": scheduler},
        num_samples=trials,
        max_t=27,
        limits=Limits(max_concurrent_trials=4),
        resolved={"scheduler": {"type": scheduler}},
    )
    stored_simulation(found, spec, store)


def test_it_recommends_what_saves_the_most_and_finds_as_much(home: Store) -> None:
    for seed in range(3):
        searched(home, f"digits-{seed}", seed)
    found = tuner.recommend_scheduler()
    assert found.best is not None
    assert found.best.saved.mean == max(o.saved.mean for o in found.options if o.lost.mean <= 0.05)
    assert found.best.saved.mean > 0.3
    assert found.best.saved.interval is not None
    low, high = found.best.saved.interval
    assert low <= found.best.saved.mean <= high
    assert set(found.best.experiments) == {f"digits-{seed}" for seed in range(3)}
    assert found.best.method in found.summary
    assert "of the training of 3 experiments" in found.summary
    mine = tuner.replay("digits-0", scheduler=found.best.scheduler)
    assert mine.saved > 0


def test_schedulers_that_lose_the_best_trial_are_not_recommended(home: Store) -> None:
    searched(home, "reversing", 0, reversing)
    found = tuner.recommend_scheduler(schedulers=["asha", "median"])
    assert found.best is None
    assert all(option.lost.mean > 0.05 for option in found.options)
    assert "none of 2 schedulers" in found.summary


def test_one_experiment_and_one_scheduler_need_no_list(home: Store) -> None:
    """Each letter of a name was taken for a name."""
    searched(home, "digits", 0)
    listed = tuner.recommend_scheduler(["digits"], schedulers=["asha"])
    assert [option.experiments for option in listed.options] == [("digits",)]
    for one in ("asha", {"type": "asha"}, tuner.ASHAScheduler()):
        assert tuner.recommend_scheduler("digits", schedulers=one).options == listed.options


def test_experiments_that_say_nothing_are_left_out_with_the_reason(home: Store) -> None:
    searched(home, "few", 0, trials=3)
    searched(home, "stopped", 1, scheduler="asha")
    found = tuner.recommend_scheduler(schedulers=["fifo"])
    assert found.options == ()
    assert found.left_out == {
        "few": "the experiment has fewer than 8 trials",
        "stopped": "the experiment's trials were stopped too early to know their later values",
    }
    assert "run one with scheduler='fifo'" in found.summary


def test_an_interval_is_that_of_students_t() -> None:
    found = Estimate.of([0.4, 0.5, 0.6])
    assert found.mean == pytest.approx(0.5)
    assert found.interval == pytest.approx((0.5 - 4.303 * 0.1 / 3**0.5, 0.5 + 4.303 * 0.1 / 3**0.5))
    assert Estimate.of([0.4]).interval is None
