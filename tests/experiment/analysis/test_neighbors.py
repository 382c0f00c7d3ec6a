"""Test the neighbors of a trial, against distances that are computed one by one."""

from __future__ import annotations

import math
import random
from typing import Any

import httpx

from tests.store.examples import T0, a_spec
from tuner.api import create_app
from tuner.domain.batch import Batch
from tuner.domain.decisions import Start
from tuner.domain.events import DriverStarted
from tuner.domain.keys import trial_id
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import Trial
from tuner.experiment.analysis import neighbors as module
from tuner.experiment.analysis.neighbors import neighbors
from tuner.settings import Settings
from tuner.space import Space
from tuner.store import ExperimentRecord, Store

SPACE = {
    "lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
    "width": {"type": "choice", "categories": [16, 32, 64]},
    "act": {"type": "choice", "categories": ["relu", "tanh", "gelu"]},
    "opt": {
        "type": "choice",
        "categories": [{"momentum": {"type": "uniform", "lower": 0.0, "upper": 1.0}}, "adam"],
    },
}


def stored(store: Store, configurations: list[dict[str, Any]], space: dict[str, Any] = SPACE) -> ExperimentRecord:
    """Store an experiment with a trial for each configuration. The value of trial n is n."""
    made = store.experiments.create(a_spec(space=space), now=T0)
    epoch = store.drivers.claim(made.id, "driver", 60.0, T0)
    log: list[Any] = [(1, DriverStarted(time=T0, epoch=epoch))]
    trials = []
    for number, params in enumerate(configurations):
        trial = Trial(number, params, TrialState.COMPLETED, created_at=T0)
        trial.best_value = trial.last_value = float(number)
        trials.append(trial)
        log.append(
            (len(log) + 1, Start(reason="the limit on concurrent trials allows one more", params=params, number=number))
        )
    counts = {"completed": len(trials)}
    store.drivers.commit(
        made.id, epoch, Batch(log=log, trials=trials, state=ExperimentState.RUNNING, summary={"counts": counts}), T0
    )
    return store.experiments.get(made.public_id)


def apart(space: Space, a: dict[str, Any], b: dict[str, Any]) -> float:
    """Return the distance of two configurations, by its definition."""
    total = 0.0
    for parameter in space.parameters:
        one, other = (params.get(parameter.path) for params in (a, b))
        if one is None or other is None:
            gap = float(one is not other)
        elif parameter.kind == "choice" and not parameter.ordered:
            gap = float(one != other)
        else:
            gap = abs(parameter.unit(one) - parameter.unit(other))
        total += gap**2
    return math.sqrt(total / len(space))


def test_the_nearest_configurations_come_first(store: Store) -> None:
    space = Space.from_json(SPACE)
    rng = random.Random(3)
    configurations = [space.sample(rng) for _ in range(60)]
    record = stored(store, configurations)
    for number in (0, 7, 31):
        trial = store.trials.get(trial_id(record.public_id, number))
        found = neighbors(store, record, trial, 8)
        expected = sorted(
            (round(apart(space, configurations[number], other), 9), n)
            for n, other in enumerate(configurations)
            if n != number
        )
        assert [(round(one.distance, 9), one.trial.number) for one in found.items] == expected[:8]
        assert found.left_out == 0
        for one in found.items:
            differ = {
                path: (configurations[number].get(path), configurations[one.trial.number].get(path))
                for path in {**configurations[number], **configurations[one.trial.number]}
                if configurations[number].get(path) != configurations[one.trial.number].get(path)
            }
            assert dict(one.changes) == differ


def test_what_differs_most_is_named_first_and_an_absent_parameter_is_as_far_as_can_be(sqlite_store: Store) -> None:
    base = {"lr": 0.01, "width": 32, "act": "relu", "opt": 0, "opt/0/momentum": 0.5}
    record = stored(
        sqlite_store,
        [
            base,
            {**base, "lr": 0.02, "act": "tanh"},
            {"lr": 0.01, "width": 32, "act": "relu", "opt": 1},
            {**base, "lr": 0.011},
            {**base, "lr": 7.0, "width": 33},  # not in the space, as after a change of the code
        ],
    )
    trial = sqlite_store.trials.get(trial_id(record.public_id, 0))
    found = neighbors(sqlite_store, record, trial, 9).items
    assert [one.trial.number for one in found] == [3, 1, 2, 4]
    assert list(found[1].changes) == ["act", "lr"]
    assert found[2].changes == {"opt": (0, 1), "opt/0/momentum": (0.5, None)}
    assert found[2].distance == found[3].distance == math.sqrt(2 / 5)


