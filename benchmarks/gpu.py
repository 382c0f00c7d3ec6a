"""Run on a GPU the measurements that are otherwise made on CPUs only. Prints a table, and a JSON line for each case.

    python -m benchmarks.gpu [--cpu] [--only CASE ...] [--logs FOLDER]

One device is enough; two or more also compare NCCL across devices. --cpu runs each case as far as a CPU goes: gloo, not NCCL,
and smaller sizes. Cases, or parts of them, that are meaningless without a GPU then say so.

Each case runs in a process of its own, with a Ray and a home of its own, so that a case that fails does not spoil the others.
With --logs, what each case writes to its standard error is kept in a file of this folder.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import peers

MIB = 1 << 20
NEEDS_GPU = "needs a GPU"
Figures = dict[str, Any]


# Training functions


def _device() -> Any:
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _model(width: int) -> Any:
    import torch

    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))


def _wait() -> None:
    """Wait until the GPU has finished its queued work. On a CPU, everything is done already."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _steps(model: Any, config: dict[str, Any], context: Callable[[], Any] = contextlib.nullcontext) -> dict[str, float]:
    """Train for some steps. Return the median milliseconds of a step, the first and the last loss, and who trained."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.randn(config["batch"], config["width"], device=_device())
    labels = torch.randint(0, 10, (config["batch"],), device=_device())
    scaler = torch.amp.GradScaler("cuda", enabled=config.get("scale", False))
    times, losses = [], []
    for _ in range(config["steps"]):
        begun = time.perf_counter()
        with context():
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        _wait()
        times.append((time.perf_counter() - begun) * 1e3)
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0], f"the loss went from {losses[0]} to {losses[-1]}"
    found = {
        "step_ms": statistics.median(times[len(times) // 4 :]),
        "first_step_ms": times[0],
        "pid": float(os.getpid()),
    }
    return found | {"loss": losses[-1], "nccl": float(dist.is_initialized() and dist.get_backend() == "nccl")}


def trains_ddp(config: dict[str, Any]) -> None:
    import tuner

    tuner.report(_steps(tuner.torch.prepare_model(_model(config["width"])), config))


def trains_sharded(config: dict[str, Any]) -> None:
    """Train with FSDP2, save a checkpoint with a shard of each rank, and load it back."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    import tuner

    mesh = init_device_mesh(_device().type, (dist.get_world_size(),))
    model = _model(config["width"]).to(_device())
    whole = sum(parameter.numel() for parameter in model.parameters())
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    found = _steps(model, config)
    parameters = [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]
    found["share_of_a_rank"] = sum(parameter.to_local().numel() for parameter in parameters) / whole
    begun = time.perf_counter()
    tuner.report(found, checkpoint=lambda folder: dcp.save(model.state_dict(), checkpoint_id=folder))
    tuner.report({**found, "save_s": time.perf_counter() - begun})


def trains_compiled(config: dict[str, Any]) -> None:
    import torch

    import tuner

    tuner.report(_steps(torch.compile(_model(config["width"]).to(_device())), config))


def trains_mixed(config: dict[str, Any]) -> None:
    import torch

    import tuner

    model = tuner.torch.prepare_model(_model(config["width"]))
    kind = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": None}[config["precision"]]

    def context() -> Any:
        return contextlib.nullcontext() if kind is None else torch.autocast(_device().type, dtype=kind)

    tuner.report(_steps(model, {**config, "scale": kind is torch.float16}, context))


