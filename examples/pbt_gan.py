"""Population based training of a GAN on points in the plane, compared with the same population without exploits.

python examples/pbt_gan.py
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

import tuner


def ring(count: int) -> torch.Tensor:
    """Draw points from eight clusters on a circle."""
    angle = torch.randint(0, 8, (count,)) * math.tau / 8
    return torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(count, 2)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the energy distance between two samples: 0 if they come from one distribution."""
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


class Gan:
    """Each step trains both networks with 50 batches."""

    def setup(self, config: dict[str, Any]) -> None:
        self.lr = {"generator": config["lr_generator"], "critic": config["lr_critic"]}
        self.nets = nn.ModuleDict(
            {
                "generator": nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2)),
                "critic": nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1)),
            }
        )
        self.optimizers = {n: torch.optim.Adam(self.nets[n].parameters(), lr, (0.5, 0.9)) for n, lr in self.lr.items()}

    def generated(self, count: int) -> torch.Tensor:
        return self.nets["generator"](torch.randn(count, 8))

    def step(self) -> dict[str, Any]:
        judge, softplus = self.nets["critic"], nn.functional.softplus
        for _ in range(50):
            for net in ("critic", "generator"):
                fake = judge(self.generated(64))
                loss = softplus(-fake) if net == "generator" else softplus(fake) + softplus(-judge(ring(64)))
                self.optimizers[net].zero_grad()
                loss.mean().backward()
                self.optimizers[net].step()
        with torch.no_grad():
            return {"distance": distance(self.generated(1000), ring(1000)), "lr": self.lr["generator"]}

    def save(self, folder: str) -> None:
        states = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        torch.save({"nets": self.nets.state_dict(), "optimizers": states}, f"{folder}/state.pt")

    def load(self, folder: str) -> None:
        state = torch.load(f"{folder}/state.pt", weights_only=True)
        self.nets.load_state_dict(state["nets"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
            optimizer.param_groups[0]["lr"] = self.lr[name]  # the configuration's, not the checkpoint's


SPACE = {"lr_generator": tuner.loguniform(1e-5, 1e-2), "lr_critic": tuner.loguniform(1e-5, 1e-2)}


def main(scheduler: Any, **options: Any) -> tuner.Result:
    defaults = {"num_samples": 8, "max_t": 24, "search_alg": "random", "seed": 1, "scope": "last"}
    return tuner.run(Gan, SPACE, metric="distance", mode="min", scheduler=scheduler, **{**defaults, **options})


if __name__ == "__main__":
    pbt = tuner.PopulationBasedTraining(perturbation_interval=3, hyperparam_mutations=SPACE, synch=True)
    for what, scheduler in (("with exploits", pbt), ("without", tuner.FIFOScheduler())):
        ends = sorted(trial.metrics["distance"] for trial in main(scheduler).trials)
        print(f"{what}: best {ends[0]:.4f}, median {(ends[3] + ends[4]) / 2:.4f} at the end")
