"""A Lightning script as a trial: the one line that was added is `prepare_trainer`.

python examples/lightning_trial.py
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tuner

SPACE = {"lr": tuner.loguniform(1e-3, 1.0), "weight_decay": tuner.loguniform(1e-6, 1e-2), "width": 16}


class Digits(pl.LightningModule):
    """A small network on 8 x 8 images of handwritten digits."""

    def __init__(self, lr: float, weight_decay: float, width: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        images, labels = batch
        logits = self.net(images)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels), sync_dist=True)
        self.log("val_accuracy", (logits.argmax(1) == labels).float().mean(), sync_dist=True, prog_bar=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(
            self.parameters(), lr=self.hparams.lr, momentum=0.9, weight_decay=self.hparams.weight_decay
        )
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)]


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, held_out = order[:1437], order[1437:]
    return (
        DataLoader(TensorDataset(images[train], labels[train]), batch_size=64, shuffle=True),
        DataLoader(TensorDataset(images[held_out], labels[held_out]), batch_size=180),
    )


def train(config: dict[str, Any]) -> None:
    training, validation = loaders()
    trainer = pl.Trainer(
        max_epochs=9, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
    )
    trainer = tuner.lightning.prepare_trainer(trainer, {"accuracy": "val_accuracy", "loss": "val_loss"})
    trainer.fit(Digits(**config), training, validation)


if __name__ == "__main__":
    result = tuner.run(
        train,
        SPACE,
        metric="accuracy",
        mode="max",
        num_samples=8,
        scheduler=tuner.ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
        num_workers=2,
        resources_per_worker={"CPU": 0.5},
    )
    print(result)
