"""Training code as a class: `setup`, `step`, `save`, `load`. The data are passed in addition to the configuration.

python examples/class_form.py [asha|pbt]
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import tuner


class Digits:
    def setup(self, config: dict[str, Any], images: np.ndarray, labels: np.ndarray) -> None:
        """Build the model. Each start of the trial, including a start after an exploit, creates a new object."""
        self.x, self.y = torch.tensor(images, dtype=torch.float32), torch.tensor(labels)
        self.model = tuner.torch.prepare_model(nn.Linear(64, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"])
        context = tuner.get_context()
        self.mine = slice(context.world_rank, 1437, context.world_size)

    def step(self) -> dict[str, Any]:
        for x, y in zip(self.x[self.mine].split(64), self.y[self.mine].split(64), strict=True):
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        with torch.no_grad():
            right = self.model(self.x[1437:]).argmax(1) == self.y[1437:]
        return {"accuracy": right.float().mean().item(), "lr": self.optimizer.param_groups[0]["lr"]}

    def save(self, folder: str) -> None:
        torch.save(self.model.state_dict(), os.path.join(folder, "model.pt"))

    def load(self, folder: str) -> None:
        self.model.load_state_dict(torch.load(os.path.join(folder, "model.pt"), weights_only=True))


SPACE = {"lr": tuner.loguniform(1e-3, 1.0)}
SCHEDULERS = {
    "asha": lambda: tuner.ASHAScheduler(grace_period=1, reduction_factor=3),
    "pbt": lambda: tuner.PopulationBasedTraining(perturbation_interval=3, hyperparam_mutations=SPACE),
}


def main(scheduler: str = "asha", **options: Any) -> tuner.Result:
    images, labels = load_digits(return_X_y=True)
    return tuner.run(
        tuner.with_parameters(Digits, images=images / 16, labels=labels),
        SPACE,
        metric="accuracy",
        mode="max",
        scheduler=SCHEDULERS[scheduler](),
        **{"num_samples": 9, "num_workers": 2, "resources_per_worker": {"CPU": 0.5}, "max_t": 9, **options},
    )


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
