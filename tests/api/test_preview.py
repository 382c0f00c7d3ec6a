"""A dry run says what would be done and does nothing; importance says afterwards what mattered."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import Poked
from tests.store.examples import T0, a_spec, begin
from tuner.api import create_app
from tuner.domain.batch import Batch
from tuner.domain.decisions import Start
from tuner.domain.events import DriverStarted
from tuner.domain.experiment import Objective
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import Trial
from tuner.driver.assemble import assemble
from tuner.driver.core import Core
from tuner.experiment.analysis import reach
from tuner.experiment.analysis.preview import Importances
from tuner.experiment.specs.spec import parse_spec
from tuner.settings import Settings
from tuner.space import Space
from tuner.store import ExperimentRecord, Store
from tuner.store.service.access import Role

API = "/api/v1/experiments"


async def dry(client: httpx.AsyncClient, spec: dict[str, Any], **query: Any) -> dict[str, Any]:
    response = await client.post(f"{API}/dry-run", json=spec, params=query)
    assert response.status_code == 200, response.json()
    found: dict[str, Any] = response.json()
    return found


async def test_a_dry_run_says_what_would_be_done(
    client: httpx.AsyncClient, spec: dict[str, Any], sqlite_store: Store, poked: Poked
) -> None:
    found = await dry(client, {**spec, "space": {"opt": {"lr": spec["space"]["lr"]}, "fixed": 3}})
    assert (found["name"], found["metric"], found["mode"]) == ("digits", "accuracy", "max")
    assert (found["num_samples"], found["max_t"], found["time_attr"]) == (16, 27, "training_iteration")
    assert found["scheduler"]["type"] == "asha"
    assert found["scheduler"]["brackets"] == 1, "defaults are filled in"
    assert found["search"]["type"] == "random"
    assert (found["method"], found["labels"]) == ("random + asha", {})
    assert found["scaling"]["num_workers"] == 2
    assert len(found["configurations"]) == 5
    for one in found["configurations"]:
        assert one["config"] == {"opt": {"lr": one["params"]["opt/lr"]}, "fixed": 3}
    assert not sqlite_store.experiments.page().items
    assert poked.count == 0


@pytest.mark.parametrize("search", ["random", "grid", "tpe", "gp", "qmc", "cmaes", "auto"])
async def test_the_configurations_are_those_that_a_driver_would_start(
    client: httpx.AsyncClient, spec: dict[str, Any], search: str
) -> None:
    spec = {**spec, "search": {"type": search}, "limits": {"max_concurrent_trials": 4}}
    if search == "grid":
        spec["space"] = {"a": {"type": "grid_search", "values": [1, 2, 3]}, "b": spec["space"]["lr"]}
    found = await dry(client, spec, configurations=4)
    parsed = parse_spec(spec)
    core: Core = assemble(parsed, Space.from_json(parsed.space))
    core.handle(DriverStarted(time=0.0, epoch=1))
    if not core.searcher.is_heavy(core.trials):
        assert [one["params"] for one in found["configurations"]] == [trial.params for trial in core.trials]
    assert len(found["configurations"]) == 4
    assert len({str(one["params"]) for one in found["configurations"]}) == 4
    assert await dry(client, spec, configurations=4) == found


async def test_what_auto_stands_for_is_said_with_its_reason(client: httpx.AsyncClient, spec: dict[str, Any]) -> None:
    given = {name: spec[name] for name in ("entrypoint", "space", "metric", "mode")}
    found = await dry(client, {**given, "max_t": 27})
    assert found["scheduler"]["type"] not in ("auto", "python")
    assert found["search"]["type"] != "auto"
    assert found["method"] == "freeze_thaw (auto)", "it proposes configurations itself"
    assert found["num_samples"] == 100
    assert found["notes"][0] == "neither num_samples nor a time budget is set: at most 100 trials are started"
    assert found["notes"][1].startswith("scheduler auto: freeze_thaw")
    assert found["notes"][2].startswith("budget: 20 full trainings (540 iterations), shared by all trials")
    assert len(found["notes"]) == 3


async def test_the_method_and_the_choices_are_named_as_in_an_experiment(
    client: httpx.AsyncClient, spec: dict[str, Any]
) -> None:
    sgd, adam = ({"name": name, "lr": spec["space"]["lr"]} for name in ("sgd", "adam"))
    asked = {**spec, "search": {"type": "auto"}, "space": {"opt": {"type": "choice", "categories": [sgd, adam]}}}
    found = await dry(client, asked)
    made = (await client.post(f"{API}", json=asked)).json()
    assert (found["method"], found["labels"]) == (made["method"], made["labels"])
    assert found["labels"] == {"opt": ["sgd", "adam"]}


async def test_options_that_follow_from_the_experiment_are_shown(
    client: httpx.AsyncClient, spec: dict[str, Any]
) -> None:
    wanted = {"max_t": 40, "grace_period": 1, "budget": 10, "time_attr": "epoch", "thaw": 0.3}
    given = {name: spec[name] for name in ("entrypoint", "space", "metric", "mode")}
    for kind in ("freeze_thaw", "auto"):
        asked = {**given, "scheduler": {"type": kind}, "max_t": 40, "num_samples": 50, "time_attr": "epoch"}
        found = (await dry(client, asked))["scheduler"]
        assert found.items() >= {"type": "freeze_thaw", **wanted}.items()
        timed = (await dry(client, {**asked, "limits": {"time_budget_s": 60}}))["scheduler"]
        assert timed["budget"] is None, "the time ends it"
    for kind, end in (("asha", 40), ("hyperband", 40), ("median", 40)):
        asked = {**given, "scheduler": {"type": kind}, "max_t": 40}
        assert (await dry(client, asked))["scheduler"]["max_t"] == end
    assert (await dry(client, {**given, "scheduler": {"type": "hyperband"}}))["scheduler"]["max_t"] == 81


async def test_there_are_no_more_configurations_than_trials(client: httpx.AsyncClient, spec: dict[str, Any]) -> None:
    assert len((await dry(client, {**spec, "num_samples": 3}, configurations=100))["configurations"]) == 3
    assert (await dry(client, spec, configurations=0))["configurations"] == []


async def test_the_bound_of_gpu_hours_of_elastic_trials_counts_their_most_workers(
    client: httpx.AsyncClient, spec: dict[str, Any]
) -> None:
    scaling = {"num_workers": {"min": 2, "max": 8}, "use_gpu": True}
    trained = {**spec, "scaling": scaling, "max_t": 36, "num_samples": 10, "scheduler": {"type": "fifo"}, "limits": {}}
    assert (await dry(client, trained, seconds_per_iteration=100))["gpu_hours_at_most"] == 80
    timed = {**trained, "limits": {"time_budget_s": 1800, "max_concurrent_trials": 3}}
    assert (await dry(client, timed))["gpu_hours_at_most"] == 12
    fixed = {**trained, "scaling": {**scaling, "num_workers": 2}}
    assert (await dry(client, fixed, seconds_per_iteration=100))["gpu_hours_at_most"] == 20


async def test_it_says_how_many_trials_reach_which_iteration(client: httpx.AsyncClient, spec: dict[str, Any]) -> None:
    asha = {"type": "asha", "grace_period": 1, "reduction_factor": 3}
    spec = {
        **spec,
        "scaling": {"num_workers": 2, "use_gpu": True},
        "num_samples": 81,
        "max_t": 27,
        "scheduler": asha,
        "limits": {},
    }
    found = await dry(client, spec, seconds_per_iteration=1800)
    levels = [(one["iteration"], one["trials"]) for one in found["reached"]]
    assert [iteration for iteration, _ in levels] == [1, 3, 9, 27]
    assert levels[0] == (1, 81)
    for (_, before), (_, trials) in pairwise(levels):  # a third, and some that came first
        assert before / 3 - 1 <= trials <= before / 3 + 6
    iterations = sum(trials * more for (_, trials), more in zip(levels, (1, 2, 6, 18), strict=True))
    assert found["expected_gpu_hours"] == iterations
    assert found["gpu_hours_at_most"] == 27 * 81
    bounded = await dry(client, {**spec, "limits": {"gpu_hours": 5}}, seconds_per_iteration=1800)
    assert bounded["expected_gpu_hours"] == 5
    assert (await dry(client, spec))["expected_gpu_hours"] is None, "nobody knows how long an iteration takes"


@pytest.mark.parametrize("kind", ["asha", "asha_promotion", "hyperband"])
async def test_the_expected_levels_are_those_of_the_scheduler(
    client: httpx.AsyncClient, spec: dict[str, Any], kind: str
) -> None:
    spec = {**spec, "num_samples": 27, "max_t": 9, "scheduler": {"type": kind}}
    reached = (await dry(client, spec))["reached"]
    assert reached[0]["trials"] == 27
    assert [one["trials"] for one in reached] == sorted({one["trials"] for one in reached}, reverse=True)
    assert reached[-1]["iteration"] == 9
    assert reached[-1]["trials"] < 9


@pytest.mark.parametrize(
    ("scheduler", "changes", "expected"),
    [
        ("fifo", {}, [{"iteration": 27, "trials": 16}]),
        ("pbt", {}, [{"iteration": 27, "trials": 16}]),
        ("fifo", {"stop": {"training_iteration": 5}}, [{"iteration": 5, "trials": 16}]),
        ("fifo", {"stop": {"training_iteration": 50}}, [{"iteration": 27, "trials": 16}]),
        ("median", {}, None),
        ("freeze_thaw", {}, None),
        ("asha", {"num_samples": 1001}, None),
        ("asha", {"num_samples": 900, "max_t": 10_000}, None),
        ("asha", {"time_attr": "time_total_s"}, None),
    ],
)
async def test_what_depends_on_values_is_not_expected(
    client: httpx.AsyncClient,
    spec: dict[str, Any],
    scheduler: str,
    changes: dict[str, Any],
    expected: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reach, "MOST_REPORTS", 500)
    spec = {**spec, "max_t": 27, "num_samples": 16, "scheduler": {"type": scheduler}, **changes}
    del spec["search"]
    assert (await dry(client, spec))["reached"] == expected


async def test_its_errors_are_those_of_creating(client: httpx.AsyncClient, spec: dict[str, Any]) -> None:
    for wrong in (
        {**spec, "max_T": 3, "scaling": {"resources_per_worker": {"CPUs": 1}}},
        {**spec, "entrypoint": "tests.api.trainables:trian"},
    ):
        same = {"X-Request-Id": "same"}
        tried = await client.post(f"{API}/dry-run", json=wrong, headers=same)
        created = await client.post(API, json=wrong, headers=same)
        assert (tried.status_code, tried.json()) == (created.status_code, created.json())
        assert tried.status_code == 422


@pytest.mark.parametrize("warm_start", [["nope"], ["digits", "exp_absent"], 7])
async def test_a_warm_start_that_creating_refuses_is_refused(
    client: httpx.AsyncClient, spec: dict[str, Any], warm_start: object
) -> None:
    assert (await client.post("/api/v1/experiments", json=spec)).status_code == 201
    asked, same = {**spec, "warm_start": warm_start}, {"X-Request-Id": "same"}
    answers = [await client.post(f"/api/v1/experiments{path}", json=asked, headers=same) for path in ("", "/dry-run")]
    assert [answer.status_code for answer in answers] == [422, 422]
    assert answers[0].json() == answers[1].json()


async def test_an_earlier_experiment_of_another_project_is_unknown(
    sqlite_store: Store, tmp_path: Path, spec: dict[str, Any]
) -> None:
    made, _, _ = begin(sqlite_store, spec=a_spec("theirs", project="theirs"))
    secret, _ = sqlite_store.access.create_token("ci", Role.EDITOR, project="ours")
    app = create_app(Settings(home=tmp_path, auth="on"), sqlite_store, web=tmp_path / "web")
    head = {"Authorization": f"Bearer {secret}"}
    asked = {**spec, "executor": "agents", "warm_start": [made.public_id]}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=head) as client:
        answer = await client.post("/api/v1/experiments/dry-run", json=asked)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/warm_start/0")


def ended(store: Store, count: int, *, repeats: int = 0, **fields: Any) -> ExperimentRecord:
    """Create an experiment whose trials have ended. Their value is x, and y has no influence on it.

    repeats: how often trial 1 is evaluated again. Each of these runs is better by 1.
    """
    space = {name: {"type": "uniform", "lower": 0, "upper": 1} for name in ("y", "x")}
    made = store.experiments.create(a_spec(space=space, **fields), now=T0)
    epoch = store.drivers.claim(made.id, "driver", 60.0, T0)
    rng = random.Random(1)
    trials, log = [], [(1, DriverStarted(time=T0, epoch=epoch))]
    for number in range(count):
        params = {"x": rng.random(), "y": rng.random()}
        trial = Trial(number, params, TrialState.COMPLETED if number % 3 else TrialState.STOPPED, created_at=T0)
        trial.best_value = trial.last_value = params["x"]
        trial.last = {"accuracy": params["x"], "latency": 1 - params["y"]}
        trials.append(trial)
        log.append(
            (len(log) + 1, Start(reason="the limit on concurrent trials allows one more", params=params, number=number))
        )  # type: ignore[arg-type]
    for number in range(count, count + repeats):
        again = Trial(number, trials[1].params, TrialState.COMPLETED, created_at=T0, repeat_of=1)
        again.best_value = again.last_value = trials[1].params["x"] + 1
        again.last = {"accuracy": again.best_value, "latency": 1.0}
        trials.append(again)
        log.append((len(log) + 1, Start(reason="repeats trial 1", params=again.params, number=number, repeat_of=1)))  # type: ignore[arg-type]
    running = Trial(len(trials), {"x": 0.5, "y": 0.5}, TrialState.RUNNING, created_at=T0)
    running.best_value = 9.0
    log.append(
        (
            len(log) + 1,
            Start(
                reason="the limit on concurrent trials allows one more", params=running.params, number=running.number
            ),
        )
    )  # type: ignore[arg-type]
    batch = Batch(log=log, trials=[*trials, running], state=ExperimentState.RUNNING, summary={"counts": {}})  # type: ignore[arg-type]
    store.drivers.commit(made.id, epoch, batch, T0 + 1)
    return store.experiments.get(made.public_id)


async def test_importance_finds_the_parameter_that_matters(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made = ended(sqlite_store, 60)
    found = (await client.get(f"{API}/{made.public_id}/importance")).json()
    assert (found["metric"], found["trials"], found["needed"]) == ("accuracy", 60, 10)
    assert [item["parameter"] for item in found["items"]] == ["x", "y"]
    assert found["items"][0]["share"] > 0.8
    assert sum(item["share"] for item in found["items"]) == pytest.approx(1)


async def test_importance_counts_a_trial_and_its_repeats_once(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made = ended(sqlite_store, 60, repeats=12)
    found = (await client.get(f"{API}/{made.public_id}/importance")).json()
    counts = [found[name] for name in ("trials", "completed", "stopped", "repeats")]
    assert counts == [60, 40, 20, 12]
    assert [item["parameter"] for item in found["items"]] == ["x", "y"], "twelve equal results would make y matter most"
    finished = (await client.get(f"{API}/{made.public_id}/importance", params={"where": "state=completed"})).json()
    assert [finished[name] for name in ("trials", "completed", "stopped")] == [40, 40, 0]
    second = ended(sqlite_store, 60, repeats=12, objectives=(Objective("accuracy", "max"), Objective("latency", "min")))
    found = (await client.get(f"{API}/{second.public_id}/importance", params={"metric": "latency"})).json()
    assert (found["trials"], found["repeats"]) == (60, 12)


async def test_importance_among_the_trials_that_meet_conditions(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    """Among trials with nearly the same x, x cannot matter much any more."""
    made = ended(sqlite_store, 200)
    url = f"{API}/{made.public_id}/importance"
    whole = (await client.get(url)).json()
    params = {"where": ["params.y>=0.3", 'state?=["completed", "running"]']}
    part = (await client.get(url, params=params)).json()
    chosen = [
        one
        for one in sqlite_store.trials.sorted_page(made.id, page_size=300)[0].items
        if one.params["y"] >= 0.3 and one.state == "completed"
    ]
    assert (part["trials"], whole["trials"]) == (len(chosen), 200)
    assert part != whole
    assert (await client.get(url)).json() == whole, "kept apart from that of the conditions"
    few = (await client.get(url, params={"where": "params.x<0.01"})).json()
    assert (few["items"], few["trials"] < 10) == ([], True)
    wrong = await client.get(url, params={"where": "params.x"})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/where")


async def test_importance_for_the_second_objective(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    """The trials' newest value of the second objective is 1 - y, so y matters for it, and x for the first one."""
    objectives = (Objective("accuracy", "max"), Objective("latency", "min"))
    made = ended(sqlite_store, 60, objectives=objectives)
    url = f"{API}/{made.public_id}/importance"
    second = (await client.get(url, params={"metric": "latency"})).json()
    assert (second["metric"], second["trials"]) == ("latency", 60)
    assert [item["parameter"] for item in second["items"]] == ["y", "x"]
    assert second["items"][0]["share"] > 0.8
    first = (await client.get(url, params={"metric": "accuracy"})).json()
    assert first == (await client.get(url)).json()
    assert first["items"][0]["parameter"] == "x"
    some = (await client.get(url, params={"metric": "latency", "where": "params.y>=0.5"})).json()
    assert 10 < some["trials"] < 60
    wrong = await client.get(url, params={"metric": "loss"})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/metric")
    assert "expected one of 'accuracy', 'latency'" in wrong.text


