"""Test on a real GPU: NCCL, two ranks that share a device, warm groups with a CUDA context, and memory that is given back.

One device is enough. Without one these tests skip themselves.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from typing import Any

import pytest
import ray

from tests.trials.conftest import Bench, remains

pytestmark = [pytest.mark.ray, pytest.mark.gpu, pytest.mark.slow]

WHOLE = {"use_gpu": True, "resources_per_worker": {"CPU": 1, "GPU": 1}}
HALF = {"use_gpu": True, "resources_per_worker": {"CPU": 1, "GPU": 0.5}}
MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    """Skip unless nvidia-smi finds a GPU. Asking CUDA would create a context in this process."""
    try:
        subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a CUDA device")


def used_mib() -> float:
    """Return how much of the first device's memory all processes use."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return float(subprocess.run(query, check=True, capture_output=True, text=True).stdout)


def trains(config: dict[str, Any]) -> None:
    """Run a DDP step on the device. Equal gradients on all ranks mean that the backend works."""
    import torch
    import torch.distributed as dist

    import tuner

    model = tuner.torch.prepare_model(torch.nn.Linear(256, 256))
    inputs = torch.full((8, 256), float(dist.get_rank() + 1), device="cuda")
    model(inputs).sum().backward()
    mine = next(model.parameters()).grad.abs().sum().reshape(1).cpu()
    total = mine.clone().cuda() if dist.get_backend() == "nccl" else mine.clone()
    dist.all_reduce(total)
    tuner.report(
        {
            "agree": float(torch.isclose(total.cpu(), mine * dist.get_world_size()).all()),
            "nccl": float(dist.get_backend() == "nccl"),
            "device": float(next(model.parameters()).device.index),
            "pid": os.getpid(),
        }
    )


