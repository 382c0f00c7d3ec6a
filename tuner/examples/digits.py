"""A small convolutional network on scikit-learn's handwritten digits: 1,797 real images of 8 x 8 pixels, ten classes.

Every rank runs `train`, and DDP averages the gradients. The accuracy is measured on the whole validation set.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

import tuner
from tuner.errors import MissingPackage
from tuner.names import with_extra

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.utils.data import DataLoader, TensorDataset
except ImportError as error:
    raise MissingPackage(f"this example and `tuner demo` need PyTorch: {with_extra('torch')} ({error})") from error

SPACE = {
    "lr": tuner.loguniform(1e-4, 1e-1),
    "width": tuner.choice([8, 16, 32]),
    "dropout": tuner.uniform(0.0, 0.5),
    "batch_size": tuner.choice([32, 64, 128]),
}
MAX_T = 27


class Net(nn.Module):
    """Two convolutions and a linear layer. The first convolution has `width` channels; the second has twice as many."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * width * 16, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, 1, 8, 8) to logits (batch, 10)."""
        out: Tensor = self.layers(images)
        return out


def data() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,437 training images and 360 validation images, with pixels scaled to [0, 1]. The split is always the same.

    This reads the file of `sklearn.datasets.load_digits`: importing scikit-learn would take a rank longer than an epoch.
    """
    found = find_spec("sklearn")
    assert found is not None, "scikit-learn is a dependency of tuner"
    assert found.submodule_search_locations is not None
    [package] = found.submodule_search_locations
    rows = np.loadtxt(os.path.join(package, "datasets", "data", "digits.csv.gz"), delimiter=",")
    images = torch.tensor(rows[:, :-1], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.tensor(rows[:, -1].astype(int))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, held_out = order[:1437], order[1437:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[held_out], labels[held_out])


def train(config: dict[str, Any]) -> None:
    """Train up to epoch 27, from the trial's checkpoint if it has one. Report the accuracy and the loss after each epoch."""
    torch.set_num_threads(1)
    training, validation = data()
    model = tuner.torch.prepare_model(Net(config["width"], config.get("dropout", 0.0)))
    loader = tuner.torch.prepare_data_loader(
        DataLoader(training, batch_size=config.get("batch_size", 64), shuffle=True)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9, weight_decay=1e-4)
    start = 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
        bare(model).load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        for group in optimizer.param_groups:
            group["lr"] = config["lr"]  # an exploit may have changed the learning rate
        start = state["epoch"]
    for epoch in range(start, MAX_T):
        model.train()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        tuner.report(evaluate(model, validation), checkpoint=saver(model, optimizer, epoch + 1))


def evaluate(model: nn.Module, validation: TensorDataset) -> dict[str, float]:
    """Return the accuracy and the loss on the validation set. Each rank evaluates a share of the set; the counts are summed."""
    context = tuner.get_context()
    images, labels = (t[context.world_rank :: context.world_size] for t in validation.tensors)
    model.eval()
    with torch.no_grad():
        logits = bare(model)(images)
    total = torch.tensor(
        [
            (logits.argmax(1) == labels).sum().item(),
            nn.functional.cross_entropy(logits, labels, reduction="sum").item(),
            float(len(labels)),
        ],
        dtype=torch.float64,
    )
    if dist.is_initialized():
        dist.all_reduce(total)
    return {"accuracy": (total[0] / total[2]).item(), "loss": (total[1] / total[2]).item()}


def saver(model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> Callable[[str], None]:
    """Return a function that saves a checkpoint. `tuner.report` calls it only if a checkpoint is due."""

    def save(folder: str) -> None:
        state = {"model": bare(model).state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        if tuner.get_context().world_rank == 0:
            torch.save(state, os.path.join(folder, "state.pt"))

    return save


def bare(model: nn.Module) -> nn.Module:
    """Return the user's module inside DDP's wrapper."""
    return model.module if hasattr(model, "module") and isinstance(model.module, nn.Module) else model
