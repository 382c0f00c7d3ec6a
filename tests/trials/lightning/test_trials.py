"""Lightning trials of two ranks through `tuner.run` on a real Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner.domain.states import TrialState

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("private_ray")]


@pytest.mark.long  # test_groups.py pauses, continues and exploits a Lightning trial of two ranks
def test_the_example_under_asha(lightning_example: Any) -> None:
    result = tuner.run(
        lightning_example.train,
        {**lightning_example.SPACE, "lr": tuner.grid_search([0.2, 0.001, 0.0005, 0.0001])},
        metric="accuracy",
        mode="max",
        num_samples=1,
        scheduler=tuner.ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
        num_workers=2,
        resources_per_worker={"CPU": 0.5},
        max_concurrent_trials=1,
        verbose=0,
    )
    assert result.state == "completed"
    assert result.error is None
    assert [trial.state for trial in result.trials] == [TrialState.COMPLETED] + [TrialState.STOPPED] * 3
    assert [trial.iterations for trial in result.trials] == [9, 1, 1, 1]
    assert result.best_config is not None
    assert result.best_config["lr"] == 0.2
    assert result.best_value is not None
    assert result.best_value > 0.9
    assert result.best_checkpoint is not None
    with result.best_checkpoint.as_directory() as folder:
        best = lightning_example.Digits.load_from_checkpoint(Path(folder) / "checkpoint.ckpt")
    assert best.hparams["lr"] == 0.2
    images, labels = next(iter(lightning_example.loaders()[1]))
    assert (best.net(images).argmax(1) == labels).float().mean() > 0.85


def population(config: dict[str, Any]) -> None:
    """Report the learning rate that the optimizer used, and the one of the configuration."""
    import pytorch_lightning as pl
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    from tests.trials.lightning.cases import data

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            self.log("used", self.trainer.optimizers[0].param_groups[0]["lr"])
            self.log("wanted", config["lr"])
            self.log("momentum", self.trainer.optimizers[0].param_groups[0]["momentum"] - config["momentum"])
            return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("loss", nn.functional.mse_loss(self.layer(batch[0]), batch[1]), sync_dist=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=config["lr"], momentum=config["momentum"])

    trainer = pl.Trainer(
        max_epochs=12, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
    )
    tuner.lightning.prepare_trainer(trainer)
    assert trainer.world_size == 2
    trainer.fit(Net(), DataLoader(data(), batch_size=8), DataLoader(data(16), batch_size=8))


@pytest.mark.long  # test_groups.py has one exploit of a Lightning trial, tests/cli/home/test_explain.py one of a search
def test_population_based_training_goes_on_with_the_new_hyperparameters() -> None:
    result = tuner.run(
        population,
        {"lr": tuner.loguniform(1e-5, 5e-2), "momentum": tuner.uniform(0.1, 0.9)},
        metric="loss",
        mode="min",
        num_samples=3,
        scheduler=tuner.PopulationBasedTraining(perturbation_interval=3, quantile_fraction=0.34, synch=True),
        max_t=9,
        num_workers=2,
        resources_per_worker={"CPU": 0.3},
        verbose=0,
    )
    assert result.error is None
    assert [trial.state for trial in result.trials] == [TrialState.COMPLETED] * 3
    changed = 0
    for trial in result.trials:
        assert {report["training_iteration"] for report in trial.history} == set(range(1, 10))
        for report in trial.history:
            assert report["used"] == pytest.approx(report["wanted"], rel=1e-6)
            assert report["momentum"] == pytest.approx(0, abs=1e-6)
            assert report["epoch"] == report["training_iteration"] - 1
        changed += len({report["wanted"] for report in trial.history}) > 1
    assert changed >= 1


def alone(config: dict[str, Any]) -> None:
    """Train with `ReportCallback` in the Trainer and without `prepare_trainer`."""
    import pytorch_lightning as pl

    from tests.trials.lightning.cases import loaders, module

    def sgd(net: Any, _: Any) -> Any:
        import torch

        return torch.optim.SGD(net.parameters(), lr=config["lr"])

    trainer = pl.Trainer(
        max_epochs=100,
        accelerator="cpu",
        callbacks=[tuner.lightning.ReportCallback({"loss": "val_loss"})],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module("pytorch_lightning", config, sgd), *loaders())


@pytest.mark.long  # test_groups.py uses the callback, and test_report.py has what it reports
def test_the_callback_alone_is_enough_for_the_default_search_which_finishes_its_leader() -> None:
    result = tuner.run(
        alone,
        {"lr": tuner.loguniform(1e-4, 5e-2)},
        metric="loss",
        mode="min",
        num_samples=8,
        max_t=5,
        budget=3,
        max_concurrent_trials=2,
        resources_per_worker={"CPU": 0.5},
        verbose=0,
    )
    assert result.error is None
    assert TrialState.FAILED not in [trial.state for trial in result.trials]
    segments = [row["segment"] for trial in result.trials for row in trial.history]
    assert max(segments) > 1, "trials were paused, and resumed from their checkpoints"
    for trial in result.trials:
        assert [row["training_iteration"] for row in trial.history] == list(range(1, trial.iterations + 1))
    assert result.best_trial is not None
    assert result.best_trial.state is TrialState.COMPLETED
    assert result.best_finished is not None
    assert result.best_finished.iterations == 5
