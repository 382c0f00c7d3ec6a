"""A replay of PBT trains with exactly the configurations of the schedule."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner.domain.decisions import Exploit
from tuner.errors import SpecError
from tuner.schedulers import PBTReplayScheduler, PopulationBasedTraining, from_json
from tuner.space import Space

SPACE = {"lr": tuner.uniform(0.001, 0.5)}
SCHEDULE = [
    {"iteration": 0, "params": {"lr": 0.1}, "trial": 3},
    {"iteration": 4, "params": {"lr": 0.2}, "trial": 1},
    {"iteration": 5, "params": {"lr": 0.05}, "trial": 1},
]
State = tuple[float, int, tuple[float, ...]]


def evaluate(config: Mapping[str, Any], checkpoint: State | None) -> Iterator[tuner.Step]:
    """Descend from 1, with the weight and the used configurations in the checkpoint."""
    weight, count, used = checkpoint or (1.0, 0, ())
    while True:
        weight, count, used = weight * (1 - config["lr"]) + 0.02 * config["lr"] ** 2, count + 1, (*used, config["lr"])
        yield tuner.Step({"loss": weight, "count": count, "lr": config["lr"]}, 1.0, (weight, count, used))


def replayed(schedule: Any, space: Any = SPACE, **options: Any) -> Any:
    given: dict[str, Any] = {"metric": "loss", "mode": "min", "max_t": 12, **options}
    return tuner.simulate(evaluate, space, scheduler=PBTReplayScheduler(schedule), **given)


def by_hand(schedule: list[dict[str, Any]], length: int) -> float:
    weight = 1.0
    for iteration in range(length):
        lr = [item for item in schedule if item["iteration"] <= iteration][-1]["params"]["lr"]
        weight = weight * (1 - lr) + 0.02 * lr**2
    return weight


@pytest.mark.parametrize("space", [SPACE, {}])
def test_each_iteration_has_the_configuration_of_the_schedule(space: Any) -> None:
    result = replayed(SCHEDULE, space)
    (trial,) = result.trials
    assert trial.last["count"] == 12
    assert trial.last["loss"] == by_hand(SCHEDULE, 12)
    reasons = [d.reason for d in result.decisions if isinstance(d, Exploit)]
    assert reasons == [
        "iteration 4: lr 0.1 → 0.2, as in the schedule",
        "iteration 5: lr 0.2 → 0.05, as in the schedule",
    ]


def test_a_reason_names_only_what_changes() -> None:
    schedule = [{**item, "params": {**item["params"], "dropout": 0.5}} for item in SCHEDULE]
    result = replayed(schedule, {**SPACE, "dropout": tuner.uniform(0, 1)})
    changes = [d.mutations for d in result.decisions if isinstance(d, Exploit)]
    assert changes == [{"lr": "0.1 → 0.2"}, {"lr": "0.2 → 0.05"}]


def test_a_space_from_the_schedule_has_the_names_that_the_function_gets() -> None:
    params = {"net/width": 16, "opt~1lr": 0.1, "a~0b": True}
    space = Space.from_python(PBTReplayScheduler([{"iteration": 0, "params": params}]).default_space())
    assert [parameter.path for parameter in space.parameters] == list(params)
    assert space.config(params) == {"net": {"width": 16}, "opt/lr": 0.1, "a~b": True}


def test_several_trials_with_fewer_slots() -> None:
    result = replayed(SCHEDULE, num_samples=3, max_concurrent_trials=1)
    assert [trial.last["loss"] for trial in result.trials] == [by_hand(SCHEDULE, 12)] * 3


def test_the_schedule_of_a_search_gives_its_result_again() -> None:
    scheduler = PopulationBasedTraining(2)
    options: dict[str, Any] = {"metric": "loss", "mode": "min", "max_t": 12}
    search = tuner.simulate(evaluate, SPACE, scheduler=scheduler, num_samples=8, **options)
    schedules = {trial.number: scheduler.schedule_of(trial.number) for trial in search.trials}
    assert max(map(len, schedules.values())) > 2
    for number, schedule in schedules.items():
        (again,) = replayed(schedule).trials
        assert again.last["loss"] == search.trials[number].last["loss"]


def test_from_a_file_and_from_json(tmp_path: Path) -> None:
    file = tmp_path / "schedule.json"
    file.write_text(json.dumps(SCHEDULE))
    scheduler = PBTReplayScheduler(file)
    assert scheduler.to_json() == from_json(scheduler.to_json()).to_json() == PBTReplayScheduler(SCHEDULE).to_json()


@pytest.mark.parametrize(
    ("schedule", "pointer", "says"),
    [
        ([], "/schedule", "the schedule is empty"),
        (Path("no/such.json"), "/schedule", "cannot read 'no/such.json': No such file"),
        ("schedule.json", "/schedule", "or its pathlib.Path, got 'schedule.json'"),
        ([*SCHEDULE, SCHEDULE[1]], "/schedule/3/iteration", "expected an iteration above 5"),
        (SCHEDULE[1:], "/schedule/0/iteration", "the first iteration must be 0, got 4"),
        (
            [*SCHEDULE, {"iteration": 6.5, "params": {"lr": 0.1}}],
            "/schedule/3/iteration",
            "a whole number of at least 0",
        ),
        ([{"iteration": 0}], "/schedule/0", "expected"),
        ([*SCHEDULE, {"iteration": 12, "params": {"lr": 0.1}}], "/scheduler/schedule/3/iteration", "below max_t, 12"),
        ([{"iteration": 0, "params": {"lr": 0.1, "x": 1}}], "/scheduler/schedule/0/params/x", "not in the search"),
        ([{"iteration": 0, "params": {"lr": 3.0}}], "/scheduler/schedule/0/params/lr", "outside the parameter's"),
    ],
)
def test_wrong_schedules(schedule: Any, pointer: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        replayed(schedule)
    assert caught.value.errors[0][0] == pointer
    assert says in caught.value.errors[0][1]


def train(config: dict[str, Any]) -> None:
    """Descend from the weight in the checkpoint, if there is one."""
    weight, count = 1.0, 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            weight, count = json.loads((Path(folder) / "state").read_text())
    while count < 9:
        weight, count = weight * (1 - config["lr"]) + 0.02 * config["lr"] ** 2, count + 1
        state = json.dumps([weight, count])
        tuner.report(
            {"loss": weight}, checkpoint=lambda folder, state=state: (Path(folder) / "state").write_text(state)
        )


def test_a_real_trial_carries_its_weights_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    scheduler = PBTReplayScheduler(SCHEDULE)
    result = tuner.run(train, scheduler=scheduler, metric="loss", mode="min", max_t=9, executor="local", verbose=0)
    assert result.best_value == by_hand(SCHEDULE, 9)
    assert [item["iteration"] for item in result.schedule()] == [0, 4, 5]
