"""A small transformer whose parameters are sharded with FSDP2, and sharded checkpoints: every rank saves its own part.

python examples/fsdp_transformer.py [asha|pbt]
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import tuner

WORDS, LENGTH = 16, 12


class Transformer(nn.Module):  # learns to reverse a sentence
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(width, WORDS)

    def forward(self, sentences: torch.Tensor) -> torch.Tensor:
        x = self.words(sentences) + self.places(torch.arange(LENGTH, device=sentences.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(config: dict[str, Any]) -> None:
    device = tuner.torch.get_device()
    model = Transformer(config["width"]).to(device)
    for part in (*model.layers, model):
        fully_shard(part)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])

    def state() -> dict[str, Any]:
        return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))

    if (checkpoint := tuner.get_checkpoint()) is not None:
        restored = state()
        with checkpoint.as_directory() as folder:
            dcp.load(restored, checkpoint_id=folder)  # each rank reads what it needs
        set_state_dict(model, optimizer, model_state_dict=restored["model"], optim_state_dict=restored["optimizer"])
        optimizer.param_groups[0]["lr"] = config["lr"]  # PBT may have changed it

    for _ in range(tuner.get_context().start_iteration, 9):
        for _ in range(30):
            sentences = torch.randint(0, WORDS, (64, LENGTH), device=device)
            loss = nn.functional.cross_entropy(model(sentences).flatten(0, 1), sentences.flip(1).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        metrics = {"loss": loss.item(), "lr": optimizer.param_groups[0]["lr"]}
        tuner.report(metrics, checkpoint=lambda folder: dcp.save(state(), checkpoint_id=folder))


SPACE = {"lr": tuner.loguniform(1e-4, 3e-2), "width": 32}
SCHEDULERS = {
    "asha": lambda: tuner.ASHAScheduler(grace_period=1, reduction_factor=3),
    "pbt": lambda: tuner.PopulationBasedTraining(perturbation_interval=3, hyperparam_mutations={"lr": SPACE["lr"]}),
}


def main(scheduler: str = "asha", **options: Any) -> tuner.Result:
    options = {"num_samples": 6, "num_workers": 2, "resources_per_worker": {"CPU": 0.5}, "max_t": 9, **options}
    return tuner.run(train, SPACE, metric="loss", mode="min", scheduler=SCHEDULERS[scheduler](), **options)


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
