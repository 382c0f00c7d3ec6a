"""Elastic trials on a real Ray: a survivor grows into the freed worker, and its training goes on as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner.settings import Settings
from tuner.store import Store

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("private_ray")]


def train(config: dict[str, Any]) -> None:
    import time

    import torch

    context = tuner.get_context()
    data = torch.utils.data.TensorDataset(torch.arange(16.0).unsqueeze(1))
    loader = tuner.torch.prepare_data_loader(torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
    start = 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            start = int(Path(folder, "epoch").read_text())
    for epoch in range(start + 1, config["epochs"] + 1):
        batches = [batch.flatten() for (batch,) in loader]
        time.sleep(config["seconds"])
        tuner.report(
            {
                "loss": 1 / epoch,
                "ranks": context.get_world_size(),
                "base": context.get_base_world_size(),
                "samples": len(batches[0]),
                "batches": len(batches),
            },
            checkpoint=lambda folder, epoch=epoch: Path(folder, "epoch").write_text(str(epoch)),
        )


def test_a_survivor_grows_and_keeps_its_global_batch_size() -> None:
    result = tuner.run(
        train,
        {"epochs": tuner.grid_search([2, 100_000]), "seconds": 0.05},
        metric="loss",
        mode="min",
        max_t=100_000,  # so much is left that growing pays off, however long a restart takes
        stop={"ranks": 2},
        scheduler="fifo",
        num_workers={"min": 1, "max": 2},
        verbose=0,
    )
    assert result.state == "completed", result.error
    short, long = result.trials
    assert [report["ranks"] for report in short.history] == [1, 1]
    reports = long.history
    assert [report["training_iteration"] for report in reports] == list(range(1, len(reports) + 1)), (
        "nothing was repeated"
    )
    last = reports[-1]
    assert (last["ranks"], last["base"]) == (2, 1)
    assert {report["samples"] * report["ranks"] for report in reports} == {4}
    assert {report["batches"] for report in reports} == {4}
    with Store.open(Settings.from_env().database_url) as store:
        experiment = store.experiments.get(result.experiment_id).id
        segments = store.trials.segments(experiment)[long.number]
        (resize,) = store.log.decisions(experiment, kinds=["resize"]).items
    assert [(one.workers, one.cause) for one in segments] == [(1, "start"), (2, "resize")]
    assert "from 1 to 2 workers: 1 of 2 are free and no trial waits" in resize.reason
