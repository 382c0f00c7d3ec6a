"""Joining a group, as far as it needs no other rank."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d

from tuner.errors import TunerError
from tuner.trials.messages.protocol import RankAssignment
from tuner.trials.runtime import gloo_devices, rendezvous


def test_a_gpu_that_torch_does_not_find_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assignment = RankAssignment(
        rank=1,
        world_size=2,
        local_rank=1,
        local_world_size=2,
        node_rank=0,
        nodes=1,
        gpus=("4", "6"),
        devices=(1,),
        channel_address=None,
        token=b"",
        backend="nccl",
    )
    with pytest.raises(TunerError, match=r"gave this rank the GPU 6, but torch .* finds no GPU here"):
        rendezvous.join(assignment, "seg", None, None)


def test_a_rank_waits_for_the_store_of_rank_0_for_as_long_as_the_manager_lets_it() -> None:
    """After two minutes it failed with a bare "TimeoutError", even if rank 0 was only copying a large checkpoint."""

    class Verdicts:
        def receive(self, timeout: float | None = None) -> tuple[str, str, int]:
            if timeout is not None:
                raise TimeoutError
            return "store", "10.0.0.1", 4242

    client: Any = SimpleNamespace(verdicts=Verdicts())
    assert rendezvous._announced(client) == ("10.0.0.1", 4242)


OF_ONE_RANK = """
from tuner.trials.runtime import rendezvous
from tuner.trials.messages.protocol import RankAssignment
from tuner.trials.runtime.worker import Rank

Rank(None, wants_torch=False)
from torch.distributed import HashStore, get_world_size, init_process_group  # as a module of the user's
alone = RankAssignment(
    rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0, nodes=1, gpus=(), devices=(),
    channel_address=None, token=b"", backend="gloo",
)
rendezvous.join(alone, "seg", None, None)
init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
print("world of", get_world_size())
rendezvous.leave()
"""


def test_the_group_of_a_rank_alone_gives_way_to_one_that_is_made_by_a_name_taken_early() -> None:
    done = subprocess.run([sys.executable, "-c", OF_ONE_RANK], capture_output=True, text=True, timeout=120)
    assert done.stdout == "world of 1\n", done.stderr


OF_A_CYCLE = """
import os, threading, weakref
import torch
from torch import distributed, nn
from tuner.trials.messages.protocol import RankAssignment
from tuner.trials.runtime import rendezvous
from tuner.trials.runtime.hygiene import Baseline
from tuner.trials.runtime.worker import Rank

rank = Rank(None, wants_torch=False)
rank._baseline = Baseline()
rank._baseline.remember_torch()
alone = RankAssignment(
    rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0, nodes=1, gpus=(), devices=(),
    channel_address=None, token=b"", backend="gloo",
)
freed, by = threading.Event(), []
for segment in ("first", "second"):  # PyTorch itself keeps the first group with which a DDP model is made
    rendezvous.join(alone, segment, None, None)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    model.itself = [model]  # only a garbage collection frees it
    del model
    if segment == "second":
        weakref.finalize(distributed.group.WORLD, lambda: (by.append(threading.current_thread().name), freed.set()))
    assert rank.reset() is None
assert freed.wait(60)
print("freed by", *by, flush=True)
os._exit(0)
"""


def test_the_next_trial_does_not_wait_for_the_destructor_of_a_group_to_which_a_model_refers() -> None:
    done = subprocess.run([sys.executable, "-c", OF_A_CYCLE], capture_output=True, text=True, timeout=120)
    assert done.stdout == "freed by tuner-free-groups\n", done.stderr


OF_SHARED_DEVICES = """
import os
import psutil
from torch import distributed
from tuner.trials.messages.protocol import RankAssignment
from tuner.trials.runtime import rendezvous

alone = RankAssignment(
    rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0, nodes=1, gpus=(), devices=(),
    channel_address=None, token=b"", backend="gloo",
)

def devices():
    return len([one for one in psutil.Process().net_connections() if one.status == "LISTEN"]) - 1  # but that of the store

kept, counts = [], []
for segment, interface in ("first", ""), ("second", ""), ("third", "lo"), ("fourth", "lo"):
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    rendezvous.join(alone, segment, None, None)
    kept.append(distributed.group.WORLD)
    distributed.barrier()
    counts.append(devices())
    rendezvous.leave()
print(counts, len({id(group) for group in kept}), flush=True)
os._exit(0)
"""


def test_groups_share_the_devices_of_the_first_until_another_interface_is_wanted() -> None:
    done = subprocess.run([sys.executable, "-c", OF_SHARED_DEVICES], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[1, 1, 2, 2] 4\n", done.stderr


def test_a_torch_with_other_private_names_makes_groups_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo_devices, "_kept", None)
    real = distributed_c10d.ProcessGroupGloo
    gloo_devices.keep_devices(object())  # it has no `_get_backend`
    with gloo_devices.shared_devices():
        assert distributed_c10d.ProcessGroupGloo is real


def test_a_torch_that_passes_further_arguments_makes_groups() -> None:
    """PyTorch 2.15 passes `enable_reconfigure`. Its default changes nothing, so the group still shares the devices."""
    made: list[tuple[Any, ...]] = []

    class Group:
        _Options = SimpleNamespace

        def __init__(self, *args: Any, **more: Any) -> None:
            made.append((*args, more))

    sharing = gloo_devices._with_devices(Group, ["a device"], 2)
    sharing("store", 0, 1, timeout=60, enable_reconfigure=False)
    sharing("store", 0, 1, timeout=60, enable_reconfigure=True)
    sharing("store", 0, 1, timeout=60, other=False)
    assert made == [
        ("store", 0, 1, SimpleNamespace(_devices=["a device"], _threads=2, _timeout=60), {}),
        ("store", 0, 1, 60, {"enable_reconfigure": True}),
        ("store", 0, 1, 60, {"other": False}),
    ]
