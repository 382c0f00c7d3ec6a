"""A training function written for Ray Train: `report`, `prepare_model`, `prepare_data_loader`. Only the run line is new.

python examples/ray_train_function.py [asha|pbt]
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import ray.train
import ray.train.torch
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tuner


def train_loop_per_worker(config: dict[str, Any]) -> None:
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    training, held_out = torch.utils.data.random_split(data, [1437, 360], torch.Generator().manual_seed(0))

    model = ray.train.torch.prepare_model(
        nn.Sequential(nn.Linear(64, config["width"]), nn.ReLU(), nn.Linear(config["width"], 10))
    )
    loader = ray.train.torch.prepare_data_loader(DataLoader(training, batch_size=64, shuffle=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    start = 0

    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
        model.module.load_state_dict(state["model"])
        start = state["epoch"]

    context = ray.train.get_context()
    for epoch in range(start, 9):
        if context.get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            x, y = held_out[:]
            accuracy = (model(x).argmax(1) == y).float().mean().item()
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if context.get_world_rank() == 0:
                torch.save({"model": model.module.state_dict(), "epoch": epoch + 1}, os.path.join(folder, "state.pt"))
                saved = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"accuracy": accuracy, "lr": optimizer.param_groups[0]["lr"]}, checkpoint=saved)


SPACE = {"lr": tuner.loguniform(1e-3, 1e-1), "width": 32}
SCHEDULERS = {
    "asha": lambda: tuner.ASHAScheduler(grace_period=1, reduction_factor=3),
    "pbt": lambda: tuner.PopulationBasedTraining(perturbation_interval=3, hyperparam_mutations={"lr": SPACE["lr"]}),
}


def main(scheduler: str = "asha", **options: Any) -> tuner.Result:
    # before: TorchTrainer(train_loop_per_worker, train_loop_config=..., scaling_config=ScalingConfig(num_workers=2)).fit()
    return tuner.run(
        train_loop_per_worker,
        SPACE,
        metric="accuracy",
        mode="max",
        scheduler=SCHEDULERS[scheduler](),
        **{"num_samples": 9, "num_workers": 2, "resources_per_worker": {"CPU": 0.5}, "max_t": 9, **options},
    )


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
