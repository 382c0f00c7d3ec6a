"""Test how checkpoints on the disks of several nodes are found and deleted. The tasks run on one real node."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.services import DEADLINE_S
from tuner.errors import CheckpointUnreachable
from tuner.trials.checkpoints import checkpoints, transfer
from tuner.trials.messages import tasks

NODES = ("a" * 56, "b" * 56, "c" * 56)
GONE = "d" * 56


def saved(folder: Path) -> str:
    folder.mkdir(parents=True)
    Path(folder, "weights").write_bytes(b"w")
    checkpoints.commit(str(folder), checkpoints.digest(str(folder)), {})
    return str(folder)


@pytest.mark.ray
def test_a_node_that_does_not_answer_delays_no_other(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = saved(tmp_path / "ckp")

    @ray.remote(num_cpus=0)
    class Silent:
        def ask(self) -> None:
            threading.Event().wait()

    silent = Silent.remote()  # type: ignore[attr-defined]

    def on_node(node: str, function: Any, *args: Any) -> Any:
        return silent.ask.remote() if node == NODES[0] else tasks.as_task(function).remote(*args)

    monkeypatch.setattr(transfer, "on_node", on_node)
    monkeypatch.setattr(transfer, "_FIND_S", DEADLINE_S)
    found, manifest, marker = transfer._find(uri, GONE, dict.fromkeys(NODES, True))
    assert found in NODES[1:]
    assert checkpoints.read_manifest(uri, manifest, marker).files.keys() == {"weights"}

    monkeypatch.setattr(transfer, "_FIND_S", 0.5)
    with pytest.raises(CheckpointUnreachable, match=r"no answer from [123] of 3 nodes within 0\.5 s"):
        transfer._find(str(tmp_path / "other"), GONE, dict.fromkeys(NODES, True))
    ray.kill(silent)


async def test_the_loss_of_a_disk_sends_each_node_few_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uris = [saved(tmp_path / str(number)) for number in range(100)]
    sent: Counter[str] = Counter()

    async def run(function: Any, *args: Any) -> None:
        await asyncio.to_thread(function, *args)

    def on_node(node: str, function: Any, *args: Any) -> Any:
        sent[node] += 1
        return run(function, *args)

    monkeypatch.setattr(transfer, "on_node", on_node)
    monkeypatch.setattr(transfer, "known_nodes", lambda: {**dict.fromkeys(NODES, True), GONE: False})
    deletions = transfer.Deletions()
    await asyncio.gather(*(deletions.delete(uri, GONE) for uri in uris))
    assert not any(Path(uri).exists() for uri in uris)
    assert sent.keys() == set(NODES)
    assert sum(sent.values()) <= 2 * len(NODES)
    again = saved(tmp_path / "again")
    await deletions.delete(again, NODES[1])
    assert not Path(again).exists()


async def test_nodes_that_cannot_be_listed_are_an_error_of_each_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    def known_nodes() -> dict[str, bool]:
        raise ConnectionError("Ray has ended")

    monkeypatch.setattr(transfer, "known_nodes", known_nodes)
    deletions = transfer.Deletions()
    ends = await asyncio.gather(*(deletions.delete(f"/{n}", GONE) for n in range(3)), return_exceptions=True)
    assert [str(end) for end in ends] == ["Ray has ended"] * 3


@pytest.mark.parametrize("alive", [True, False])
async def test_a_deletion_that_a_node_does_not_carry_out_is_an_error_while_the_node_is_alive(
    alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database said that the checkpoint was deleted, and its files stayed on the node's disk forever."""
    living = iter([True, alive])

    async def lost() -> None:
        raise ray.exceptions.WorkerCrashedError

    monkeypatch.setattr(transfer, "on_node", lambda node, function, *args: lost())
    monkeypatch.setattr(transfer, "known_nodes", lambda: {NODES[0]: next(living)})
    deletion = transfer.Deletions().delete("/disk/ckp", NODES[0])
    if not alive:
        await deletion
        return
    with pytest.raises(CheckpointUnreachable, match=r"1 checkpoint could not be deleted on node aaaaaaaa \(/disk/ckp"):
        await deletion


async def test_a_deletion_that_is_given_up_is_not_carried_out_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial may use the checkpoint again meanwhile."""
    silent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    given_up: list[Any] = []
    monkeypatch.setattr(transfer, "on_node", lambda node, function, *args: silent)
    monkeypatch.setattr(transfer, "known_nodes", lambda: {NODES[0]: True})
    monkeypatch.setattr(transfer, "_DELETE_S", -1.0)
    monkeypatch.setattr(ray, "cancel", given_up.append)
    with pytest.raises(CheckpointUnreachable):
        await transfer.Deletions().delete("/disk/ckp", NODES[0])
    assert given_up == [silent]