def test_trials_of_an_earlier_space_are_compared_by_what_their_values_mean(sqlite_store: Store) -> None:
    branch = {"name": "sgd", "momentum": {"type": "uniform", "lower": 0.0, "upper": 1.0}}
    first = {"lr": {**SPACE["lr"], "lower": 1e-7}, "opt": {"type": "choice", "categories": [branch, "adam"]}}
    present = {"lr": SPACE["lr"], "opt": {"type": "choice", "categories": ["adam", branch]}}
    made = sqlite_store.experiments.create(a_spec(space=present, former_spaces=[first]), now=T0)
    epoch = sqlite_store.drivers.claim(made.id, "driver", 60.0, T0)
    configurations = [
        ({"lr": 0.01, "opt": 0, "opt/0/momentum": 0.5}, 0),
        ({"lr": 0.01, "opt": 0}, 1),  # adam
        ({"lr": 0.02, "opt": 1, "opt/1/momentum": 0.5}, 1),
        ({"lr": 1e-6, "opt": 0, "opt/0/momentum": 0.5}, 0),  # the present space ends at 1e-4
    ]
    trials = [
        Trial(n, p, TrialState.COMPLETED, created_at=T0, space_revision=r) for n, (p, r) in enumerate(configurations)
    ]
    counts = {"completed": 4}
    batch = Batch(log=[(1, DriverStarted(time=T0, epoch=epoch))], trials=trials, summary={"counts": counts})
    sqlite_store.drivers.commit(made.id, epoch, batch, T0)
    record = sqlite_store.experiments.get(made.public_id)
    found = neighbors(sqlite_store, record, sqlite_store.trials.get(trial_id(record.public_id, 0)), 9).items
    assert [one.trial.number for one in found] == [2, 3, 1]
    assert dict(found[0].changes) == {"lr": (0.01, 0.02)}
    assert dict(found[1].changes) == {"lr": (0.01, 1e-6)}


def test_of_very_many_trials_some_are_compared(sqlite_store: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_COMPARED", 6)
    space = {"lr": SPACE["lr"]}
    record = stored(sqlite_store, [{"lr": 1e-3 * (1 + n)} for n in range(12)], space)
    trial = sqlite_store.trials.get(trial_id(record.public_id, 11))
    found = neighbors(sqlite_store, record, trial, 20)
    assert len(found.items) + 1 + found.left_out == 12
    assert found.items[0].trial.number == 10, "the best are among them"


async def test_the_route(sqlite_store: Store, tmp_path: Any) -> None:
    record = stored(sqlite_store, [{"lr": 0.01}, {"lr": 0.02}, {"lr": 0.1}], {"lr": SPACE["lr"]})
    transport = httpx.ASGITransport(create_app(Settings(home=tmp_path), sqlite_store))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
        url = f"/api/v1/trials/{trial_id(record.public_id, 1)}/neighbors"
        found = (await client.get(url)).json()
        assert [(one["trial_number"], one["best_value"], one["changes"]) for one in found["items"]] == [
            (0, 0.0, {"lr": {"before": 0.02, "after": 0.01}}),
            (2, 2.0, {"lr": {"before": 0.02, "after": 0.1}}),
        ]
        assert found["items"][0]["distance"] < found["items"][1]["distance"] < 1
        assert len((await client.get(url, params={"limit": 1})).json()["items"]) == 1
        assert (await client.get(url, params={"limit": 0})).status_code == 422
        assert (await client.get("/api/v1/trials/trl_x/neighbors")).status_code == 404
    lonely = stored(sqlite_store, [{}], {})
    assert neighbors(sqlite_store, lonely, sqlite_store.trials.get(trial_id(lonely.public_id, 0)), 3).items == []
