"""Compare a DDP training step inside a trial with the same step under torchrun. Prints one JSON line.

    python -m benchmarks.ddp_step [--rounds 5] [--steps 300] [--ranks 2] [--gpu]

Without --gpu, the ranks train on CPUs, over gloo. With it, each rank has a GPU, and they train over NCCL.

Inside a trial it is measured twice: with a report every 20 steps, and with one at every step, which is unusual in practice. All
take turns, so that changes of the machine's speed affect all alike. A ratio is the median over the rounds of the ratios of the
medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WARM = 30


def step_times(steps: int, every: int) -> list[float]:
    """Return the seconds of each step of a small network under DDP, with a report every few steps. A process group must exist."""
    import torch

    gpu = torch.distributed.get_backend() == "nccl"
    device = torch.device("cuda" if gpu else "cpu")
    if not gpu:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 10),
    ]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(64, 512, device=device), torch.randint(0, 10, (64,), device=device)
    times = []
    for step in range(1, WARM + steps + 1):
        begun = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0:
            tell(float(loss.detach()))
        if gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return times[WARM:]


def tell(loss: float) -> None:
    """Report the times, but not under torchrun, where nobody receives reports."""
    from tuner.trials.training import session

    if session.current() is not None:
        session.report({"loss": loss})


def train(config: dict[str, Any]) -> None:
    import tuner

    times = step_times(config["steps"], config["every"])
    if tuner.get_context().world_rank == 0:
        Path(config["out"]).write_text(json.dumps(times))


def ours(steps: int, every: int, ranks: int, gpu: bool) -> float:
    import tuner

    with tempfile.NamedTemporaryFile() as file:
        result = tuner.run(
            train,
            {"steps": steps, "every": every, "out": file.name},
            metric="loss",
            mode="min",
            num_samples=1,
            scheduler="fifo",
            num_workers=ranks,
            use_gpu=gpu,
            backend="nccl" if gpu else "gloo",
            verbose=0,
        )
        assert result.state == "completed", result.error
        return statistics.median(json.loads(Path(file.name).read_text()))


def theirs(steps: int, ranks: int, gpu: bool) -> float:
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "STEPS": str(steps), "OUT": file.name}
        environment["BACKEND"] = "nccl" if gpu else "gloo"
        subprocess.run(command, check=True, env=environment, capture_output=True)
        return statistics.median(json.loads(Path(file.name).read_text()))


def under_torchrun() -> None:
    import torch
    import torch.distributed as dist

    if os.environ["BACKEND"] == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(os.environ["BACKEND"])
    times = step_times(int(os.environ["STEPS"]), 20)
    if dist.get_rank() == 0:
        Path(os.environ["OUT"]).write_text(json.dumps(times))
    dist.destroy_process_group()


def main() -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        under_torchrun()
        return
    import ray

    from tuner.hosts.ray.cluster import connect

    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--gpu", action="store_true")
    arguments = parser.parse_args()
    size = arguments.ranks, arguments.gpu
    os.environ.setdefault("TUNER_HOME", tempfile.mkdtemp())
    connect(cpus=max(2, arguments.ranks))
    rounds = []
    for _ in range(arguments.rounds):
        peer = theirs(arguments.steps, *size)
        rounds.append((peer, ours(arguments.steps, 20, *size) / peer, ours(arguments.steps, 1, *size) / peer))
    ray.shutdown()
    peers, every_20, every_1 = zip(*rounds, strict=True)
    row = {
        "benchmark": "ddp_step",
        "ranks": arguments.ranks,
        "torchrun_ms": round(statistics.median(peers) * 1e3, 3),
        "ratio": round(statistics.median(every_20), 3),
        "ratio_every_step_reported": round(statistics.median(every_1), 3),
        "ratios": [round(ratio, 3) for ratio in every_20],
        "ratios_every_step_reported": [round(ratio, 3) for ratio in every_1],
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
