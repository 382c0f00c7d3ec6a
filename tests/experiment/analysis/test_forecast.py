"""Forecasts of a stored experiment: when it ends, what it will have found, and what more training would bring."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.api.conftest import app as app
from tests.api.conftest import client as client
from tests.api.conftest import poked as poked
from tests.store.examples import T0
from tests.web.searches import Curve, Search, digits, learning
from tuner.domain.batch import Batch
from tuner.domain.experiment import Limits, Mode, Objective, Scaling
from tuner.driver.assemble import assemble
from tuner.experiment.analysis.forecast import End, Forecast, forecast
from tuner.space import Space
from tuner.store import Store

FOUR = Limits(max_concurrent_trials=4, max_failures=1)


def search(store: Store, saves: bool = True, **fields: Any) -> Search:
    spec = digits(**{"limits": FOUR, **fields})
    core = assemble(spec, Space.from_json(spec.space))
    return Search(store, replace(spec, resolved={"scheduler": core.scheduler.resolved()}), start=T0, saves=saves)


def told(store: Store, of: Search, hours: float = 1.0) -> Forecast:
    return forecast(store, store.experiments.get(of.public_id), hours)


SCHEDULERS: dict[str, dict[str, Any]] = {
    "asha": {"trials": 60},
    "fifo": {"scheduler": {"type": "fifo"}, "max_t": 27, "trials": 24},
    "freeze_thaw": {"scheduler": {"type": "freeze_thaw"}, "search": {"type": "auto"}, "max_t": 27, "trials": 40},
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_end_and_the_best_value_mostly_come_out_as_forecast(name: str, sqlite_store: Store) -> None:
    """A single search may be off for a while. `benchmarks/forecast.py` shows how often intervals are right."""
    made = search(sqlite_store, **SCHEDULERS[name])
    forecasts: list[tuple[float, Forecast]] = []
    while True:
        made.advance(25, at_once=25)
        record = sqlite_store.experiments.get(made.public_id)
        if record.state.ended:
            break
        forecasts.append((made.now, told(sqlite_store, made)))
    ends = [(made.now - now, found.end.seconds) for now, found in forecasts if found.end is not None]
    limits = {found.end.limit for _, found in forecasts if found.end is not None}
    assert limits == {"budget" if name == "freeze_thaw" else "num_samples"}
    assert len(ends) >= 4
    assert sum(end.low <= came <= end.high for came, end in ends) > len(ends) / 3
    assert record.best is not None
    bests = [found.best for _, found in forecasts if found.best is not None]
    assert len(bests) >= 3
    assert sum(best.low <= record.best["value"] <= best.high for best in bests) > len(bests) / 3
    assert told(sqlite_store, made).summary == "it has ended"


def test_training_that_is_repeated_without_checkpoints_spends_the_budget(sqlite_store: Store) -> None:
    """Seconds before its end, such a search had "about 7 minutes" left, since trials that start over had lost iterations."""
    made = search(sqlite_store, **SCHEDULERS["freeze_thaw"], saves=False)
    expected: dict[float, float] = {}
    repeated = 0
    while True:
        made.advance(25, at_once=25)
        record = sqlite_store.experiments.get(made.public_id)
        if record.state.ended:
            break
        found = told(sqlite_store, made)
        end = found.end
        assert end is not None
        assert end.limit == "budget"
        expected[made.now] = end.seconds.expected
        _, searched = sqlite_store.trials.training(record.id)
        repeated = searched.reports - searched.iterations
        # the scheduler counts no report with a NaN, which ends its trial
        not_scored = sum(trial.diverged for trial in made.core.trials)
        assert searched.reports == made.core.scheduler.state.spent + not_scored
        assert found.budget_spent == record.budget_spent == min(made.core.scheduler.state.spent / (8 * 27), 1)
    assert repeated > 50, "trials started over"
    left = [made.now - now for now in expected]
    assert left[-1] < 60
    for actual, forecast_s in list(zip(left, expected.values(), strict=True))[-4:]:
        assert forecast_s < actual + 5, "it does not end much earlier than forecast"


def test_fifo_trains_trials_to_the_end_however_often_they_start_over(sqlite_store: Store) -> None:
    """A trial that starts over has all of its training ahead, and its reports so far say how long each takes."""
    made = search(sqlite_store, **SCHEDULERS["fifo"], saves=False)
    made.advance(100, at_once=25)
    record = sqlite_store.experiments.get(made.public_id)
    whole = told(sqlite_store, made).end
    every, _ = sqlite_store.trials.training(record.id)
    assert whole is not None
    for trial in made.core.trials:
        trial.iteration = 0
    sqlite_store.drivers.commit(record.id, made.epoch, Batch(log=[], trials=list(made.core.trials)), made.now)
    again = told(sqlite_store, made).end
    assert again is not None
    full = 27 * 24
    assert again.seconds.expected / whole.seconds.expected == pytest.approx(full / (full - every.iterations))


@pytest.mark.parametrize("name", ["asha", "fifo"])
@pytest.mark.parametrize("kind", ["grid", "random"])
def test_a_grid_ends_after_all_of_its_trials(name: str, kind: str, sqlite_store: Store) -> None:
    """`num_samples` says how often the grid is run."""
    point = {"lr": 0.002, "width": 32}
    options: dict[str, Any] = {**SCHEDULERS[name], "points_to_evaluate": (point,), "name": name}
    width = {"type": "choice", "categories": [16, 32, 64]}
    lr = {"type": "choice" if kind == "grid" else "grid_search"}
    lr |= {"categories" if kind == "grid" else "values": [0.001 * n for n in range(1, 5)]}
    space = {"lr": lr, "width": width}
    trials = 1 + 2 * (12 if kind == "grid" else 4)

    def end(**fields: Any) -> End | None:
        spec = digits(**{"limits": FOUR, **options, **fields})
        core = assemble(spec, Space.from_json(spec.space))
        spec = replace(spec, resolved={"scheduler": core.scheduler.resolved()})
        made = Search(sqlite_store, spec, start=T0, curve=lambda *_: {"accuracy": 0.5, "loss": 0.5})
        made.advance(200, at_once=25)
        return told(sqlite_store, made).end

    whole = end(space=space, trials=2, search={"type": kind})
    assert whole is not None
    assert whole == end(trials=trials)


def test_a_budget_of_time_and_one_of_gpu_hours_end_it_first(sqlite_store: Store) -> None:
    limits = Limits(max_concurrent_trials=4, time_budget_s=300.0, max_failures=1)
    made = search(sqlite_store, trials=500, limits=limits)
    made.advance(200, at_once=50)
    found = told(sqlite_store, made)
    assert found.end is not None
    assert found.end.limit == "time_budget_s"
    ran = made.now - T0
    assert found.end.seconds.expected == pytest.approx(300.0 - ran, abs=3.0)
    assert "the time budget is spent" in found.summary

    limits = Limits(max_concurrent_trials=4, gpu_hours=1.0, max_failures=1)
    scaling = Scaling(num_workers=2, use_gpu=True)
    made = search(sqlite_store, trials=5000, limits=limits, scaling=scaling, name="on GPUs")
    made.advance(600, at_once=100)
    found = told(sqlite_store, made)
    assert found.end is not None
    assert found.end.limit == "gpu_hours"
    used = sqlite_store.experiments.get(made.public_id).gpu_hours
    # Four trials of two GPUs use up an hour in 450 s.
    assert found.end.seconds.low < (1.0 - used) * 450 * 1.3
    assert found.end.seconds.high > (1.0 - used) * 450 * 0.9
    assert found.more is not None
    assert found.more.gpu_hours == pytest.approx(1.0, rel=0.01) or found.more.gpu_hours == pytest.approx(
        2 * used, rel=0.1
    )
    assert "GPU hours of training would improve" in found.summary


def test_more_hours_promise_more(sqlite_store: Store) -> None:
    made = search(sqlite_store, trials=120)
    made.advance(300, at_once=50)
    little, much = told(sqlite_store, made, 0.005).more, told(sqlite_store, made, 0.02).more
    assert little is not None
    assert much is not None
    assert little.gpu_hours is None
    assert little.seconds == pytest.approx(18.0)
    assert little.gain.mean < much.gain.mean
    longest = told(sqlite_store, made, 1000.0).more
    assert longest is not None
    assert longest.seconds < 3 * (made.now - T0), "at most twice the training so far"
    assert "(more training than that cannot be forecast yet)" in told(sqlite_store, made, 1000.0).summary
    assert "cannot be forecast yet" not in told(sqlite_store, made, 0.005).summary


def test_a_gain_past_the_end_of_the_scale_is_only_a_bound(sqlite_store: Store) -> None:
    """After three trials, the demo's page said that an accuracy of .989 would improve by .222 on average."""
    made = search(sqlite_store, trials=120)
    said = {"can": 0, "would": 0}
    for _ in range(40):
        made.advance(5)
        record = sqlite_store.experiments.get(made.public_id)
        found = told(sqlite_store, made)
        if found.more is None or record.best is None:
            continue
        rest = 1 - record.best["value"]
        assert found.more.gain.high <= rest + 1e-9
        bound = found.more.gain.mean >= rest - 1e-9
        said["can" if bound else "would"] += 1
        assert ("How much accuracy would improve is not known yet" in found.summary) is bound
        assert ("Accuracy would improve by" in found.summary) is not bound
        assert (
            f"would improve the best accuracy with a probability of {100 * found.more.gain.chance:.0f} %"
            in found.summary
        )
    assert min(said.values()) > 0


