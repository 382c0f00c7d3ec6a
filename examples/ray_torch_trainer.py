"""A `TorchTrainer` with Ray Data, passed as it is: tuner uses its workers, retries and checkpoints.

    python examples/ray_torch_trainer.py [asha|pbt]

Ray Data runs beside the ranks, on CPUs that no worker group holds. Here one trial runs at a time, and holds one of two CPUs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import numpy as np
import ray
import ray.data
import torch
from ray import train, tune
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

import tuner


def train_loop_per_worker(config: dict[str, Any]) -> None:
    model = prepare_model(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    start = 0
    if (checkpoint := train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
        model.module.load_state_dict(state["model"])
        start = state["epoch"]
    shard = train.get_dataset_shard("train")
    for epoch in range(start, config["epochs"]):
        total, rows = 0.0, 0
        for batch in shard.iter_torch_batches(batch_size=config["batch_size"], dtypes=torch.float32):
            loss = nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, rows = total + loss.item() * len(batch["y"]), rows + len(batch["y"])
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if train.get_context().get_world_rank() == 0:
                torch.save({"model": model.module.state_dict(), "epoch": epoch + 1}, os.path.join(folder, "state.pt"))
                saved = train.Checkpoint.from_directory(folder)
            train.report({"loss": total / rows, "rows": rows, "lr": optimizer.param_groups[0]["lr"]}, checkpoint=saved)


def dataset(rows: int = 256) -> Any:
    """Return rows of x, and of y = x . (1, -2, 3) with a little noise."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 3))
    y = x @ np.array([1.0, -2.0, 3.0]) + 0.01 * random.normal(size=rows)
    return ray.data.from_items([{"x": row, "y": target} for row, target in zip(x, y, strict=True)])


def trainer() -> TorchTrainer:
    return TorchTrainer(
        train_loop_per_worker,
        train_loop_config={"lr": 0.01, "batch_size": 16, "epochs": 4},
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(
            name="linear",
            failure_config=train.FailureConfig(max_failures=1),
            checkpoint_config=train.CheckpointConfig(num_to_keep=1),
        ),
        datasets={"train": dataset()},
    )


LR = tune.loguniform(1e-3, 1e-1)
SCHEDULERS = {
    "asha": lambda: tuner.ASHAScheduler(grace_period=1, reduction_factor=2),
    "pbt": lambda: tuner.PopulationBasedTraining(
        perturbation_interval=2, hyperparam_mutations={"train_loop_config": {"lr": LR}}
    ),
}


def main(scheduler: str = "asha", **options: Any) -> tuner.Result:
    if not ray.is_initialized():
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    # before: tune.Tuner(trainer(), param_space={"train_loop_config": {"lr": LR}}, tune_config=...).fit()
    return tuner.run(
        trainer(),
        {"train_loop_config": {"lr": LR}},
        metric="loss",
        mode="min",
        scheduler=SCHEDULERS[scheduler](),
        **{"num_samples": 4, "max_t": 4, **options},
    )


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
