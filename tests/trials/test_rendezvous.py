"""Joining a group, as far as it needs no other rank."""

from __future__ import annotations

import pytest
import torch

from tuner.errors import TunerError
from tuner.trials import rendezvous
from tuner.trials.protocol import Seat


def test_a_gpu_that_torch_does_not_find_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    seat = Seat(
        rank=1,
        world_size=2,
        local_rank=1,
        local_world_size=2,
        node_rank=0,
        nodes=1,
        gpus=("4", "6"),
        devices=(1,),
        hub=None,
        token=b"",
        backend="nccl",
    )
    with pytest.raises(TunerError, match=r"given this rank the GPU 6, but torch .* finds none here"):
        rendezvous.join(seat, "seg", None, None)