def test_a_loss_is_forecast_downwards(sqlite_store: Store) -> None:
    made = search(sqlite_store, trials=120, objectives=(Objective("loss", "min"),))
    made.advance(300, at_once=50)
    found = told(sqlite_store, made)
    record = sqlite_store.experiments.get(made.public_id)
    assert found.best is not None
    assert record.best is not None
    assert found.best.low <= found.best.expected <= found.best.high <= record.best["value"]
    assert found.more is not None
    assert found.more.gain.mean > 0


@pytest.mark.parametrize("repeats", [0, 4])
def test_with_repeats_the_forecast_is_of_single_runs(repeats: int, sqlite_store: Store) -> None:
    """The best value that the page shows is then a mean over several runs, which differs from the one in the forecast."""
    made = search(sqlite_store, trials=120, limits=replace(FOUR, repeats=repeats))
    made.advance(300, at_once=50)
    found = told(sqlite_store, made)
    assert found.best is not None
    assert ("The best accuracy of a single run will then be about" in found.summary) is (repeats > 0)


def test_no_best_value_is_forecast_past_the_end_of_the_scale(sqlite_store: Store) -> None:
    """After a third of a PBT run whose loss had fallen from 4 to 0.15, the page said: "The best loss will then be about -0"."""

    def falling(number: int, ordinal: int, params: Mapping[str, Any], iteration: int) -> dict[str, float]:
        return {"loss": 4 * 0.92**iteration}

    spec = digits(objectives=(Objective("loss", "min"),), scheduler={"type": "fifo"}, max_t=40, trials=6, limits=FOUR)
    made = Search(sqlite_store, spec, start=T0, curve=falling)
    said = []
    for _ in range(30):
        made.advance(8)
        found = told(sqlite_store, made)
        said.append(found.summary)
        assert "-0" not in found.summary
        if found.best is not None:
            assert found.best.expected > 0
    assert any("it would pass the end of the scale" in one for one in said)


