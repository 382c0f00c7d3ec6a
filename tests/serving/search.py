"""A search with checkpoints that takes a second or two: linear models, in processes of this machine."""

from __future__ import annotations

import os
from typing import Any

import tuner
from tuner.sdk.result import Result

NAME = "lines"


def train(config: dict[str, Any]) -> None:
    """Save a linear model that multiplies its inputs by a slope. Slope 3 is the best.

    With each two trials, the slopes are two steeper, so that a search to which trials are added finds other models.
    """
    import torch

    slope = config["slope"] + 2 * (tuner.get_context().trial_number // 2)
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, slope)
    torch.nn.init.zeros_(model.bias)
    loss = abs(slope - 3.0)
    tuner.report(
        {"loss": loss}, checkpoint=lambda folder: torch.save(model.state_dict(), os.path.join(folder, "state.pt"))
    )


def searched(slopes: list[float], **options: Any) -> Result:
    """Run a trial for each slope, in this home."""
    return tuner.run(
        train,
        {"slope": tuner.grid_search(slopes)},
        metric="loss",
        mode="min",
        name=NAME,
        scheduler="fifo",
        executor="local",
        max_t=1,
        verbose=0,
        **options,
    )
