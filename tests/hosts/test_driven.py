"""Turn the messages of ranks and agents into events for the loop of an experiment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.driver.bench import Bench
from tuner.domain.segments import CheckpointInfo, Failure, Outcome, SegmentRef
from tuner.errors import CheckpointUnreachable, LostLease
from tuner.hosts import driven
from tuner.hosts.driven import HostGroups, RankInbound
from tuner.settings import Settings
from tuner.trials.messages.launch import Launch


async def test_who_waits_for_the_end_of_a_segment_learns_that_its_loop_has_stopped() -> None:
    """An agent has completed a trial, and another driver has taken the experiment over before that is committed."""
    bench, loop = Bench(), SimpleNamespace(stopped=None)
    bench.started(0)
    untold: Any = None
    given: Any = loop
    inbound = RankInbound(bench.core, given, {}, untold, untold, lambda *_: None)
    waits = asyncio.create_task(inbound.settled(SegmentRef(0, 1)))
    await asyncio.sleep(0)
    assert not waits.done()
    loop.stopped = LostLease("another driver has claimed it")
    with pytest.raises(RuntimeError, match="another driver has claimed it"):
        await asyncio.wait_for(waits, 10)


async def test_an_interrupt_reaches_a_segment_whose_checkpoint_is_still_being_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was lost, so that a killed trial trained on until its next report."""
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.reported(0, checkpoint=True)
    bench.ended(0, "failed", Failure(kind="system", cause="node_lost", message="gone"))
    looks, told = threading.Event(), list[str]()

    def where_now(uri: str, folder: str) -> str:
        assert looks.wait(10)
        return f"{folder}/found"

    async def run(launch: Launch, inbox: Any) -> Outcome:
        assert launch.checkpoint is not None
        told.append(launch.checkpoint.uri)
        return Outcome(kind="left")

    async def interrupt(name: str, why: str) -> None:
        told.append(why)

    monkeypatch.setattr(driven, "where_now", where_now)
    executors = SimpleNamespace(
        groups_of=lambda spec: SimpleNamespace(run=run, interrupt=interrupt),
        of=lambda spec: SimpleNamespace(name="ray"),
    )
    logs = SimpleNamespace(say=lambda *_: None)
    settings = Settings(storage="/now", home=Path("/now"))
    host: Any = SimpleNamespace(executors=executors, driver_logs=logs, settings=settings, segments={}, logs=None)
    record: Any = SimpleNamespace(id=1, public_id="exp_1", spec=bench.spec)
    unused: Any = SimpleNamespace(ended=lambda segment: None)
    groups = HostGroups(host, record, bench.core, bench.space, unused, unused)
    groups.inbound = unused
    running = asyncio.create_task(groups.run(SegmentRef(0, 2), None))
    ending = asyncio.create_task(groups.interrupt(SegmentRef(0, 2), "kill"))
    await asyncio.sleep(0)
    looks.set()
    await asyncio.gather(running, ending)
    assert told == ["/now/exp_1/found", "kill"]


@pytest.mark.parametrize(("executor", "expected"), [("local", True), ("ray", False), ("agents", False)])
def test_only_a_local_executor_has_to_find_the_folder_of_the_experiment(executor: str, expected: bool) -> None:
    """A search that began with the local executor was paused on Ray, by each node that had no such folder on its disk."""
    looked: list[CheckpointInfo] = []

    def newest_first() -> Iterator[CheckpointInfo]:
        """Yield a checkpoint from after the move of a home, and then those from before it, which are not looked at."""
        for where in ("now", "before", "before"):
            looked.append(saved := CheckpointInfo(id="ckp_1", uri=f"/{where}/exp_1/trial_00000/a", step=1))
            yield saved

    checkpoints = SimpleNamespace(newest_first=newest_first)
    core: Any = SimpleNamespace(experiment=SimpleNamespace(checkpoints=checkpoints))
    executors = SimpleNamespace(of=lambda spec: SimpleNamespace(name=executor))
    host: Any = SimpleNamespace(executors=executors, settings=SimpleNamespace(storage="/now"))
    spec = SimpleNamespace(executor="auto", checkpoint=SimpleNamespace(storage=None))
    record: Any = SimpleNamespace(spec=spec, public_id="exp_1")
    untold: Any = None
    groups = HostGroups(host, record, core, untold, untold, untold)
    assert groups._has_saved() is expected
    assert len(looked) == expected


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("AWS Error SLOW_DOWN during DeleteObjects operation", CheckpointUnreachable),
        ("AWS Error ACCESS_DENIED", OSError),
    ],
)
async def test_a_storage_that_does_not_delete_now_is_told_from_one_that_refuses(
    said: str, kind: type[Exception]
) -> None:
    """The loop repeats the deletion only if that can help."""

    async def delete(info: CheckpointInfo) -> None:
        raise OSError(said)

    given: Any = SimpleNamespace(
        settings=SimpleNamespace(storage="s3://bucket"),
        executors=SimpleNamespace(of=lambda spec: SimpleNamespace(delete_checkpoint=delete)),
    )
    spec = SimpleNamespace(executor="local", checkpoint=SimpleNamespace(storage=None))
    record: Any = SimpleNamespace(spec=spec, public_id="exp_1")
    untold: Any = None
    groups = HostGroups(given, record, untold, untold, untold, untold)
    with pytest.raises(kind, match=said) as raised:
        await groups.delete_checkpoint(CheckpointInfo(id="ckp_1", uri="s3://bucket/exp_1/trial_00000/a", step=1))
    assert raised.type is kind
