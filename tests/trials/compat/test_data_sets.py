"""The state of the data sets that a running trial reads through Ray Data, in a real run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tuner
from tuner.api import schemas
from tuner.hosts.scripts import kept
from tuner.trials.compat import datasets
from tuner.trials.training import session

ray = pytest.importorskip("ray")

ROWS, BATCH, READS_S = 400, 10, 0.02


def test_nothing_is_known_outside_a_trial() -> None:
    assert datasets.look() == []


def test_the_throughput_is_that_of_the_time_so_far() -> None:
    operator = {"name": "Map", "state": "RUNNING", "progress": 2, "total": 8, "total_rows": 80, "queued_blocks": 3}
    execution = {"state": "RUNNING", "progress": 2, "total": 8, "total_rows": 80, "start_time": 100.0, "end_time": None}
    found = datasets._state({**execution, "operators": {"Map1": operator}}, now=104.0)
    assert (found["state"], found["seconds"], found["blocks_per_s"], found["rows_per_s"]) == ("running", 4.0, 0.5, 5.0)
    [shown] = found["operators"]
    assert shown == {
        "name": "Map",
        "state": "running",
        "blocks": 2,
        "total_blocks": 8,
        "total_rows": 80,
        "queued_blocks": 3,
    }
    assert datasets._state({**execution, "total": 0, "operators": {}}, now=104.0)["rows_per_s"] is None
    assert datasets._state(None, now=104.0)["state"] is None


def test_data_sets_whose_names_begin_alike_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.data import Dataset
    from ray.data._internal.dataset_id import generate_dataset_ulid

    class Part:
        def stats(self) -> str:
            return "read"

    executions = {}
    for name, runs in {"train": 2, "train_small": 3, "train_1": 1}.items():
        uuid = generate_dataset_ulid()
        for run in range(runs):
            made = SimpleNamespace(_dataset_name=f"sgm_1.{name}", _uuid=uuid, _run_index=run)
            executions[Dataset.get_dataset_id(made)] = {
                "state": "RUNNING", "progress": 0, "total": 0, "start_time": float(run), "end_time": None, "operators": {},
            }  # fmt: skip
    monkeypatch.setattr(datasets, "_executions", lambda: executions)
    here = SimpleNamespace(context=SimpleNamespace(segment_id="sgm_1"))
    monkeypatch.setattr(session, "current", lambda: here)
    shards = datasets.Shards({})
    shards._parts = {name: Part() for name in ("train", "train_small", "train_1", "valid")}
    found = {one["name"]: one["executions"] for one in shards.look()}
    assert found == {"train": 2, "train_small": 3, "train_1": 1, "valid": 0}


def reads(config: dict[str, Any]) -> None:
    """Read the data set again and again, slowly, until the test has seen enough."""
    import ray.train

    folder = Path(config["folder"])
    shard = ray.train.get_dataset_shard("train")
    for epoch in range(1000):
        for _ in shard.iter_batches(batch_size=BATCH):
            time.sleep(READS_S)
        if epoch == 0:
            (folder / "segment").write_text(tuner.get_context().segment_id)
        if (folder / "seen").exists():
            break
    tuner.report({"loss": float(epoch)})


def until(condition: Callable[[], Any], what: str, patience_s: float = 60.0) -> Any:
    end = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.1)
    return found


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("connected_ray")
def test_a_running_trial_shows_how_far_its_data_sets_are_read(tmp_path: Path) -> None:
    import ray.data
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    def twice(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"] * 2}

    data = ray.data.range(ROWS, override_num_blocks=4).map_batches(twice)
    trainer = TorchTrainer(
        reads,
        datasets={"train": data},
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.5}),
    )
    space = {"train_loop_config": {"folder": str(tmp_path)}}
    results: list[Any] = []
    search = threading.Thread(
        target=lambda: results.append(
            tuner.run(trainer, space, metric="loss", mode="min", num_samples=1, max_t=1, verbose=0)
        )
    )
    search.start()
    try:
        until(lambda: (tmp_path / "segment").exists() or results, "the trial reads")
        segment = (tmp_path / "segment").read_text()

        def look() -> schemas.DataSet | None:
            assert kept._kept is not None
            live = schemas.Live.of(1, ray.get(kept._kept.host.look.remote(segment)))
            # Ray Data registers an execution soon after it starts, and updates its state every few seconds and at its end.
            found = next(iter(live.data_sets), None)
            return found if found and found.operators and found.rows_per_s and found.stats else None

        found = until(look, "the state of the data set")
    finally:
        (tmp_path / "seen").touch()
        search.join(60)
    [result] = results
    assert result.state == "completed", result.error
    assert (found.name, found.state) == ("train", found.operators[-1].state), "they are of one moment"
    assert found.executions >= 1
    last = found.operators[-1]
    assert found.rows_per_s == pytest.approx(ROWS * min(1.0, last.blocks / 4) / found.seconds)
    assert any("twice" in operator.name for operator in found.operators)
    assert last.total_blocks == 4
    assert "twice" in found.stats
