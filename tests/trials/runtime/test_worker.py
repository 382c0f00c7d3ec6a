"""The progress and the errors that a rank reports, without Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from torch.torch_version import TorchVersion

from tuner.errors import CheckpointError, CheckpointLost, CheckpointUnreachable, DriverSilent, ReportsLost
from tuner.trials.checkpoints.objects import with_parameters
from tuner.trials.groups.failures import from_error
from tuner.trials.messages.launch import Placed
from tuner.trials.messages.protocol import RankResult
from tuner.trials.runtime.errors import describe, not_saved
from tuner.trials.runtime.worker import Rank, _seed_torch

UNAVAILABLE = ray.exceptions.ActorUnavailableError("a connection broke", None)


@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (CheckpointLost("torn"), "system", "checkpoint_lost"),
        (CheckpointLost("gone", node="abc"), "system", "disk_lost"),
        (CheckpointUnreachable("later"), "system", "checkpoint_unreachable"),
        (ReportsLost("report 3 did not reach the driver"), "system", "driver_lost"),
        (DriverSilent("the driver cannot be reached"), "system", "driver_lost"),
        (UNAVAILABLE, "system", "actor_unavailable"),
        (CheckpointError("the user's own directory is not there"), "user", "exception"),
        (ValueError("the user's"), "user", "exception"),
    ],
)
def test_whose_mistake_an_error_is(error: Exception, kind: str, cause: str) -> None:
    failure = from_error(describe(error, ""), Placed(rank=0, node="n", host="h", ip="i", pid=1))
    assert (failure.kind, failure.cause) == (kind, cause)


@pytest.mark.parametrize(
    ("root", "cause"),
    [(ReportsLost("lost"), "driver_lost"), (DriverSilent("away"), "driver_lost"), (OSError("disk full"), "checkpoint")],
)
def test_why_a_checkpoint_wasnot_saved(root: Exception, cause: str) -> None:
    error = CheckpointError(f"a checkpoint could not be saved: {root}")
    error.__cause__ = root
    assert not_saved(error).cause == cause


def a_rank() -> tuple[Any, Any]:
    """Return a rank whose segment was prepared an hour ago, and the segment."""
    session = SimpleNamespace(count=0, progressed_at=time.monotonic() - 3600, waiting_for_verdict=False, saving=False)
    segment: Any = SimpleNamespace(session=session, thread=None, ended=threading.Event(), result=None, outbox=None)
    rank: Any = object.__new__(Rank)
    rank._segment = segment
    return rank, segment


def test_a_rank_that_has_not_entered_the_function_yet_does_not_hang() -> None:
    rank, _ = a_rank()
    assert rank.progress().idle_s == 0.0


def test_the_clock_of_a_hang_begins_with_the_function() -> None:
    rank, segment = a_rank()
    inside, go_on = threading.Event(), threading.Event()

    def main(running: Any) -> None:
        inside.set()
        go_on.wait(20)
        running.result = RankResult(kind="returned")
        running.ended.set()

    rank._main = main
    training = threading.Thread(target=rank.train)
    training.start()
    assert inside.wait(20)
    assert 0.0 < rank.progress().idle_s < 1800.0
    segment.session.progressed_at -= 3600
    assert rank.progress().idle_s > 3500.0
    go_on.set()
    training.join(20)
    assert rank.progress() is None


def test_a_traceback_begins_with_the_users_code_whichever_room_called_it() -> None:
    def train(config: dict[str, Any], big: int) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        with_parameters(train, big=1)({})
    called_by_us = caught.value.with_traceback(caught.value.__traceback__.tb_next)  # type: ignore[union-attr]
    frames = [line for line in describe(called_by_us, "").traceback.splitlines() if line.startswith("  File")]
    assert [line.rpartition(", in ")[2] for line in frames] == ["train"]


@pytest.mark.parametrize("built_for", [None, "cuda"])
def test_seeding_pytorch_does_not_touch_the_driver_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch, built_for: str | None
) -> None:
    """The trial may still set CUDA_VISIBLE_DEVICES, or fork processes that use CUDA."""
    device = None if built_for is None else torch.device(built_for)
    asked: list[str] = []
    seeded: list[int] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append("cuda") or True)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    drawn = []
    for _ in range(2):
        _seed_torch(5)
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[1]
    assert (asked, seeded) == ([], [5, 5] if built_for else [])


def test_pytorch_2_6_is_seeded_without_asking_it_for_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises an error if there is none, and then every import of torch failed."""

    def ask(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch, "__version__", TorchVersion("2.6.0+cu124"))
    monkeypatch.setattr(torch.accelerator, "current_accelerator", ask)
    drawn = []
    for _ in range(2):
        _seed_torch(5)
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_the_output_of_a_rank_is_utf_8_in_any_locale(encoding: str) -> None:
    """The log is read as UTF-8. With ASCII, `print` would raise an error in the user's function."""
    code = "from tuner.trials.runtime.worker import Rank\nrank = Rank(None, False)\nprint('Gr\\u00f6\\u00dfe')\n"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False, timeout=60)
    assert done.stdout.decode() == "Größe\n", done.stderr


def test_numpy_is_seeded_when_wandb_loads_it_lazily() -> None:
    """The module that wandb puts into `sys.modules` lacks `random` until it is completely loaded."""
    code = """
import sys
from tuner.trials.compat.on_import import on_import
from tuner.trials.runtime.worker import _seed_numpy

on_import("numpy", lambda: _seed_numpy(2**40 + 3))
import wandb
import numpy

numpy.array  # loads NumPy, if wandb has not, as the first use in the trial does
drawn = numpy.random.rand()
numpy.random.seed(3)
assert drawn == numpy.random.rand()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