def touches(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    import tuner

    if dist.get_world_size() > 1:
        dist.all_reduce(torch.ones(1))  # over gloo
    _ = torch.ones(1, device=_device()).item()
    tuner.report({"pid": float(os.getpid())})


def hoards(config: dict[str, Any]) -> None:
    """Keep a large tensor alive through a traceback, as training code does by mistake."""
    import torch

    import tuner

    kept: list[Any] = [torch.ones(config["mib"] * MIB, dtype=torch.uint8, device=_device())]
    try:
        raise ValueError("a traceback that keeps a tensor alive")
    except ValueError as error:
        kept.append(error)
    tuner.report({"pid": float(os.getpid()), "used_mib": _used_by_me()})


def dies(config: dict[str, Any]) -> None:
    import torch

    tensor = torch.ones(config["mib"] * MIB, dtype=torch.uint8, device=_device())
    os.kill(os.getpid(), signal.SIGKILL if len(tensor) else signal.SIGTERM)


def loads_the_device(config: dict[str, Any]) -> None:
    import torch

    import tuner

    matrix = torch.randn(config["width"], config["width"], device=_device())
    until = time.monotonic() + config["seconds"]
    while time.monotonic() < until:
        matrix = torch.nn.functional.normalize(matrix @ matrix)
        _wait()
    tuner.report({"pid": float(os.getpid())})


def _used_by_me() -> float:
    """Return the GPU memory that all processes use, or the resident memory of this process without a GPU, in MiB."""
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return (total - free) / MIB
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


# Cases


class Bench:
    """Runs searches for a case. gpus: the number of devices; 0 with --cpu."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus

    def sized(self, gpu: int, cpu: int) -> int:
        """Return the first number with a GPU, and the second without."""
        return gpu if self.gpus else cpu

    def run(self, function: Any, config: dict[str, Any], *, ranks: int = 1, share: float = 1.0, **options: Any) -> Any:
        """Run a search of trials that run one after the other. share: the GPUs of a rank, or the CPUs without a GPU."""
        import tuner

        resources = {"CPU": 1.0, "GPU": share} if self.gpus else {"CPU": share}
        settings: dict[str, Any] = {
            "metric": "pid", "mode": "max", "num_samples": 1, "scheduler": "fifo", "search_alg": "random",
            "num_workers": ranks, "use_gpu": bool(self.gpus), "resources_per_worker": resources, "executor": "ray",
            "max_concurrent_trials": 1, "verbose": 0,
        }  # fmt: skip
        return tuner.run(function, config, **{**settings, **options})

    def ran(self, *arguments: Any, **options: Any) -> list[dict[str, float]]:
        """Run a search whose trials must complete, and return their last metrics, in order."""
        result = self.run(*arguments, **options)
        assert result.state == "completed", result.error
        return [dict(trial.metrics) for trial in result.trials]


def two_ranks_on_one_gpu(bench: Bench) -> Figures:
    """Compare a step of two ranks that share a device, over gloo, with a step of one rank."""
    config = {"width": bench.sized(1024, 256), "batch": 256, "steps": 60}
    [alone] = bench.ran(trains_ddp, config)
    [shared] = bench.ran(trains_ddp, config, ranks=2, share=0.5)
    assert not shared["nccl"], "NCCL refuses two ranks on one device"
    return {"one_rank_ms": alone["step_ms"], "two_ranks_ms": shared["step_ms"]}


def warm_turnaround(bench: Bench) -> Figures:
    """Measure the time from trial to trial in a warm group whose processes have a CUDA context, for one and two ranks.

    With a GPU, compare it with trials of Ray Tune, which reuses its actors for one rank and runs Ray Train for two.
    """
    alone, p95, cold = _turnaround(bench, bench.sized(60, 30), ranks=1, share=1.0)
    shared, shared_p95, shared_cold = _turnaround(bench, bench.sized(60, 30), ranks=2, share=0.5)
    found: Figures = {
        "turnaround_ms": alone, "p95_ms": p95, "cold_s": cold, "two_ranks_ms": shared, "two_ranks_p95_ms": shared_p95,
        "two_ranks_cold_s": shared_cold,
    }  # fmt: skip
    if bench.gpus:
        found["ray_tune_reused_ms"] = peers.measure("tune_single", trials=30, uses_gpu=True)["trial_s"] * 1e3
        found["ray_tune_and_train_two_ranks_ms"] = peers.measure("tune_ddp", trials=3, shares_gpu=True)["trial_s"] * 1e3
    return found


def _turnaround(bench: Bench, trials: int, ranks: int, share: float) -> tuple[float, float, float]:
    """Return the median and the 95th percentile of the milliseconds from trial to trial, and the first trial's start in s."""
    pids = {row["pid"] for row in bench.ran(touches, {}, num_samples=trials, ranks=ranks, share=share)}
    assert len(pids) == 1, "every trial runs in the same process"
    with sqlite3.connect(Path(os.environ["TUNER_HOME"], "tuner.db")) as database:
        newest = "select ended_at, startup_s from segment order by id desc limit ?"
        rows = database.execute(newest, (trials,)).fetchall()[::-1]
    gaps = [(later - earlier) * 1e3 for (earlier, _), (later, _) in itertools.pairwise(rows)]
    return statistics.median(gaps), statistics.quantiles(gaps, n=20)[-1], rows[0][1]


def memory_after_warm_trials(bench: Bench) -> Figures:
    """Compare the memory in use in the last of fifty trials of one process with that in the first one."""
    mib = bench.sized(1024, 64)
    rows = bench.ran(hoards, {"mib": mib}, num_samples=50)
    assert len({row["pid"] for row in rows}) == 1
    used = [row["used_mib"] for row in rows]
    return {"tensor_mib": mib, "first_mib": used[0], "last_mib": used[-1], "grown_mib": used[-1] - used[1]}


def memory_after_a_kill(bench: Bench) -> Figures:
    """Let a rank kill itself while it holds memory, and compare what the device has in use before and after."""
    import tuner

    mib = bench.sized(4096, 1024)
    bench.ran(touches, {})
    tuner.shutdown()
    before = _used_on_device() if bench.gpus else 0.0
    result = bench.run(dies, {"mib": mib})
    assert result.trials[0].state == "failed"
    tuner.shutdown()
    found: Figures = {"tensor_mib": mib, "processes_that_hold_it": _processes_with(mib)}
    return found | {"left_on_device_mib": _used_on_device() - before if bench.gpus else NEEDS_GPU}


def ddp_step(bench: Bench) -> Figures:
    """Compare a DDP step with the same step under torchrun, with `benchmarks.ddp_step`."""
    ranks = min(2, bench.gpus) if bench.gpus else 2
    arguments = ["--rounds", str(bench.sized(5, 2)), "--steps", str(bench.sized(500, 150)), "--ranks", str(ranks)]
    row = _other("ddp_step", *arguments, *(["--gpu"] if bench.gpus else []))
    return {"ranks": ranks, **{name: row[name] for name in ("torchrun_ms", "ratio", "ratio_every_step_reported")}}


def exploit(bench: Bench) -> Figures:
    """Measure an exploit of PBT with a checkpoint of 1 GB (100 MB without a GPU), with `benchmarks.exploit`."""
    row = _other("exploit", "--megabytes", str(bench.sized(1000, 100)), *(["--gpu"] if bench.gpus else []))
    found = {"megabytes": row["megabytes"], "exploits": row["exploits"]}
    return found | {name: row[name]["p50"] for name in ("to_function_s", "decision_to_first_step_s")}


def fsdp2(bench: Bench) -> Figures:
    """Train with `fully_shard` on two ranks (one with a single device), and save a checkpoint with a shard of each rank."""
    ranks = min(2, bench.gpus) if bench.gpus else 2
    config = {"width": bench.sized(4096, 256), "batch": 64, "steps": 20}
    [row] = bench.ran(trains_sharded, config, ranks=ranks)
    return {"ranks": ranks, "nccl": bool(row["nccl"]), **{k: row[k] for k in ("step_ms", "share_of_a_rank", "save_s")}}


def mixed_precision(bench: Bench) -> Figures:
    """Compare a step under autocast with one in float32: float16 with a scaler on a GPU, bfloat16 on a CPU."""
    low = "float16" if bench.gpus else "bfloat16"
    config = {"width": bench.sized(4096, 512), "batch": bench.sized(1024, 128), "steps": 40}
    found = {name: bench.ran(trains_mixed, {**config, "precision": name})[0]["step_ms"] for name in ("float32", low)}
    return {"float32_ms": found["float32"], f"{low}_ms": found[low]}


def compiled(bench: Bench) -> Figures:
    """Compare the first step of a compiled model in a new process with that of the next trials in the same process."""
    rows = bench.ran(trains_compiled, {"width": 256, "batch": 64, "steps": 20}, num_samples=3)
    assert len({row["pid"] for row in rows}) == 1
    first = [row["first_step_ms"] for row in rows]
    return {"cold_first_step_ms": first[0], "warm_first_step_ms": min(first[1:]), "step_ms": rows[-1]["step_ms"]}


def usage_figures(bench: Bench) -> Figures:
    """Check the usage figures that the service stores for a rank that keeps its device busy: with a GPU, those from NVML."""
    from tuner.settings import Settings
    from tuner.store import Store

    os.environ["TUNER_USAGE_EVERY_S"] = "1"
    result = bench.run(loads_the_device, {"width": bench.sized(8192, 512), "seconds": 8.0})
    assert result.state == "completed", result.error
    with Store.open(Settings.from_env().database_url) as store:
        [series] = store.ranks.usage(result.trials[0].id)
    found: Figures = {}
    for name in ("cpu_percent", "rss_bytes", "gpu_bytes", "gpu_percent"):
        values = [value for value in getattr(series, name, ()) or () if value is not None]
        if values:
            unit = "mib" if name.endswith("bytes") else "percent"
            of = statistics.median(values) / (MIB if unit == "mib" else 1)
            found[f"{name.removesuffix('_bytes').removesuffix('_percent')}_{unit}"] = of
    if bench.gpus:
        assert "gpu_percent" in found, "no utilization of the GPU: is nvidia-ml-py installed?"
    else:
        found["nvml"] = NEEDS_GPU
    return found


CASES: dict[str, Callable[[Bench], Figures]] = {
    case.__name__: case
    for case in (
        two_ranks_on_one_gpu, warm_turnaround, memory_after_warm_trials, memory_after_a_kill, ddp_step, exploit, fsdp2,
        mixed_precision, compiled, usage_figures,
    )
}  # fmt: skip


def _processes_with(mib: float) -> int:
    """Return how many processes that descend from this one have so much resident memory."""
    import psutil

    found = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found += process.memory_info().rss >= mib * MIB
    return found


def _used_on_device() -> float:
    """Return how much memory of the first device all processes together use, in MiB."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return float(subprocess.run(query, check=True, capture_output=True, text=True).stdout)


def _other(name: str, *arguments: str) -> dict[str, Any]:
    """Run another benchmark, and return its row."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def devices() -> int:
    """Return the number of GPUs. Asking CUDA would create a context in this process."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return len(listed.splitlines())


def _in_process(name: str, gpus: int, limit_s: float, logs: str | None) -> tuple[Figures | None, str]:
    """Run a case in a new process and a new home. Return its figures, or None and the last line of its error.

    logs: the folder in which a file gets the case's standard error; None to drop it.
    """
    with tempfile.TemporaryDirectory(prefix="tuner-gpu-") as home:
        command = [sys.executable, "-m", "benchmarks.gpu", "--case", name, "--gpus", str(gpus)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env={**os.environ, "TUNER_HOME": home}, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            return None, f"did not end within {limit_s:g} s"
    if logs is not None:
        Path(logs).mkdir(parents=True, exist_ok=True)
        Path(logs, f"{name}.log").write_text(done.stderr)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return None, lines[-1][:200] if lines else f"exit code {done.returncode}"
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures, ""


def _shown(figures: Figures) -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        yield name, f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="run each case as far as a CPU goes")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a case may take")
    parser.add_argument("--logs", help="the folder for what the cases write to their standard error")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--gpus", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        import ray

        from tuner.hosts.ray.cluster import connect

        connect(cpus=None if arguments.gpus else 2)
        figures = CASES[arguments.case](Bench(arguments.gpus))
        ray.shutdown()
        print(json.dumps(figures))
        return 0
    gpus = 0 if arguments.cpu else devices()
    if not gpus and not arguments.cpu:
        print("nvidia-smi finds no device; --cpu runs each case as far as a CPU goes", file=sys.stderr)
        print(json.dumps({"benchmark": "gpu", "left_out": NEEDS_GPU}))
        return 0
    print(f"{'case':26}{'figure':34}value, {'on a CPU' if not gpus else f'with {gpus} GPUs'}", flush=True)
    failed = False
    for name in arguments.only:
        found, error = _in_process(name, gpus, arguments.limit, arguments.logs)
        failed = failed or found is None
        for line, (figure, value) in enumerate(_shown(found if found is not None else {"failed": error})):
            print(f"{name if line == 0 else '':26}{figure:34}{value}")
        print(json.dumps({"benchmark": "gpu", "case": name, "gpus": gpus, **(found or {"error": error})}), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