async def test_importance_is_worked_out_once_until_a_trial_ends(
    client: httpx.AsyncClient, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ended(sqlite_store, 30)
    url = f"{API}/{made.public_id}/importance"
    first = (await client.get(url)).json()
    with monkeypatch.context() as patch:
        patch.setattr("tuner.search.importance.importance", None)
        assert (await client.get(url)).json() == first
        epoch = sqlite_store.drivers.claim(made.id, "driver", 60.0, T0)
        seq = made.last_event_seq + 1
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(seq, DriverStarted(time=T0, epoch=epoch))]), T0)
        assert (await client.get(url)).json() == first, "something happened, but no trial has ended"
    trial = Trial(30, {"x": 0.5, "y": 0.5}, TrialState.COMPLETED, best_value=0.5, last_value=0.5, created_at=T0)
    start = Start(reason="the limit on concurrent trials allows one more", number=30)
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(seq + 1, start)], trials=[trial]), T0)
    assert (await client.get(url)).json()["trials"] == 31


def test_the_importance_of_a_deleted_experiment_is_not_that_of_the_next_one(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give the internal id of a deleted experiment to the next one, as a restored backup can."""
    asked: list[str] = []

    def importance(store: Store, record: ExperimentRecord, where: tuple[str, ...], metric: str | None) -> str:
        asked.append(record.public_id)
        return f"of {record.public_id}"

    monkeypatch.setattr("tuner.experiment.analysis.preview.importance", importance)
    importances = Importances(sqlite_store)
    old = ended(sqlite_store, 12)
    assert importances.of(old) == f"of {old.public_id}"  # type: ignore[comparison-overlap]
    sqlite_store.experiments.seize(old.id)
    sqlite_store.experiments.remove(old.id)
    with sqlite_store._database.engine.begin() as connection:  # as in a database that was restored from a backup
        connection.exec_driver_sql("DELETE FROM sqlite_sequence")
    new = ended(sqlite_store, 12)
    assert (new.id, new.last_event_seq) == (old.id, old.last_event_seq), "otherwise this test shows nothing"
    assert importances.of(new) == f"of {new.public_id}"  # type: ignore[comparison-overlap]
    assert asked == [old.public_id, new.public_id]


def test_the_importance_is_worked_out_again_for_a_changed_space(sqlite_store: Store) -> None:
    importances = Importances(sqlite_store)
    made = ended(sqlite_store, 30)
    assert set(importances.of(made).shares) == {"x", "y"}
    narrow = {"x": {"type": "uniform", "lower": 0.0, "upper": 1.0}, "y": 0.5}
    spec = replace(made.spec, space=narrow, former_spaces=(made.spec.space,))
    changed = replace(made, spec=spec, last_event_seq=made.last_event_seq + 1)
    assert set(importances.of(changed).shares) == {"x"}


async def test_of_very_many_trials_evenly_spaced_ones_are_looked_at(
    client: httpx.AsyncClient, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.experiment.analysis.preview.MAX_RESULTS", 40)
    found = (await client.get(f"{API}/{ended(sqlite_store, 60).public_id}/importance")).json()
    assert (found["trials"], found["left_out"]) == (40, 20)
    assert found["items"][0]["parameter"] == "x"


async def test_too_few_results_say_nothing(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made = ended(sqlite_store, 9)
    found = (await client.get(f"{API}/{made.public_id}/importance")).json()
    assert found == {"metric": "accuracy", "items": [], "trials": 9, "needed": 10, "left_out": 0} | {
        "completed": 6, "stopped": 3, "repeats": 0,
    }  # fmt: skip
    assert (await client.get(f"{API}/exp_x/importance")).status_code == 404
