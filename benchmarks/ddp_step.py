"""Compare a DDP training step inside a trial with the same step under torchrun: two ranks, CPU. Prints one JSON line.

    python -m benchmarks.ddp_step [--rounds 5] [--steps 300]

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
    """Return the seconds of each step of a small network under DDP, with a report every few steps. A process group exists."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 10),
    ]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(64, 512), torch.randint(0, 10, (64,))
    times = []
    for step in range(1, WARM + steps + 1):
        begun = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0:
            tell(float(loss.detach()))
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


def ours(steps: int, every: int) -> float:
    import tuner

    with tempfile.NamedTemporaryFile() as file:
        result = tuner.run(
            train,
            {"steps": steps, "every": every, "out": file.name},
            metric="loss",
            mode="min",
            num_samples=1,
            scheduler="fifo",
            num_workers=2,
            verbose=0,
        )
        assert result.state == "completed", result.error
        return statistics.median(json.loads(Path(file.name).read_text()))


def theirs(steps: int) -> float:
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "STEPS": str(steps), "OUT": file.name}
        subprocess.run(command, check=True, env=environment, capture_output=True)
        return statistics.median(json.loads(Path(file.name).read_text()))


def under_torchrun() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    times = step_times(int(os.environ["STEPS"]), 20)
    if dist.get_rank() == 0:
        Path(os.environ["OUT"]).write_text(json.dumps(times))
    dist.destroy_process_group()


def main() -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        under_torchrun()
        return
    import ray

    from tuner.driver.hosts.ray.cluster import connect

    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    os.environ.setdefault("TUNER_HOME", tempfile.mkdtemp())
    connect(cpus=2)
    rounds = []
    for _ in range(arguments.rounds):
        peer = theirs(arguments.steps)
        rounds.append((peer, ours(arguments.steps, 20) / peer, ours(arguments.steps, 1) / peer))
    ray.shutdown()
    peers, every_20, every_1 = zip(*rounds, strict=True)
    row = {
        "benchmark": "ddp_step",
        "torchrun_ms": round(statistics.median(peers) * 1e3, 3),
        "ratio": round(statistics.median(every_20), 3),
        "ratio_every_step_reported": round(statistics.median(every_1), 3),
        "ratios": [round(ratio, 3) for ratio in every_20],
        "ratios_every_step_reported": [round(ratio, 3) for ratio in every_1],
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
