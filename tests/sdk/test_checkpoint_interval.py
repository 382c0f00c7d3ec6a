"""Run a search that chooses the time between its checkpoints itself. `tests/driver/core/state/test_saving.py` has the details."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner.settings import Settings
from tuner.store import Store

pytestmark = pytest.mark.ray


def trains(config: dict[str, Any]) -> None:
    def save(folder: str) -> None:
        time.sleep(0.05)
        Path(folder, "state").write_text("x")

    for step in range(1, 6):
        tuner.report({"loss": 1.0 / step}, checkpoint=save)


def test_the_cost_of_a_checkpoint_is_measured_and_the_log_says_the_interval(private_ray: Path) -> None:
    options: dict[str, Any] = {"num_workers": 2, "resources_per_worker": {"CPU": 0.5}, "backend": "none", "verbose": 0}
    checkpoint = {"interval_s": "auto"}
    result = tuner.run(trains, {}, metric="loss", mode="min", num_samples=1, checkpoint=checkpoint, **options)
    assert result.state == "completed", result.error
    with Store.open(Settings.from_env().database_url) as store:
        record = store.experiments.get(result.experiment_id)
        reasons = [one.reason for one in store.log.decisions(record.id, page_size=100).items if one.kind == "note"]
    (said,) = [reason for reason in reasons if reason.startswith("trials save a checkpoint every")]
    every = float(said.split()[5])
    assert 40.0 < every < 200.0, said  # sqrt(2 * 0.05 s * 6 h) is 46 s; the machine may be busy
