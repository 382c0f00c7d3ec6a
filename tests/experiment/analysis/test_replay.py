"""Replays of stored experiments: from Python, on the command line and over REST."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import tuner
from tests.api.conftest import app as app
from tests.api.conftest import client as client
from tests.api.conftest import poked as poked
from tests.driver.bench import Bench
from tests.driver.stored import stored, stored_simulation
from tuner.cli.commands import app as command
from tuner.cli.home.replay import lines
from tuner.domain.events import Enqueued
from tuner.domain.experiment import Limits, Objective, Spec
from tuner.domain.states import TrialState
from tuner.driver.virtual import Step, simulate
from tuner.errors import NotFound, SpecError
from tuner.experiment.analysis.replay import replay
from tuner.space import Space
from tuner.store import ExperimentRecord, Store

SPACE = Space.from_python({"x": tuner.uniform(0, 1), "width": tuner.choice([16, 32, 64])})


def curve(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    for step in range((checkpoint or 0) + 1, 28):
        yield Step({"loss": config["x"] + 8 / config["width"] / step}, seconds=1 + config["x"], checkpoint=step)


def recorded(store: Store, scheduler: Any = "fifo", **fields: Any) -> ExperimentRecord:
    own = {"type": scheduler} if isinstance(scheduler, str) else dict(scheduler)
    found = simulate(
        curve, SPACE, metric="loss", mode="min", num_samples=20, max_t=27, scheduler=own, search_alg="random", seed=3
    )
    spec = Spec(
        name="digits",
        space=SPACE.to_json(),
        objectives=(Objective("loss", "min"),),
        scheduler=own,
        num_samples=20,
        max_t=27,
        seed=3,
        limits=Limits(max_concurrent_trials=4),
        resolved={"scheduler": own, "search": {"type": "random"}},
    )
    return stored_simulation(found, replace(spec, **fields), store)


@pytest.fixture
def home(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Return the database of a home of its own."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.delenv("TUNER_DATABASE_URL", raising=False)
    with Store.open(sqlite_url) as store:
        yield store


def test_a_stored_experiment_is_replayed_from_its_log(home: Store) -> None:
    record = recorded(home)
    found = tuner.replay("digits", scheduler=tuner.ASHAScheduler(reduction_factor=3))
    direct = simulate(
        curve,
        SPACE,
        metric="loss",
        mode="min",
        num_samples=20,
        max_t=27,
        search_alg="random",
        seed=3,
        scheduler={"type": "asha", "reduction_factor": 3},
    )
    assert found.replayed.reports == len(direct.history)
    assert found.replayed.best_value == direct.best_value
    assert found.summary.startswith("asha(reduction_factor=3) would have saved")
    assert home.experiments.get(record.public_id) == record, "a replay changes nothing"


@pytest.mark.parametrize("scheduler", ["asha", {"type": "asha", "reduction_factor": 2}, "median", "hyperband"])
def test_without_arguments_the_experiment_is_replayed_as_it_was(sqlite_store: Store, scheduler: Any) -> None:
    found = replay(sqlite_store, recorded(sqlite_store, scheduler))
    assert found.saved == 0
    assert all(t.replayed is not None and t.replayed.iterations == t.recorded.iterations for t in found.trials)


def test_auto_is_what_the_experiment_would_get_now(sqlite_store: Store) -> None:
    found = replay(sqlite_store, recorded(sqlite_store, num_samples=40), scheduler="auto")
    assert found.scheduler["type"] == "freeze_thaw"
    assert found.saved > 0.3


def test_functions_of_users_are_not_called(sqlite_store: Store) -> None:
    record = recorded(sqlite_store, stop={"type": "function", "function": "os:abort"})
    found = replay(sqlite_store, record, scheduler="asha")
    assert "stop functions are not called" in found.notes[-1]
    with pytest.raises(SpecError, match="not called in a replay"):
        replay(sqlite_store, record, scheduler={"type": "asha", "max_t": "os:abort"})
    with pytest.raises(SpecError, match="not called in a replay"):
        replay(sqlite_store, record, search_alg={"type": "optuna", "sampler": "os:abort"})


def test_a_note_says_that_forks_are_left_out(sqlite_store: Store) -> None:
    bench = Bench(num_samples=1, max_t=2, limits={"max_concurrent_trials": 1})
    bench.started(0)
    bench.reported(0, checkpoint=True)
    point = {"params": {"x": 0.5}, "checkpoint": "ckp_0_1_1", "parent": 0}
    bench.feed(Enqueued(time=bench.tick(), points=[point]))
    for number in (0, 1):
        bench.started(number) if number else None
        bench.reported(number)
        bench.ended(number)
    found = replay(sqlite_store, stored(bench, sqlite_store))
    assert found.notes[-1] == "1 trial is left out: it continued from a checkpoint of another trial"
    assert (found.recorded.trials, found.saved) == (1, 0.0)


def test_an_own_scheduler_that_is_not_known_has_to_be_replaced(sqlite_store: Store) -> None:
    record = recorded(sqlite_store, resolved={"scheduler": {"type": "python", "repr": "<mine>"}})
    with pytest.raises(SpecError, match="pass a scheduler to replay it with"):
        replay(sqlite_store, record)
    assert replay(sqlite_store, record, scheduler="asha").saved > 0


def test_a_budget_of_the_experiment_holds_only_for_schedulers_that_count_it(sqlite_store: Store) -> None:
    record = recorded(sqlite_store, limits=Limits(max_concurrent_trials=4, budget=3.0))
    assert replay(sqlite_store, record, scheduler="asha").replayed.trials == 20
    few = replay(sqlite_store, record, scheduler="freeze_thaw")
    assert few.replayed.reports <= 5 * 27


def test_another_scheduler_takes_over_the_length_of_a_full_training(sqlite_store: Store) -> None:
    own = {"type": "asha", "max_t": 27, "grace_period": 1}
    record = recorded(sqlite_store, own, max_t=None)
    found = replay(sqlite_store, record, scheduler={"type": "fifo"})
    ends = {trial.recorded.state for trial in found.trials if trial.replayed and trial.replayed.state == "completed"}
    assert ends == {"completed"}
    assert max(trial.replayed.iterations for trial in found.trials if trial.replayed) == 27
    asha = replay(sqlite_store, record, scheduler={"type": "asha", "reduction_factor": 2})
    whole = [t.replayed for t in asha.trials if t.replayed and t.replayed.iterations == 27]
    assert whole
    assert {one.state for one in whole} == {"completed"}, "none of them would have gone on beyond iteration 27"
    short = replay(sqlite_store, record, scheduler={"type": "asha", "max_t": 9})
    assert max(trial.replayed.iterations for trial in short.trials if trial.replayed) == 9


def test_several_objectives_are_refused(sqlite_store: Store) -> None:
    record = recorded(sqlite_store, objectives=(Objective("loss", "min"), Objective("size", "min")))
    with pytest.raises(SpecError, match="several objectives"):
        replay(sqlite_store, record, scheduler="asha")


def test_a_wrong_name_is_answered_with_the_nearest(home: Store) -> None:
    recorded(home)
    with pytest.raises(NotFound, match="did you mean 'digits'"):
        tuner.replay("digit")


def output(*arguments: str) -> str:
    done = CliRunner().invoke(command, ["replay", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_prints_the_summary_and_what_would_have_ended_otherwise(home: Store) -> None:
    recorded(home)
    printed = output("digits", "asha", "reduction_factor=3").splitlines()
    assert printed[0] == tuner.replay("digits", scheduler={"type": "asha", "reduction_factor": 3}).summary
    assert any("completed at 27" in line and "-> stopped at 1" in line for line in printed)
    found = json.loads(output("digits", "asha", "reduction_factor=3", "--json"))
    assert found["summary"] == printed[0]
    assert len(found["trials"]) == 20


def test_the_command_gives_costs_as_lower_bounds_if_curves_were_cut(sqlite_store: Store) -> None:
    replayed = replay(sqlite_store, recorded(sqlite_store, {"type": "asha", "reduction_factor": 3}), scheduler="fifo")
    assert replayed.censored
    now = replayed.replayed
    printed = list(lines(replayed))
    assert printed[0].startswith(f"fifo would have needed at least {now.reports} reports: {replayed.censored} of 20 ")
    row = next(line for line in printed if line.startswith("replayed"))
    assert f"at least {now.reports} " in row
    assert row.count("at least") == 3
    assert row.endswith(f"not known; {now.best_value:.6g} (trial {now.best_trial}) where the records end")
    assert "at least" not in next(line for line in printed if line.startswith("happened"))


def test_the_command_says_that_the_best_trial_failed(sqlite_store: Store) -> None:
    found = replay(sqlite_store, recorded(sqlite_store), scheduler="fifo")
    failed = [
        replace(t, replayed=replace(t.replayed, state=TrialState.FAILED))
        if t.number == found.replayed.best_trial
        else t
        for t in found.trials
        if t.replayed is not None
    ]
    happened, replayed = (
        next(line for line in lines(replace(found, trials=tuple(failed))) if line.startswith(name))
        for name in ("happened", "replayed")
    )
    assert replayed.endswith(f"(trial {found.replayed.best_trial}, which failed)")
    assert happened.endswith(f"(trial {found.recorded.best_trial})")


def test_the_command_explains_wrong_options(home: Store) -> None:
    recorded(home)
    done = CliRunner().invoke(command, ["replay", "digits", "asha", "reduction_factr=3"])
    assert isinstance(done.exception, SpecError)
    assert "did you mean reduction_factor" in str(done.exception)


async def test_a_replay_over_rest_compares_each_trial(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    record = recorded(sqlite_store)
    url = f"/api/v1/experiments/{record.public_id}/replay"
    answer = await client.post(url, json={"scheduler": {"type": "asha", "reduction_factor": 3}})
    assert answer.status_code == 200, answer.json()
    found, own = answer.json(), replay(sqlite_store, record, scheduler={"type": "asha", "reduction_factor": 3})
    assert found["summary"] == own.summary
    assert found["saved"] == own.saved
    assert found["replayed"]["reports"] == own.replayed.reports
    assert [t["number"] for t in found["trials"]] == list(range(20))
    assert {t["replayed"]["state"] for t in found["trials"]} == {"stopped", "completed"}


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("body", "pointer", "message"),
    [
        ({"schedular": "asha"}, "/schedular", "did you mean scheduler"),
        ({"scheduler": "ashe"}, "/scheduler/type", "did you mean asha"),
        ({"scheduler": {"type": "asha", "eta": 3}}, "/scheduler/eta", "unknown option"),
        ({"scheduler": "pbt"}, "/scheduler", ""),
        ({"max_concurrent_trials": 0}, "/max_concurrent_trials", "greater than or equal to 1"),
        ({"search": "auto"}, "/search", "expected a searcher by name"),
        ({"scheduler": {"type": "asha", "max_t": deep(900)}}, "/scheduler/max_t", "expected a number"),
        ([], "", "dictionary"),
    ],
)
async def test_a_wrong_request_is_a_problem_that_says_what_is_wrong(
    client: httpx.AsyncClient, sqlite_store: Store, body: Any, pointer: str, message: str
) -> None:
    record = recorded(sqlite_store)
    answer = await client.post(f"/api/v1/experiments/{record.public_id}/replay", json=body)
    assert answer.status_code == 422, answer.json()
    [error] = answer.json()["errors"]
    assert error["pointer"].startswith(pointer)
    assert message in error["message"]


async def test_an_experiment_that_does_not_exist_is_a_404(client: httpx.AsyncClient) -> None:
    assert (await client.post("/api/v1/experiments/exp_none/replay", json={})).status_code == 404


def test_an_experiment_with_too_many_reports_is_refused_before_they_are_read(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = recorded(sqlite_store)
    assert sqlite_store.log.count_reports(record.id) == 20 * 27
    assert replay(sqlite_store, record, most_reports=20 * 27).replayed.reports == 20 * 27
    monkeypatch.setattr(type(sqlite_store.drivers), "load", lambda *_: pytest.fail("the log was read"))
    with pytest.raises(SpecError, match="the experiment has 540 reports; at most 539 are replayed here"):
        replay(sqlite_store, record, most_reports=20 * 27 - 1)
