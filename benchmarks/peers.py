"""Run the same small trials with Ray Tune and Ray Train, and with bare Ray actors as the floor, for comparison.

Each function starts a private Ray, so call each in a fresh process: ``measure("tune_ddp", trials=3)`` does.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any


def measure(name: str, **arguments: int) -> dict[str, Any]:
    """Run one of the functions below in a fresh process."""
    code = f"import json; from benchmarks import peers; print(json.dumps(peers.{name}(**{arguments!r})))"
    env = {**os.environ, "RAY_TRAIN_V2_ENABLED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _ray(cpus: int) -> Any:
    import ray

    ray.init(address="local", num_cpus=cpus, log_to_driver=False, include_dashboard=False, logging_level="error")
    return ray


def tune_ddp(trials: int, shares_gpu: bool = False) -> dict[str, float]:
    """Return the seconds of a trial of Ray Tune that is a two-rank run of Ray Train and reports once. Trials run in sequence.

    shares_gpu: whether the two ranks share a GPU.
    """
    _ray(3)
    from ray import train, tune
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    storage = tempfile.mkdtemp()

    def loop(config: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist

        one = torch.ones(1)
        dist.all_reduce(one)
        if shares_gpu:
            one.cuda().item()
        train.report({"loss": config["x"] ** 2})

    share = {"GPU": 0.5} if shares_gpu else {}
    scaling = ScalingConfig(num_workers=2, use_gpu=shares_gpu, resources_per_worker={"CPU": 1, **share})

    def trial(config: dict[str, Any]) -> None:
        TorchTrainer(
            loop,
            train_loop_config=config,
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=scaling,
            run_config=RunConfig(storage_path=storage, name=f"run{time.time_ns()}", callbacks=[TuneReportCallback()]),
        ).fit()

    begun = time.perf_counter()
    results = tune.Tuner(
        tune.with_resources(trial, {"CPU": 1}),
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=trials, max_concurrent_trials=1),
        run_config=tune.RunConfig(verbose=0, storage_path=storage),
    ).fit()
    if results.num_errors:
        raise RuntimeError(str(results.errors[0]))
    return {"trial_s": (time.perf_counter() - begun) / trials}


def tune_single(trials: int, cpus: int = 1, uses_gpu: bool = False) -> dict[str, float]:
    """Return the seconds of a one-process trial of Ray Tune that reports once. Trials run in sequence and reuse actors.

    uses_gpu: whether each trial has a GPU, and puts a tensor there.
    """
    _ray(cpus)
    from ray import tune

    def trial(config: dict[str, Any]) -> None:
        if uses_gpu:
            import torch

            torch.ones(1).cuda().item()
        tune.report({"loss": config["x"] ** 2})

    begun = time.perf_counter()
    tune.Tuner(
        tune.with_resources(trial, {"CPU": 1, "GPU": 1}) if uses_gpu else trial,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=trials, max_concurrent_trials=1, reuse_actors=True
        ),
        run_config=tune.RunConfig(verbose=0, storage_path=tempfile.mkdtemp()),
    ).fit()
    return {"trial_s": (time.perf_counter() - begun) / trials}


def tune_load(trials: int, rate: int, seconds: int) -> dict[str, float]:
    """Return the CPU use of Ray Tune's driver process, in percent of a core, at `rate` reports a second of all trials."""
    _ray(1)
    import psutil
    from ray import tune

    class Watch(tune.Callback):
        def __init__(self) -> None:
            self.seen: set[str] = set()
            self.begun = self.cpu = self.last = self.used = 0.0
            self.count = 0

        def on_trial_result(self, *, trial: Any, **_: Any) -> None:
            self.seen.add(trial.trial_id)
            now = time.monotonic()
            if len(self.seen) < trials or (self.begun and now > self.begun + seconds):
                return
            cpu = sum(psutil.Process().cpu_times()[:2])
            if not self.begun:
                self.begun, self.cpu = now, cpu
            self.count += 1
            self.last, self.used = now, cpu - self.cpu

    def trial(config: dict[str, Any]) -> None:
        begun = time.monotonic()
        pace = trials / rate
        for number in range(int((seconds + 20) / pace)):
            time.sleep(max(0.0, begun + number * pace - time.monotonic()))
            tune.report({"loss": 1.0 / (number + 1), "accuracy": 0.5, "lr": 0.1, "norm": 2.0, "epoch": number})

    watch = Watch()
    tune.Tuner(
        tune.with_resources(trial, {"CPU": 1 / trials}),
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=trials, max_concurrent_trials=trials),
        run_config=tune.RunConfig(verbose=0, storage_path=tempfile.mkdtemp(), callbacks=[watch]),
    ).fit()
    took = watch.last - watch.begun
    return {"cpu_percent": 100 * watch.used / took, "reports_per_s": watch.count / took}


