"""A Lightning script written for Ray Train: `RayDDPStrategy`, `RayLightningEnvironment`, `RayTrainReportCallback`.

python examples/ray_lightning.py [asha|pbt]
"""

from __future__ import annotations

import os
import sys
from typing import Any

import lightning.pytorch as pl
import ray.train
import torch
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tuner


class Digits(pl.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        accuracy = (self.model(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", accuracy, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)

    def on_train_start(self) -> None:
        """Set the configuration's learning rate: after an exploit, the restored optimizer still has the donor's."""
        for group in self.optimizers().param_groups:  # type: ignore[union-attr]
            group["lr"] = self.lr

    def on_train_epoch_start(self) -> None:
        self.log("lr", self.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]


def train_loop_per_worker(config: dict[str, Any]) -> None:
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    training, held_out = torch.utils.data.random_split(data, [1437, 360], torch.Generator().manual_seed(0))
    trainer = pl.Trainer(
        max_epochs=6,
        accelerator="cpu",
        devices="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback()],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer = prepare_trainer(trainer)
    model = Digits(config["lr"])
    loaders = DataLoader(training, batch_size=64, shuffle=True), DataLoader(held_out, batch_size=64)
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            path = os.path.join(folder, RayTrainReportCallback.CHECKPOINT_NAME)
            trainer.fit(model, *loaders, ckpt_path=path)
    else:
        trainer.fit(model, *loaders)


SPACE = {"lr": tuner.loguniform(1e-3, 1e-1)}
SCHEDULERS = {
    "asha": lambda: tuner.ASHAScheduler(grace_period=1, reduction_factor=3),
    "pbt": lambda: tuner.PopulationBasedTraining(perturbation_interval=2, hyperparam_mutations=SPACE),
}


def main(scheduler: str = "asha", **options: Any) -> tuner.Result:
    return tuner.run(
        train_loop_per_worker,
        SPACE,
        metric="accuracy",
        mode="max",
        scheduler=SCHEDULERS[scheduler](),
        **{"num_samples": 6, "num_workers": 2, "resources_per_worker": {"CPU": 0.5}, "max_t": 6, **options},
    )


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
