"""Test what a driver host asks of all executors that it has used."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tuner.hosts.executors import Executors


class Groups:
    """Worker groups that note the calls, and run one segment."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.called: list[tuple[Any, ...]] = []

    def stats(self) -> dict[str, int]:
        return {"running": 1, "waiting": 2}

    def training(self) -> list[str]:
        return [self.name]

    async def measure(self, segments: list[str]) -> dict[str, Any]:
        return {self.name: {0: {"cpu": 0.5}}} if self.name in segments else {}

    async def stacks(self, segment: str) -> dict[str, str]:
        return {"0": f"in {self.name}"} if segment == self.name else {}

    async def usage(self, segment: str) -> dict[str, dict[str, float]]:
        return {"0": {"cpu": 0.5}} if segment == self.name else {}

    async def data_sets(self, segment: str) -> list[dict[str, str]]:
        return [{"name": "train"}] if segment == self.name else []

    async def profile(self, segment: str, rank: int, request: Any) -> dict[str, Any] | None:
        return {"of": self.name} if segment == self.name else None

    async def kill(self, *arguments: Any) -> None:
        self.called.append(("kill", *arguments))
        if self.name == "ray":
            raise RuntimeError("Ray cannot be reached")

    def __getattr__(self, method: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.called.append((method, *arguments))
            return asyncio.sleep(0) if method in ("rest", "close") else None

        return call


@pytest.fixture
def used() -> tuple[Executors, list[Groups]]:
    unused: Any = None
    executors = Executors(unused, unused, unused)
    groups: Any = [Groups(name) for name in ("ray", "local", "agents")]
    executors._groups, executors._local_groups, executors._agents = groups
    return executors, groups


async def test_every_executor_is_asked(used: tuple[Executors, list[Groups]]) -> None:
    executors, groups = used
    executors.reported("seg")
    await executors.kill(["a", "b"], "no disk")
    executors.abandon("exp", "it ends")
    executors.forget("exp")
    await executors.rest(True)
    await executors.close()
    ends: list[tuple[Any, ...]] = [("kill", "a", "no disk"), ("kill", "b", "no disk")]
    ends += [("abandon", "exp", "it ends"), ("forget", "exp"), ("rest", True), ("close",)]
    assert [one.called for one in groups] == [[("reported", "seg"), *ends]] * 2 + [ends]


async def test_their_answers_are_put_together(used: tuple[Executors, list[Groups]]) -> None:
    executors, _ = used
    assert executors.stats() == {"running": 3, "waiting": 6}
    assert executors.training() == ["ray", "local", "agents"]
    cpu = {"cpu": 0.5}
    assert await executors.measure(["ray", "agents"]) == {"ray": {0: cpu}, "agents": {0: cpu}}
    assert await executors.look("local") == {"0": {"stack": "in local", **cpu, "data_sets": [{"name": "train"}]}}
    request: Any = None
    assert await executors.profile("agents", 0, request) == {"of": "agents"}
    assert await executors.profile("another", 0, request) is None
