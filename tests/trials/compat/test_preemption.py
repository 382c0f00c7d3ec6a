"""The notices of rank 0 reach the other ranks, whatever Ray answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.trials.compat import preemption

ray = pytest.importorskip("ray")
dist = pytest.importorskip("torch.distributed")

NODES = ["node0", "node1"]
LEAVING = {"node1": 7}
FOUND = {"deadline_ms": 7, "preempted_node_to_ranks": {"node1": [1]}}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let this process be rank 0 of two, and return what it sends to the other."""

    def gather(found: list[Any], mine: str) -> None:
        found[:] = NODES

    sent: list[Any] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: NODES[0]))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda answers, src: sent.append(answers[0]))
    return sent


def answers(monkeypatch: pytest.MonkeyPatch, *each: Mapping[str, int] | Exception) -> None:
    """Let Ray give these answers, one at each call."""
    left = list(each)

    def answer() -> Mapping[str, int]:
        one = left.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(preemption, "draining_nodes", answer)
    monkeypatch.setattr(preemption, "LOOK_S", 0.0)


def test_while_ray_does_not_answer_the_other_ranks_get_its_last_answer(
    sent: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost = ray.exceptions.RpcError("failed to connect to GCS")
    answers(monkeypatch, lost, LEAVING, lost, {})
    notices = preemption.Notices(0, 2)
    assert [notices.affected() for _ in range(4)] == sent == [None, FOUND, FOUND, None]
    assert caplog.text.count("failed to connect to GCS") == 2


def test_a_single_rank_keeps_the_last_answer_too(sent: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, {"node0": 0}, TimeoutError())
    notices = preemption.Notices(0, 1)
    alone = {"deadline_ms": None, "preempted_node_to_ranks": {"node0": [0]}}
    assert [notices.affected(), notices.affected()] == [alone, alone]
    assert sent == [], "there is nobody to tell"


def test_ray_is_asked_again_only_after_a_while(sent: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, TimeoutError(), LEAVING)
    monkeypatch.setattr(preemption, "LOOK_S", 1000.0)
    notices = preemption.Notices(0, 2)
    assert [notices.affected(), notices.affected()] == sent == [None, None]
