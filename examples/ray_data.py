"""A Ray Data pipeline that all trials share: it runs once, and each rank of each trial reads its part of the result.

python examples/ray_data.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import ray.data
import torch
from ray.train import DataConfig, ScalingConfig, get_dataset_shard
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from torch import nn

import tuner


def scaled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"image": (batch["image"] / 16).astype(np.float32), "label": batch["label"]}


def train(config: dict[str, Any]) -> None:
    training, held_out = get_dataset_shard("train"), get_dataset_shard("held_out")
    model = tuner.torch.prepare_model(nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    for _ in range(6):
        rows = 0
        for batch in training.iter_torch_batches(batch_size=32, local_shuffle_buffer_size=256):
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows += len(batch["label"])
        with torch.no_grad():
            right = [model(b["image"]).argmax(1) == b["label"] for b in held_out.iter_torch_batches(batch_size=360)]
        tuner.report({"accuracy": torch.cat(right).float().mean().item(), "rows": rows})


def main(**options: Any) -> tuner.Result:
    rows = [{"image": image, "label": label} for image, label in zip(*load_digits(return_X_y=True), strict=True)]
    # without materialize(), every trial would run the pipeline again, in each epoch
    data = ray.data.from_items(rows, override_num_blocks=8).random_shuffle(seed=0).map_batches(scaled).materialize()
    training, held_out = data.split_at_indices([1437])
    trainer = TorchTrainer(
        train,
        datasets={"train": training, "held_out": held_out},
        dataset_config=DataConfig(datasets_to_split=["train"]),  # each rank reads all of "held_out"
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.25}),  # leaves a CPU to Ray Data
    )
    space = {"train_loop_config": {"lr": tuner.loguniform(1e-3, 1.0), "momentum": tuner.uniform(0.0, 0.95)}}
    return tuner.run(
        trainer,
        space,
        metric="accuracy",
        mode="max",
        **{"num_samples": 6, "max_t": 6, "scheduler": tuner.ASHAScheduler(grace_period=1), **options},
    )


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    result = main()
    print(result)
    print(f"each of 2 ranks read {result.best_trial.metrics['rows']:.0f} of 1437 rows per epoch")
