"""Lineage and schedules: from the database, as from the scheduler that made them; through Python, the command and REST."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import tuner
from tests.schedulers.test_pbt import toy
from tests.store.examples import T0, a_report, a_spec, begin
from tuner.api import create_app
from tuner.cli.commands import app
from tuner.domain.batch import Batch
from tuner.domain.events import CheckpointInfo, SegmentEnded
from tuner.domain.experiment import Objective, Spec
from tuner.domain.keys import trial_id
from tuner.domain.states import ExperimentState, SegmentState
from tuner.domain.trial import Segment
from tuner.driver.virtual import Simulation, Step, simulate
from tuner.errors import NotFound
from tuner.experiment.analysis import lineage
from tuner.experiment.operations import usecases
from tuner.schedulers import PopulationBasedTraining
from tuner.sdk.result import Result
from tuner.settings import Settings
from tuner.space import Space
from tuner.store import ExperimentRecord, Store

SPACE = {"opt": {"h0": tuner.uniform(0.0, 1.0)}, "h1": tuner.uniform(0.0, 1.0)}


def nested(config: dict[str, Any], checkpoint: Any) -> Any:
    return toy({"h0": config["opt"]["h0"], "h1": config["h1"]}, checkpoint)


def overfitted(config: dict[str, Any], checkpoint: Any) -> Any:
    """Yield the steps of `nested`; after iteration 30, the values are bad."""
    theta, iteration = checkpoint or (None, 0)
    for step in nested(config, theta):
        iteration += 1
        loss = 100.0 if iteration > 30 else 0.0
        yield Step(metrics={"q": step.metrics["q"] - loss}, checkpoint=(step.checkpoint, iteration))


def population(
    store: Store, evaluate: Callable[..., Any] = nested, **options: Any
) -> tuple[ExperimentRecord, Simulation, PopulationBasedTraining]:
    """Simulate a PBT search and write its log to the database, as a driver would have committed it."""
    scheduler = PopulationBasedTraining(perturbation_interval=4, quantile_fraction=0.25, **options)
    run = simulate(evaluate, SPACE, metric="q", mode="max", num_samples=6, scheduler=scheduler, max_t=60, seed=3)
    space = Space.from_python(SPACE).to_json()
    spec = Spec(name="pbt", space=space, objectives=(Objective("q", "max"),), entrypoint="module:train", seed=3)
    made = store.experiments.create(spec, now=T0)
    epoch = store.drivers.claim(made.id, "driver", 60.0, T0)
    assert run.best_trial is not None
    saved = run.best_trial.best_checkpoint(spec.objective)
    best = {"trial_number": run.best_trial.number, "value": run.best_value, "iteration": run.best_trial.best_iteration}
    summary = {"best": {**best, "params": run.best_trial.params, "checkpoint_id": saved.id if saved else None}}
    store.drivers.commit(
        made.id, epoch, Batch(log=run.log, trials=run.trials, state=ExperimentState.COMPLETED, summary=summary), T0
    )
    return store.experiments.get(made.public_id), run, scheduler


@pytest.mark.parametrize("synch", [False, True])
def test_a_schedule_is_that_of_the_scheduler(sqlite_store: Store, synch: bool) -> None:
    made, run, scheduler = population(sqlite_store, synch=synch)
    lengths = set()
    for trial in run.trials:
        found = usecases.schedule(sqlite_store, trial_id(made.public_id, trial.number))
        assert found == scheduler.schedule_of(trial.number)
        assert found == usecases.schedule(sqlite_store, made.public_id, trial.number)
        lengths.add(len(found))
    assert max(lengths) > 2


def test_training_anew_with_the_winners_schedule_repeats_what_was_found(sqlite_store: Store) -> None:
    made, run, _ = population(sqlite_store)
    result = Result.load(sqlite_store, made.public_id)
    schedule = result.schedule()
    assert len(schedule) > 1
    assert run.best_trial is not None
    best = next(row for row in run.history if row[3]["q"] == run.best_value)
    theta: Any = None
    for entry, until in zip(schedule, [*(e["iteration"] for e in schedule[1:]), best[2]], strict=True):
        steps = nested(entry["config"], theta)
        for _ in range(until - entry["iteration"]):
            step = next(steps)
            theta = step.checkpoint
    assert step.metrics["q"] == result.best_value
    assert [entry["params"] for entry in schedule] == [
        {"opt/h0": e["config"]["opt"]["h0"], "h1": e["config"]["h1"]} for e in schedule
    ]


def test_the_lineage_of_a_trials_best_value_ends_with_its_configuration(sqlite_store: Store) -> None:
    made, run, _ = population(sqlite_store, overfitted)
    earlier = 0
    for trial in run.trials:
        public = trial_id(made.public_id, trial.number)
        record = sqlite_store.trials.get(public)
        best = usecases.trial_lineage(sqlite_store, public, "best")
        last = best[-1]
        assert (last.trial, last.end_iteration) == (trial.number, record.best_iteration)
        assert last.segment.start_iteration < last.end_iteration
        assert last.segment.params == record.best_params
        earlier += last.segment.ordinal < len(trial.segments)
    assert earlier
    assert made.best is not None
    winner = trial_id(made.public_id, made.best["trial_number"])
    of_best = lineage.schedule(usecases.trial_lineage(sqlite_store, winner, "best"))
    assert of_best == usecases.schedule(sqlite_store, made.public_id)


def test_a_lineage_is_a_chain_without_gaps(sqlite_store: Store) -> None:
    made, run, _ = population(sqlite_store)
    for trial in run.trials:
        links = usecases.trial_lineage(sqlite_store, trial_id(made.public_id, trial.number))
        first, last = links[0], links[-1]
        assert (first.segment.cause, first.segment.start_iteration, first.segment.source_checkpoint) == (
            "start",
            0,
            None,
        )
        assert (last.trial, last.segment.ordinal, last.end_iteration) == (
            trial.number,
            len(trial.segments),
            trial.iteration,
        )
        for before, after in pairwise(links):
            assert after.segment.source_trial == before.trial
            assert after.segment.start_iteration == before.end_iteration
            assert {
                **before.segment.params,
                **{n: new for n, (_, new) in after.changes.items()},
            } == after.segment.params
            assert all(before.segment.params[n] == old for n, (old, _) in after.changes.items())


def test_a_retry_from_the_beginning_begins_a_lineage_and_one_from_a_checkpoint_goes_on(sqlite_store: Store) -> None:
    made, epoch, [trial] = begin(sqlite_store)
    public = trial_id(made.public_id, 0)
    info = CheckpointInfo(id="ckp_1", uri="memory:", step=2)
    trial.segments[0].state, trial.iteration = SegmentState.LEFT, 2
    trial.segments += [
        Segment(2, "retry", {"lr": 0.01}, 0, None, opened_at=T0),
        Segment(3, "retry", {"lr": 0.01}, 2, info, opened_at=T0),
    ]
    report = a_report(0, 2, segment=2)
    log = [
        (4, SegmentEnded(time=T0 + 2, trial=0, segment=1, outcome="failed")),
        (5, dataclasses.replace(report, checkpoint=info, time=T0)),
    ]
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=log, trials=[trial]), T0)
    links = usecases.trial_lineage(sqlite_store, public)
    assert [(link.segment.ordinal, link.segment.cause, link.end_iteration) for link in links] == [
        (2, "retry", 2),
        (3, "retry", 2),
    ]
    assert lineage.schedule(links) == [{"iteration": 0, "params": {"lr": 0.01}, "trial": 0}]


def test_the_best_value_belongs_to_the_segment_that_reached_it_and_not_to_a_retry_that_is_still_behind(
    sqlite_store: Store,
) -> None:
    made, epoch, [trial] = begin(sqlite_store)
    trial.segments[0].state = SegmentState.FAILED
    trial.segments.append(Segment(2, "retry", {"lr": 0.01}, 1, None, opened_at=T0))
    trial.iteration, trial.best_value, trial.best_iteration = 2, 0.04, 4
    log = [
        *((seq, a_report(0, number)) for seq, number in enumerate(range(1, 5), 4)),
        (8, SegmentEnded(time=T0 + 6, trial=0, segment=1, outcome="failed")),
        (9, a_report(0, 2, segment=2)),
    ]
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=log, trials=[trial]), T0)
    place = lineage.best_of_trial(sqlite_store, trial_id(made.public_id, 0))
    assert place == lineage.Place(trial=0, ordinal=1, iteration=4)


def test_what_has_not_begun_has_none(sqlite_store: Store) -> None:
    made = sqlite_store.experiments.create(a_spec(), now=T0)
    assert usecases.schedule(sqlite_store, made.public_id) == []
    result = Result.load(sqlite_store, made.public_id)
    assert result.schedule() == []
    with pytest.raises(IndexError):
        result.schedule(0)
    for name in ("trl_x", "exp_x"):
        with pytest.raises(NotFound):
            usecases.schedule(sqlite_store, name)


def test_the_command_prints_it_as_json(sqlite_store: Store, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _, scheduler = population(sqlite_store)
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    done = CliRunner().invoke(app, ["schedule", made.public_id, "2"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == scheduler.schedule_of(2)
    best = CliRunner().invoke(app, ["schedule", made.public_id])
    assert json.loads(best.stdout) == usecases.schedule(sqlite_store, made.public_id)


async def test_rest(sqlite_store: Store, tmp_path: Path) -> None:
    made, _, scheduler = population(sqlite_store)
    api = create_app(Settings(home=tmp_path), sqlite_store)
    transport = httpx.ASGITransport(api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000/api/v1") as client:
        seen = 0
        for number in range(6):
            public = trial_id(made.public_id, number)
            found = (await client.get(f"/trials/{public}/lineage")).json()
            assert (found["trial_id"], found["trial_number"]) == (public, number)
            assert [(e["iteration"], e["params"], e["trial_number"]) for e in found["schedule"]] == [
                (e["iteration"], e["params"], e["trial"]) for e in scheduler.schedule_of(number)
            ]
            last = found["items"][-1]
            assert last["trial_id"] == public
            if last["cause"] == "exploit":
                seen += 1
                donor = found["items"][-2]
                assert last["source_trial_number"] == donor["trial_number"]
                assert last["changes"] == {
                    name: {"before": donor["params"][name], "after": value}
                    for name, value in last["params"].items()
                    if value != donor["params"][name]
                }
        assert seen
        for number in range(6):
            public = trial_id(made.public_id, number)
            at_best = (await client.get(f"/trials/{public}/lineage", params={"at": "best"})).json()
            trial = (await client.get(f"/trials/{public}")).json()
            assert at_best["items"][-1]["end_iteration"] == trial["best_iteration"]
            assert at_best["schedule"][-1]["params"] == trial["best_params"]
        missing = await client.get("/trials/trl_x/lineage")
        assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")
