"""Measure what a profile costs: steps per second of a training loop while a rank profiles itself. Prints one JSON line.

    python -m benchmarks.profiling [--rounds 5] [--window 4]

There are two loops: a small torch network, and one in pure Python that makes small objects, which is the worst case.
Each round has a window of time without a profile, one with samples, one with traced memory and, if py-spy is on the
PATH, one with py-spy at the same rate. A figure is the median over the rounds of the steps per second, divided by those
of the window without a profile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner.trials.messages.profiling import ProfileKind, ProfileRequest
from tuner.trials.runtime.measures.profiler import Profiler, Subject

RATE_HZ = 100.0


def torch_step() -> Callable[[], None]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(64, 512), torch.randint(0, 10, (64,))

    def step() -> None:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def python_step() -> Callable[[], None]:
    def step() -> None:
        rows = [(number, str(number * number)) for number in range(1000)]
        rows.sort(key=lambda row: row[1])

    return step


class Loop:
    """Calls a function in a thread, and counts the calls."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._over, self._count, self._step = threading.Event(), 0, step
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name="train")
        self.thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            self._step()
            self._count += 1

    def rate(self, seconds: float) -> float:
        """Count the calls for the given number of seconds, and return how many there were per second."""
        begun, before = time.perf_counter(), self._count
        time.sleep(seconds)
        return (self._count - before) / (time.perf_counter() - begun)

    def close(self) -> None:
        self._over.set()
        self.thread.join()


def plain(loop: Loop, window: float) -> float:
    return loop.rate(window)


def profiled(kind: ProfileKind) -> Callable[[Loop, float], float]:
    def measure(loop: Loop, window: float) -> float:
        profiler = Profiler()
        subject = Subject("seg", "benchmark", loop.thread.ident, loop.ended)
        refused = profiler.start(subject, ProfileRequest(kind=kind, duration_s=window + 0.2, rate_hz=RATE_HZ))
        assert refused is None
        rate = loop.rate(window)
        while profiler.take("seg") is None:
            time.sleep(0.01)
        return rate

    return measure


def py_spy(loop: Loop, window: float) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = ["py-spy", "record", "--pid", str(os.getpid()), "--rate", f"{RATE_HZ:g}", "--format", "raw"]
        out = Path(folder, "out.txt")
        spying = subprocess.Popen(
            [*command, "--duration", f"{window + 2:.0f}", "--output", str(out)], stderr=subprocess.PIPE, text=True
        )
        time.sleep(1.0)  # it reads the symbols of the process first
        rate = loop.rate(window)
        _, said = spying.communicate()
        if not out.exists():
            raise RuntimeError(f"py-spy has recorded nothing: {said.strip()}")
        return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=4.0, help="seconds of each measurement")
    arguments = parser.parse_args()
    kinds: dict[str, Callable[[Loop, float], float]] = {"cpu": profiled("cpu"), "memory": profiled("memory")}
    if shutil.which("py-spy"):
        kinds["py_spy"] = py_spy
    found: dict[str, Any] = {"rate_hz": RATE_HZ, "rounds": arguments.rounds, "load": os.getloadavg()[0]}
    for name, make in (("torch", torch_step), ("python", python_step)):
        loop = Loop(make())
        try:
            loop.rate(1.0)
            ratios: dict[str, list[float]] = {kind: [] for kind in kinds}
            rates = []
            for number in range(arguments.rounds):
                for kind in sorted(kinds, reverse=number % 2 == 1):
                    rates.append(plain(loop, arguments.window))
                    ratios[kind].append(kinds[kind](loop, arguments.window) / rates[-1])
        finally:
            loop.close()
        found[name] = {
            "steps_per_s": round(statistics.median(rates), 1),
            **{kind: round(statistics.median(values), 3) for kind, values in ratios.items()},
        }
    print(json.dumps({"benchmark": "profiling", **found}))


if __name__ == "__main__":
    main()