def hoards(config: dict[str, Any]) -> None:
    import torch

    import tuner

    kept = [torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")]
    try:
        raise ValueError("a traceback that pins a tensor")
    except ValueError as error:
        kept.append(error)
    tuner.report({"held": torch.cuda.memory_allocated() / MIB, "pid": os.getpid()})


def metrics(bench: Bench, *arguments: Any, **options: Any) -> dict[str, float]:
    launch = bench.launch(*arguments, **options)
    outcome = bench.run(launch, timeout=150)
    assert outcome.kind == "returned", outcome.failure
    return dict(bench.reports(launch)[0].metrics)


def test_one_rank_trains_by_nccl(bench: Bench) -> None:
    assert metrics(bench, trains, 1, scaling=WHOLE).items() >= {"agree": 1.0, "nccl": 1.0, "device": 0.0}.items()


def test_two_ranks_share_a_device_by_gloo(bench: Bench) -> None:
    found = metrics(bench, trains, 2, scaling=HALF)
    assert found.items() >= {"agree": 1.0, "nccl": 0.0, "device": 0.0}.items()


def test_a_warm_group_keeps_its_context(bench: Bench) -> None:
    first = metrics(bench, trains, 1, scaling=WHOLE)
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        found = metrics(bench, trains, 1, scaling=WHOLE)
        times.append(time.perf_counter() - begun)
        assert found["pid"] == first["pid"]
    print(f"\nwarm turnaround of a one-rank trial with a CUDA context: {statistics.median(times) * 1e3:.0f} ms")


def test_memory_is_back_at_its_baseline_after_fifty_warm_trials(bench: Bench) -> None:
    first = metrics(bench, hoards, 1, scaling=WHOLE)
    baseline = used_mib()
    for _ in range(50):
        found = metrics(bench, hoards, 1, scaling=WHOLE)
        assert found["held"] < 65.0
        assert found["pid"] == first["pid"]
    assert used_mib() <= baseline + 32


def test_a_killed_rank_frees_the_device(bench: Bench) -> None:
    bench.call("rest", False)
    empty = used_mib()
    launch = bench.launch(dies, 1, scaling=WHOLE)
    failure = bench.run(launch, timeout=150).failure
    assert failure is not None
    bench.call("settle")
    pids = [rank["pid"] for rank in bench.started(launch)["ranks"]]
    assert remains(pids)["processes"] == []
    assert used_mib() <= empty + 32


def asserts(config: dict[str, Any]) -> None:
    """Make an assertion fail in a kernel, after which no CUDA call of this process works. Catch the error if `caught` is set."""
    import torch

    import tuner

    broken = torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")]
    try:
        broken.item()
    except RuntimeError:
        if not config["caught"]:
            raise
    tuner.report({"agree": 0.0, "pid": os.getpid()})


def test_a_failed_assertion_on_the_device_does_not_reach_the_next_trial(bench: Bench) -> None:
    for caught in (True, False):
        before = metrics(bench, trains, 1, scaling=WHOLE)
        launch = bench.launch(asserts, 1, scaling=WHOLE, params={"caught": caught})
        outcome = bench.run(launch, timeout=150)
        assert (outcome.kind == "returned") == caught
        if not caught:
            assert outcome.failure is not None
            assert outcome.failure.rank == 0
            assert "device-side assert" in outcome.failure.message
        after = metrics(bench, trains, 1, scaling=WHOLE)
        assert after["agree"] == 1.0
        assert after["pid"] != before["pid"]


def wants_too_much(config: dict[str, Any]) -> None:
    import torch

    kept = [torch.ones(1 << 30, dtype=torch.uint8, device="cuda")]
    while True:
        kept.append(torch.empty(1 << 33, dtype=torch.uint8, device="cuda"))


def test_a_trial_that_needs_too_much_memory_fails_alone(bench: Bench) -> None:
    bench.call("rest", False)
    empty = used_mib()
    failure = bench.run(bench.launch(wants_too_much, 1, scaling=WHOLE), timeout=150).failure
    assert failure is not None
    assert (failure.rank, failure.kind) == (0, "user")
    assert "CUDA out of memory" in failure.message
    assert metrics(bench, trains, 1, scaling=WHOLE)["agree"] == 1.0
    bench.call("rest", False)
    bench.call("settle")
    assert used_mib() <= empty + 32


def changes_settings(config: dict[str, Any]) -> None:
    import torch

    import tuner

    before = [
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
        torch.backends.cuda.flash_sdp_enabled(),
    ]
    fraction = torch.cuda.max_memory_allocated() / MIB
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.enable_flash_sdp(False)
    _ = torch.ones(256 * MIB, dtype=torch.uint8, device="cuda").sum().item()
    tuner.report({"fresh": float(before == ["highest", False, True] and fraction < 200), "pid": os.getpid()})


def test_settings_of_one_trial_are_not_those_of_the_next(bench: Bench) -> None:
    first, second = (metrics(bench, changes_settings, 1, scaling=WHOLE) for _ in range(2))
    assert (first["fresh"], second["fresh"]) == (1.0, 1.0)
    assert first["pid"] == second["pid"]


def uses_the_current_device(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    import tuner

    right = torch.ones(1, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    right *= float(torch.ones(1).cuda().device == tuner.torch.get_device())
    dist.all_reduce(right, op=dist.ReduceOp.MIN)
    tuner.report({"right": right.item()})


def test_plain_code_uses_the_device_of_its_rank(bench: Bench) -> None:
    listed = subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True, text=True).stdout.splitlines()
    if len(listed) < 2:
        pytest.skip("needs two CUDA devices")
    assert metrics(bench, uses_the_current_device, 2, scaling=WHOLE)["right"] == 1.0


def test_two_trials_share_a_device_at_once(bench: Bench) -> None:
    launches = [bench.launch(meets, 1, scaling=HALF, params={"folder": str(bench.folder), "me": me}) for me in (0, 1)]
    begun = [bench.begin(launch) for launch in launches]
    outcomes = ray.get(begun, timeout=150)
    assert [outcome.kind for outcome in outcomes] == ["returned", "returned"]


def meets(config: dict[str, Any]) -> None:
    """Wait, with a tensor on the device, until another trial has one too."""
    from pathlib import Path

    import torch

    import tuner

    tensor = torch.ones(16 * MIB, dtype=torch.uint8, device="cuda")
    folder = Path(config["folder"])
    (folder / f"here-{config['me']}").touch()
    end = time.monotonic() + 100
    while not (folder / f"here-{1 - config['me']}").exists():
        assert time.monotonic() < end, "the other trial has not started"
        time.sleep(0.05)
    assert tensor.sum().item() == 16 * MIB
    tuner.report({"device": float(tensor.device.index)})


def dies(config: dict[str, Any]) -> None:
    import signal

    import torch

    torch.zeros(256 * MIB, dtype=torch.uint8, device="cuda")
    os.kill(os.getpid(), signal.SIGKILL)
