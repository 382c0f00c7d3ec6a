"""GPU hours: what counts, and that at the limit nothing runs for longer than it must."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import pytest

import tuner
from tests.driver.bench import Bench, interrupts
from tests.store.examples import a_spec
from tuner.api.schemas.experiments import expected_gpu_hours
from tuner.domain import events as e
from tuner.domain.experiment import CheckpointPolicy, Limits, Objective, Scaling, Spec
from tuner.domain.segments import Interruption, SegmentRef
from tuner.domain.states import ExperimentState
from tuner.driver.assemble import assemble
from tuner.driver.core.state.usage import Usage
from tuner.driver.virtual_loop import SimulatedGroups, Step, virtual_loop
from tuner.space import Space, grid_search
from tuner.store import Store

GRACE_S = 10.0
GPUS = Scaling(num_workers=2, use_gpu=True)


def test_time_counts_from_the_room_to_the_end_for_every_gpu() -> None:
    bench = Bench(scaling=GPUS)
    bench.feed(e.SegmentStarted(time=100.0, trial=0, segment=1, held_s=4.0))
    bench.now = 110.0
    bench.reported(0)  # at 111 s
    usage = bench.core.experiment.usage
    assert usage.seconds(111.0) == 15.0
    assert bench.core.summary()["gpu_hours"] == pytest.approx(15 * 2 / 3600)
    assert bench.core.summary()["cpu_hours"] == pytest.approx(15 * 2 / 3600)
    bench.ended(0, "returned")
    assert usage.seconds(1000.0) == 16.0
    assert not usage.since
    assert bench.successor().core.summary()["gpu_hours"] == bench.core.summary()["gpu_hours"]


def test_a_report_that_comes_before_the_start_was_measured_does_not_shorten_the_time() -> None:
    bench = Bench(scaling=GPUS)
    bench.now = 110.0
    bench.reported(0)  # at 111 s
    bench.feed(e.SegmentStarted(time=112.0, trial=0, segment=1, held_s=12.0))
    assert bench.core.experiment.usage.seconds(120.0) == 20.0


def test_trials_that_are_stopped_save_what_they_would_have_used_until_max_t() -> None:
    bench = Bench(scaling=GPUS, max_t=10)
    bench.feed(e.SegmentStarted(time=100.0, trial=0, segment=1))
    bench.now = 105.0
    bench.reported(0)  # at 106 s: 6 s for one of 10 iterations
    assert bench.core.summary()["gpu_hours_saved"] == 0.0
    bench.feed(e.Commanded(time=bench.tick(), command="stop", trial=0))
    assert bench.core.trials[0].state == "stopped"
    saved = bench.core.summary()["gpu_hours_saved"]
    assert saved == pytest.approx(9 * 6 * 2 / 3600)
    assert bench.successor().core.summary()["gpu_hours_saved"] == saved


def test_the_summary_says_which_share_of_the_training_budget_is_spent() -> None:
    bench = Bench(scheduler={"type": "freeze_thaw", "max_t": 10, "budget": 2}, max_t=10)
    assert bench.core.summary()["budget_spent"] is None, "nothing is trained yet"
    bench.reported(0)
    bench.reported(0)
    assert bench.core.summary()["budget_spent"] == 2 / 20
    assert bench.successor().core.summary()["budget_spent"] == 2 / 20
    assert Bench(max_t=10).core.summary()["budget_spent"] is None, "without a budget"


def test_the_time_without_a_driver_does_not_count() -> None:
    bench = Bench(scaling=GPUS)
    bench.started(0)
    bench.reported(0)
    used = bench.core.summary()["gpu_hours"]
    after = bench.successor()
    after.feed(e.DriverStarted(time=9999.0, epoch=2))
    assert after.core.summary()["gpu_hours"] == used


def test_the_time_left_depends_on_how_many_groups_run() -> None:
    usage = Usage(GPUS)
    assert usage.left_s(1.0, 0.0) is None
    usage.begin(0, 0.0)
    assert usage.left_s(1.0, 0.0) == 1800.0
    usage.begin(1, 900.0)
    assert usage.left_s(1.0, 900.0) == 450.0
    assert Usage(Scaling()).left_s(1.0, 0.0) is None


def test_all_trials_end_at_the_limit_and_continue_runs_into_it_again() -> None:
    bench = Bench(scaling=GPUS, limits={"max_concurrent_trials": 2, "gpu_hours": 0.5})
    bench.started(0)
    bench.started(1)
    out = bench.feed(e.GpuHoursSpent(time=bench.tick(), gpu_hours=0.5))
    assert sorted(interrupts(out)) == [0, 1]
    assert bench.core.experiment.capped
    bench.ended(0)
    bench.ended(1)
    assert bench.core.experiment.finishing == "the limit of 0.5 GPU hours is used up"
    assert bench.states == ["stopped", "stopped"]
    bench.command("continue")
    assert not bench.core.experiment.capped


class Stubborn(SimulatedGroups):
    """Ranks that never look at a verdict: each group is killed after its grace."""

    async def interrupt(self, segment: SegmentRef, why: Interruption) -> None:
        await self._clock.sleep(GRACE_S)
        await super().interrupt(segment, why)


def endless(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    yield Step({"loss": 1.0}, seconds=1.0)
    while True:
        yield Step({"loss": 1.0}, seconds=7919.0)


def test_the_overshoot_is_bounded_by_the_gpus_times_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space.from_python({"x": tuner.uniform(0, 1)})
    limit = 5.0
    spec = Spec(
        name="capped",
        space=space.to_json(),
        objectives=(Objective("loss", "min"),),
        num_samples=40,
        search={"type": "random"},
        scheduler={"type": "fifo"},
        scaling=GPUS,
        limits=Limits(max_concurrent_trials=3, gpu_hours=limit, stop_grace_s=GRACE_S),
        checkpoint=CheckpointPolicy(interval_s=None, keep_best=0),
    )
    core = assemble(spec, space)
    monkeypatch.setattr("tuner.driver.virtual_loop.SimulatedGroups", Stubborn)
    loop = virtual_loop(core, space, endless, startup_s=3.0)
    loop.run()
    assert core.state is ExperimentState.COMPLETED
    used = core.experiment.usage.gpu_hours(core.experiment.now)
    groups, gpus = 3, 2
    assert limit < used <= limit + groups * gpus * GRACE_S / 3600 + 1e-9
    assert core.experiment.finishing == "the limit of 5 GPU hours is used up"


def test_the_row_and_the_forecast(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    record = sqlite_store.experiments.create(a_spec(num_samples=10))
    assert (record.gpu_hours, record.cpu_hours, expected_gpu_hours(record)) == (0.0, 0.0, None)
    running = dataclasses.replace(
        record, gpu_hours=2.0, counts={"completed": 3, "running": 2}, state=ExperimentState.RUNNING
    )
    assert expected_gpu_hours(running) == 5.0
    capped = dataclasses.replace(running.spec, limits=Limits(gpu_hours=4.0))
    assert expected_gpu_hours(dataclasses.replace(running, spec=capped)) == 4.0
    assert expected_gpu_hours(dataclasses.replace(running, state=ExperimentState.COMPLETED)) == 2.0
    grid = dataclasses.replace(running.spec, space=Space.from_python({"lr": grid_search([0.1, 0.2])}).to_json())
    assert expected_gpu_hours(dataclasses.replace(running, spec=grid)) == 10.0, "ten times two trials"
    once = dataclasses.replace(grid, num_samples=None)
    assert expected_gpu_hours(dataclasses.replace(running, spec=once)) == 2.0, (
        "the number of trials is known without it"
    )
    # A running experiment is shown at each of its reports. A space with hundreds of parameters takes a tenth of a second to read.
    monkeypatch.setattr(Space, "_from_json", None)
    assert expected_gpu_hours(running) == 5.0
    assert expected_gpu_hours(dataclasses.replace(running, spec=grid)) == 10.0


def test_the_sum_over_all_groups_is_kept_up_to_date() -> None:
    """Compare with the sum over the groups that run, and with the history of those that have ended."""
    rng = random.Random(0)
    usage, since, sizes, ended_s = Usage(GPUS), dict[int, float](), dict[int, float](), 0.0
    now = 1.7e9
    for _ in range(3000):
        now += rng.random()
        trial = rng.randrange(20)
        if trial in since and rng.random() < 0.5:
            usage.end(trial, now)
            ended_s += (now - since.pop(trial)) * sizes.pop(trial)
        else:
            sizes[trial] = sizes.get(trial) or rng.choice([1.0, 2.0, 0.5])
            since[trial] = min(since.get(trial, now), now - rng.random())
            usage.begin(trial, since[trial], sizes[trial])
        expected = ended_s + sum((now - at) * sizes[trial] for trial, at in since.items())
        assert usage.seconds(now) == pytest.approx(expected, abs=1e-3)
