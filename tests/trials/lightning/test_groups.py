"""Lightning on real worker groups: two ranks that are paused and resumed, with whole and with sharded checkpoints."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.trials.conftest import Bench
from tuner.domain.segments import Verdict

pytestmark = pytest.mark.ray


def train(config: dict[str, Any]) -> None:
    import warnings

    import lightning.pytorch as pl
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    import tuner
    from tests.trials.lightning.cases import data

    warnings.simplefilter("ignore")

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1))

        def configure_model(self) -> None:
            if config["sharded"]:
                torch.distributed.fsdp.fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch: Any, index: int) -> Any:
            self.log("rate", self.trainer.optimizers[0].param_groups[0]["lr"])
            return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("loss", nn.functional.mse_loss(self.layer(batch[0]), batch[1]), sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=config["lr"])
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

    strategy: Any = "auto"
    if config["sharded"]:
        strategy = pl.strategies.ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    trainer = pl.Trainer(
        max_epochs=4, logger=False, enable_checkpointing=False, enable_progress_bar=False, strategy=strategy
    )
    tuner.lightning.prepare_trainer(trainer, on=config.get("on", "validation_end"))
    trainer.fit(Net(), DataLoader(data(), batch_size=8, shuffle=True), DataLoader(data(16), batch_size=8))


@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_pause_leaves_no_trace_and_an_exploit_changes_what_it_says(bench: Bench, sharded: bool) -> None:
    params = {"sharded": sharded, "lr": 0.01}
    straight = bench.launch(train, 2, params=params)
    outcome = bench.run(straight)
    assert (outcome.kind, outcome.warning) == ("returned", "")
    first = bench.launch(train, 2, params=params)
    assert bench.run(first, {2: Verdict(action="pause", save_checkpoint=True)}).kind == "left"
    (saved,) = bench.checkpoints(first)
    inside = os.path.join(saved.uri, "checkpoint.ckpt")
    assert os.path.isdir(inside) == sharded
    second = bench.launch(train, 2, params=params, checkpoint=saved, start_iteration=2)
    assert bench.run(second).kind == "returned"

    def curve(*launches: Any) -> list[dict[str, float]]:
        return [dict(report.metrics) for launch in launches for report in bench.reports(launch)]

    assert curve(first, second) == curve(straight)
    exploit = bench.launch(train, 2, params={**params, "lr": 0.08}, checkpoint=saved, start_iteration=2)
    assert bench.run(exploit).kind == "returned"
    assert [report["rate"] for report in curve(exploit)] == pytest.approx([0.02, 0.01])


def test_reports_at_batches_wait_for_the_objective_on_all_ranks(bench: Bench) -> None:
    params = {"sharded": False, "lr": 0.01, "on": ["train_batch_end", "validation_end"]}
    launch = bench.launch(train, 2, params=params, metric="loss")
    outcome = bench.run(launch)
    assert outcome.kind == "returned", outcome.failure
    found = [(report.step, "loss" in report.metrics) for report in bench.reports(launch)]
    assert found == [(step, step % 3 == 0) for step in range(3, 13)], "three batches an epoch"