def train_helpers() -> dict[str, float]:
    """Return the number of processes that Ray Tune and Ray Train run for a two-rank trial, without its ranks and the driver."""
    before = tempfile.mkdtemp()
    os.environ["TUNER_HOME"] = before  # a mark that identifies all processes of this Ray
    _ray(3)
    from ray import train, tune
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    storage = tempfile.mkdtemp()

    def loop(config: dict[str, Any]) -> None:
        if train.get_context().get_world_rank() == 0:
            with open(os.path.join(storage, "count"), "w") as file:
                file.write(json.dumps(workers(before)))
        train.report({"loss": 1.0})

    def trial(config: dict[str, Any]) -> None:
        TorchTrainer(
            loop,
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(storage_path=storage, name="run"),
        ).fit()
        tune.report({"loss": 1.0})

    tune.Tuner(
        tune.with_resources(trial, {"CPU": 1}),
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=1),
        run_config=tune.RunConfig(verbose=0, storage_path=storage),
    ).fit()
    with open(os.path.join(storage, "count")) as file:
        return {"helpers": len(json.load(file)) - 2}


def workers(home: str) -> list[str]:
    """Return the names of the actors and tasks in a home's Ray workers, and of the processes that they have started."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
            if process.environ().get("TUNER_HOME") != home or process.pid == os.getpid():
                continue
            above = " ".join(process.parent().cmdline()) if process.parent() else ""
        except psutil.Error:
            continue
        names = [text.removeprefix("ray::").split(".")[0] for text in (*line[:1], above) if text.startswith("ray::")]
        if any(name not in _OF_RAY for name in names):
            found.append(names[0])
    return found


_OF_RAY = ("IDLE", "DashboardAgent", "RuntimeEnvAgent")


def cpu_of_home(home: str) -> float:
    """Return the CPU seconds of all live processes whose TUNER_HOME is this home, and of their children that have ended."""
    import psutil

    total = 0.0
    for process in psutil.process_iter():
        try:
            if process.environ().get("TUNER_HOME") == home:
                total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


def bare_cold(ranks: int) -> dict[str, Any]:
    """Return the seconds, the CPU seconds and the phases until bare Ray actors have joined a gloo group, from a cold start."""
    begun = time.perf_counter()
    import ray

    imported = time.perf_counter()
    _ray(ranks)
    started = time.perf_counter()
    actors, join = _gloo_actors(ranks)
    ray.get([actor.ready.remote() for actor in actors])
    join()
    joined = time.perf_counter()
    return {
        "first_report_s": joined - begun,
        "cpu_s": cpu_of_home(os.environ["TUNER_HOME"]),
        "group_s": joined - started,
        "phases": {"import Ray": imported - begun, "ray.init": started - imported, "group": joined - started},
    }


def _gloo_actors(count: int) -> tuple[list[Any], Callable[[], None]]:
    """Create bare actors in a placement group. Return them, and a function with which they join a gloo group."""
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    @ray.remote(num_cpus=1)
    class Rank:
        def ready(self) -> None:
            import torch.distributed  # noqa: F401

        def listen(self) -> int:
            import torch.distributed as dist

            self.store = dist.TCPStore("127.0.0.1", 0, count, True, timedelta(seconds=60), wait_for_workers=False)
            return int(self.store.port)

        def join(self, rank: int, port: int) -> None:
            import torch
            import torch.distributed as dist

            if rank:
                self.store = dist.TCPStore("127.0.0.1", port, count, False, timedelta(seconds=60))
            dist.init_process_group("gloo", store=self.store, rank=rank, world_size=count)
            dist.all_reduce(torch.ones(1))

        def leave(self) -> None:
            import torch.distributed as dist

            dist.destroy_process_group()

    group = placement_group([{"CPU": 1}] * count)
    ray.get(group.ready())
    ranks = [
        Rank.options(  # type: ignore[attr-defined]
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index)
        ).remote()
        for index in range(count)
    ]

    def join() -> None:
        port = ray.get(ranks[0].listen.remote())
        ray.get([rank.join.remote(number, port) for number, rank in enumerate(ranks)])

    return ranks, join


def bare_groups(repeats: int) -> dict[str, float]:
    """Return the seconds, cold and warm, in which two bare Ray actors join a gloo group and do one all-reduce."""
    ray = _ray(2)
    begun = time.perf_counter()
    ranks, join = _gloo_actors(2)
    ray.get([rank.ready.remote() for rank in ranks])
    join()
    cold = time.perf_counter() - begun
    warm = []
    for _ in range(repeats):
        begun = time.perf_counter()
        ray.get([rank.leave.remote() for rank in ranks])
        join()
        warm.append(time.perf_counter() - begun)
    return {"cold_s": cold, "warm_s": statistics.median(warm)}


def gloo_growth(repeats: int) -> dict[str, float]:
    """Return the growth of two plain processes, in MiB, after they set up, use and tear down a gloo group 1,000 times."""
    import multiprocessing

    spawn = multiprocessing.get_context("spawn")
    queue: Any = spawn.Queue()
    members = [spawn.Process(target=_gloo_member, args=(rank, repeats, queue)) for rank in range(2)]
    for member in members:
        member.start()
    for member in members:
        member.join()
    return {"own_mib_per_1000": queue.get() + queue.get()}


def _gloo_member(rank: int, repeats: int, queue: Any) -> None:
    import torch
    import torch.distributed as dist

    hook = sys.excepthook
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
        queue.put(store.port)
    else:
        store = dist.TCPStore("127.0.0.1", queue.get(), 2, False)
    held = []
    for number in range(repeats):
        dist.init_process_group("gloo", store=dist.PrefixStore(f"run/{number}", store), rank=rank, world_size=2)
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        sys.excepthook = hook  # each init_process_group wraps the hook of the previous one
        if rank == 0:
            for key in store.list_keys():
                if key.startswith(f"run/{number}/"):
                    store.delete_key(key)
        if number in (repeats // 5, repeats - 1):
            held.append(own_bytes(os.getpid()))
    queue.put((held[1] - held[0]) / 2**20 / (repeats * 0.8) * 1000)


def own_bytes(pid: int) -> int:
    """Return the bytes of memory that this process has written and shares with no other.

    Mapped programs and libraries do not count: their share changes as other processes map or unmap them.
    """
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(size) for size in re.findall(r"^(?:Private_Dirty|Swap): +(\d+) kB", rollup, re.MULTILINE))


def socket_reports(repeats: int) -> dict[str, float]:
    """Return the median seconds of a round trip over a socket between two processes, and of a commit of one row to SQLite.

    The row is committed as in `durable_reports`, by the process at the other end, but not while the round trips are measured.
    """
    import multiprocessing
    import socket
    import sqlite3

    def answer(listener: socket.socket, found: Any) -> None:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while received := connection.recv(4096):
            connection.sendall(received)
        took = []
        with tempfile.TemporaryDirectory() as folder:
            database = sqlite3.connect(os.path.join(folder, "floor.db"), isolation_level=None)
            database.execute("pragma journal_mode=wal")
            database.execute("pragma synchronous=normal")
            database.execute("create table point (seq integer primary key, step integer, value real)")
            for step in range(repeats):
                begun = time.perf_counter()
                database.execute("insert into point (step, value) values (?, ?)", (step, 0.5))
                took.append(time.perf_counter() - begun)
                time.sleep(0.0005)  # a report comes after some work, which cools the caches
            database.close()
        found.send(statistics.median(took))

    forking = multiprocessing.get_context("fork")
    mine, theirs = forking.Pipe()
    listener = socket.create_server(("127.0.0.1", 0))
    other = forking.Process(target=answer, args=(listener, theirs))
    other.start()
    trips = []
    with socket.create_connection(listener.getsockname()) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        message = b"x" * 200
        for _ in range(repeats):
            until = time.perf_counter() + 0.0005
            while time.perf_counter() < until:
                pass
            begun = time.perf_counter()
            connection.sendall(message)
            received = 0
            while received < len(message):
                received += len(connection.recv(4096))
            trips.append(time.perf_counter() - begun)
    commit_s = mine.recv()
    other.join()
    return {"round_trip_s": statistics.median(trips), "commit_s": commit_s}


def durable_reports(repeats: int) -> dict[str, float]:
    """Return the median seconds of a call to an async actor that commits one row to SQLite (WAL, synchronous=NORMAL)."""
    ray = _ray(2)
    import sqlite3

    @ray.remote(num_cpus=0)
    class Writer:
        def __init__(self, folder: str) -> None:
            self.db = sqlite3.connect(os.path.join(folder, "floor.db"), isolation_level=None)
            self.db.execute("pragma journal_mode=wal")
            self.db.execute("pragma synchronous=normal")
            self.db.execute("create table point (seq integer primary key, step integer, value real)")

        async def report(self, step: int, value: float) -> str:
            self.db.execute("insert into point (step, value) values (?, ?)", (step, value))
            return "continue"

    @ray.remote(num_cpus=1)
    class Trainer:
        def train(self, writer: Any, steps: int) -> list[float]:
            took = []
            for step in range(steps):
                begun = time.perf_counter()
                ray.get(writer.report.remote(step, 0.5))
                took.append(time.perf_counter() - begun)
            return took

    writer = Writer.remote(tempfile.mkdtemp())  # type: ignore[attr-defined]
    took = ray.get(Trainer.remote().train.remote(writer, repeats))  # type: ignore[attr-defined]
    return {"report_s": statistics.median(took)}
