"""A `ray.tune.Trainable` class: saved and loaded for pauses and PBT, on any number of ranks. Only the run line is new.

python examples/ray_trainable.py [asha|pbt]
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from ray import tune
from sklearn.datasets import load_digits
from torch import nn

import tuner


class Digits(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        images, labels = load_digits(return_X_y=True)
        self.x, self.y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"], momentum=config["momentum"])

    def step(self) -> dict[str, Any]:
        for batch in torch.randperm(1437).split(64):
            loss = nn.functional.cross_entropy(self.model(self.x[batch]), self.y[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        with torch.no_grad():
            accuracy = (self.model(self.x[1437:]).argmax(1) == self.y[1437:]).float().mean().item()
        return {"accuracy": accuracy, "lr": self.optimizer.param_groups[0]["lr"]}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        torch.save(self.model.state_dict(), os.path.join(checkpoint_dir, "model.pth"))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.model.load_state_dict(torch.load(os.path.join(checkpoint_dir, "model.pth"), weights_only=True))


SPACE = {"lr": tune.loguniform(1e-3, 1e-1), "momentum": tune.uniform(0.5, 0.95)}
SCHEDULERS = {
    "asha": lambda: tuner.ASHAScheduler(grace_period=1, reduction_factor=3),
    "pbt": lambda: tuner.PopulationBasedTraining(perturbation_interval=3, hyperparam_mutations=SPACE),
}


def main(scheduler: str = "asha", **options: Any) -> tuner.Result:
    # before: tune.Tuner(Digits, param_space=SPACE, tune_config=tune.TuneConfig(metric="accuracy", mode="max", ...)).fit()
    return tuner.run(
        Digits,
        SPACE,
        metric="accuracy",
        mode="max",
        scheduler=SCHEDULERS[scheduler](),
        **{"num_samples": 9, "num_workers": 2, "resources_per_worker": {"CPU": 0.5}, "max_t": 9, **options},
    )


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
