"""Scripts that search on a cluster of several nodes. `python -m tests.nodes.searches NAME` runs one on the head's node."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import tuner


def trains(config: dict[str, Any]) -> None:
    """Train a linear model with DDP over gloo, with a checkpoint at each of 30 reports."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    context = tuner.get_context()
    model: Any = torch.nn.Linear(4, 1)
    if context.world_size > 1:
        model = DistributedDataParallel(model)
    inner = getattr(model, "module", model)
    ballast = torch.zeros(config.get("ballast", 0) // 4)  # sent between the nodes in each step
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    count = 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "model.pt"))
            count = saved["count"]
            inner.load_state_dict(saved["model"])
    elif "meet" in config:
        wait_for_both(Path(config["meet"]), context.trial_number)
    if context.world_size > 1:
        where: list[Any] = [None] * context.world_size
        names = os.environ["MASTER_ADDR"], os.environ.get("GLOO_SOCKET_IFNAME")
        dist.all_gather_object(where, [context.node_rank, context.local_rank, *names])
        if context.world_rank == 0:
            print("seats", json.dumps(where), flush=True)
    while count < config.get("steps", 30):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if len(ballast):
            dist.all_reduce(ballast)
        time.sleep(config.get("pause", 0.3))
        count += 1

        def save(folder: str, count: int = count) -> None:
            torch.save({"count": count, "model": inner.state_dict()}, Path(folder, "model.pt"))

        tuner.report({"loss": float(loss.detach())}, checkpoint=save)


def wait_for_both(folder: Path, trial: int) -> None:
    """Return once both trials have begun. One that starts late, on a busy machine, would find that the other has ended."""
    folder.mkdir(exist_ok=True)
    (folder / str(trial)).touch()
    deadline = time.monotonic() + 120
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < deadline, "the other trial has not begun"
        time.sleep(0.05)


def search(samples: int, lr: Any = None, **options: Any) -> None:
    tuner.run(
        trains,
        {"lr": lr or tuner.choice([0.01, 0.02]), **json.loads(os.environ.get("TEST_CONFIG", "{}"))},
        **{
            "metric": "loss",
            "mode": "min",
            "num_samples": samples,
            "scheduler": tuner.FIFOScheduler(),
            "num_workers": 2,
            "max_concurrent_trials": 2,
            "resources_per_worker": {"CPU": 1},
            "placement_strategy": "STRICT_SPREAD",
            "checkpoint": {"frequency": 1},
            "ray_address": os.environ["RAY_ADDRESS"],
            "name": "nodes",
            "verbose": 2,
            **options,
        },
    )


def ddp() -> None:
    """Run two DDP trials at once, each with two ranks on different nodes."""
    search(2)


def one() -> None:
    """Run one DDP trial with two ranks on different nodes."""
    search(1)


def three() -> None:
    """Run one DDP trial with three ranks on different nodes."""
    search(1, num_workers=3)


def copies() -> None:
    """Run PBT with a trial on each of two nodes, whose checkpoints are on their own disks."""
    rates = tuner.loguniform(1e-3, 1e-1)
    pbt = tuner.PopulationBasedTraining(
        perturbation_interval=2, quantile_fraction=0.5, hyperparam_mutations={"lr": rates}
    )
    search(2, rates, num_workers=1, scheduler=pbt, storage="$TEST_DISK/checkpoints", max_t=12)


def resume() -> None:
    """Resume the search after its driver has died."""
    tuner.resume("nodes", ray_address=os.environ["RAY_ADDRESS"])


if __name__ == "__main__":
    globals()[sys.argv[1]]()