def test_an_interval_that_reaches_the_end_of_the_scale_is_said_to_be_open(sqlite_store: Store) -> None:
    """With one trial left, the page said that the best loss would be 0 to .0878, and .0878 was the present one."""

    def percent(number: int, ordinal: int, params: Mapping[str, Any], iteration: int) -> Mapping[str, float] | None:
        found = learning(number, ordinal, params, iteration)
        return found and {"accuracy": 100 * found["accuracy"], "loss": found["loss"]}

    seen = set()
    cases: list[tuple[str, Mode, float, Curve]] = [
        ("loss", "min", 0.0, learning),
        ("accuracy", "max", 1.0, learning),
        ("accuracy", "max", math.inf, percent),
    ]
    for metric, mode, end, curve in cases:
        made = search(sqlite_store, trials=60, objectives=(Objective(metric, mode),), name=f"{metric} to {end}")
        made.curve = curve
        while not sqlite_store.experiments.get(made.public_id).state.ended:
            made.advance(25, at_once=25)
            found = told(sqlite_store, made)
            if found.best is None:
                assert not found.best_is_open
                continue
            better = found.best.low if mode == "min" else found.best.high
            assert found.best_is_open is (better == pytest.approx(end, abs=1e-9))
            sentence = next(one for one in found.summary.split(". ") if one.startswith("The best"))
            assert ("how much better it may become is not known" in sentence) is found.best_is_open
            assert ("in eight of ten cases" in sentence) is not found.best_is_open
            seen.add(found.best_is_open)
    assert seen == {True, False}


