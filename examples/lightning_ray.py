"""A plain Lightning script that trains on Ray workers: the argument `strategy` is all that was added.

python examples/lightning_ray.py
"""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tuner


class Digits(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        accuracy = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("val_accuracy", accuracy, sync_dist=True, prog_bar=True)

    def predict_step(self, batch: list[Tensor], index: int) -> Tensor:
        return self.net(batch[0]).argmax(1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    training, held_out = torch.utils.data.random_split(data, [1437, 360], torch.Generator().manual_seed(0))
    best = ModelCheckpoint(monitor="val_accuracy", mode="max")
    trainer = pl.Trainer(
        max_epochs=5,
        strategy=tuner.lightning.RayStrategy(num_workers=2, resources_per_worker={"CPU": 0.5}),
        callbacks=[best, EarlyStopping("val_accuracy", mode="max", patience=3)],
    )
    model = Digits()
    held_out_loader = DataLoader(held_out, batch_size=60)
    trainer.fit(model, DataLoader(training, batch_size=32, shuffle=True), held_out_loader)
    print("metrics:", {name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
    print("best:", best.best_model_path, float(best.best_model_score))

    (validated,) = trainer.validate(model, held_out_loader, ckpt_path="best", verbose=False)
    predicted = torch.cat(trainer.predict(model, held_out_loader))
    truth = torch.tensor([int(label) for _, label in held_out])
    print("validated:", validated, "predicted here:", float((predicted == truth).float().mean()))


if __name__ == "__main__":
    main()
