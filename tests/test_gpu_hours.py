"""The limit of GPU hours on real worker groups. Ray counts a GPU that this machine need not have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import tuner
from tests.jobs import stuck
from tuner.api.schemas.experiments import expected_gpu_hours
from tuner.domain import events as e
from tuner.settings import Settings
from tuner.store import Store

pytestmark = pytest.mark.ray

LIMIT, GRACE_S = 3.0 / 3600, 1.0


@pytest.fixture
def one_gpu(without_ray: None) -> Iterator[None]:
    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="warning")
    yield
    tuner.shutdown()
    ray.shutdown()


def test_a_trial_that_does_not_report_is_killed_after_its_grace(
    one_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    result = tuner.run(
        stuck,
        {"x": tuner.uniform(0, 1)},
        metric="loss",
        mode="min",
        num_samples=5,
        scheduler="fifo",
        search_alg="random",
        use_gpu=True,
        backend="none",
        gpu_hours=LIMIT,
        stop_grace_s=GRACE_S,
    )
    assert [trial.state for trial in result.trials] == ["stopped"]
    with Store.open(Settings(home=tmp_path).database_url) as store:
        [record] = store.experiments.page().items
        log: list[Any] = [entry for _, entry in store.drivers.load(record.id)]
    [spent] = [entry for entry in log if isinstance(entry, e.GpuHoursSpent)]
    [ended] = [entry for entry in log if isinstance(entry, e.SegmentEnded)]
    [started] = [entry for entry in log if isinstance(entry, e.SegmentStarted)]
    assert spent.time >= started.time - started.held_s + LIMIT * 3600
    assert ended.time >= spent.time + GRACE_S, "it had its grace"
    assert record.gpu_hours == pytest.approx((ended.time - started.time + started.held_s) / 3600)
    assert math.isclose(record.gpu_hours, record.cpu_hours)
    assert expected_gpu_hours(record) == record.gpu_hours > 0
    assert record.reason == f"the limit of {LIMIT:g} GPU hours is used up"