def test_the_end_includes_the_start_of_trials_after_a_pause(sqlite_store: Store) -> None:
    made = search(sqlite_store, trials=60)
    made.advance(200, at_once=50)
    record = sqlite_store.experiments.get(made.public_id)
    whole = forecast(sqlite_store, record)
    assert whole.end is not None
    assert whole.end.starting == 0
    assert "start again" not in whole.summary
    newest = sqlite_store.trials.spans(record.id)[-1][0]
    for pauses in ([(newest + 1, None)], [(newest + 1, newest + 50)]):
        found = forecast(sqlite_store, replace(record, pauses=pauses))
        assert found.end is not None
        assert found.end.starting == pytest.approx(1.3), "a cold start of a search by formula"
        assert found.end.seconds.expected == pytest.approx(whole.end.seconds.expected + 1.3)
        assert found.best == whole.best, "nothing is trained while trials start"
        assert "after about 1 s in which trials start again" in found.summary
    again = forecast(sqlite_store, replace(record, pauses=[(newest - 50, newest - 1)]))
    assert again.end is not None
    assert again.end.starting == 0, "a trial has started since"


def test_what_is_not_known_is_said(sqlite_store: Store) -> None:
    made = search(sqlite_store)
    found = told(sqlite_store, made)
    assert (found.end, found.best, found.more) == (None, None, None)
    assert found.summary == "there is no forecast before the first trial has trained for a while"

    made = search(sqlite_store, trials=5000, name="long")
    made.advance(200, at_once=50)
    found = told(sqlite_store, made)
    assert found.end is not None
    assert found.best is None
    assert "less than a third of the expected training" in found.summary

    both = (Objective("accuracy", "max"), Objective("loss", "min"))
    made = search(sqlite_store, name="two", objectives=both, scheduler={"type": "fifo"}, max_t=9)
    made.advance(100, at_once=50)
    found = told(sqlite_store, made)
    assert found.end is not None
    assert (found.best, found.more) == (None, None)
    assert "only for experiments with one objective" in found.summary


async def test_over_rest(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made = search(sqlite_store, trials=120)
    made.advance(300, at_once=50)
    url = f"/api/v1/experiments/{made.public_id}/forecast"
    found = (await client.get(url, params={"hours": 0.01})).json()
    own = told(sqlite_store, made, 0.01)
    assert own.end is not None
    assert own.more is not None
    assert found["metric"] == "accuracy"
    assert found["end"]["limit"] == "num_samples"
    assert found["end"]["reason"] == "the last trial has ended"
    assert found["end"]["seconds"]["high"] == own.end.seconds.high
    assert found["more"]["improvement"] == own.more.gain.mean
    assert found["summary"] == own.summary
    assert found["budget_spent"] is own.budget_spent is None, "ASHA has no budget"
    assert (await client.get(url, params={"hours": 0})).status_code == 422
    assert (await client.get("/api/v1/experiments/exp_x/forecast")).status_code == 404
