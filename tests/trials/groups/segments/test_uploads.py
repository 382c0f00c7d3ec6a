"""Uploads that go on in a worker's process after the end of their segment."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slow_storage import SlowStorage
from tests.trials.conftest import LocalBench
from tuner.domain.events import CheckpointInfo
from tuner.domain.segments import UNWRITABLE, Outcome, Verdict
from tuner.trials.checkpoints import checkpoints
from tuner.trials.groups.pools.group import Group
from tuner.trials.groups.segments import uploads
from tuner.trials.messages.launch import Launch

PAUSE = Verdict(action="pause", save_checkpoint=True, reason="waits for the others")


def trains(config: dict[str, Any]) -> None:
    from tests import slow_storage
    from tuner.trials.training.session import report

    slow_storage.install()
    for _ in range(config.get("steps", 2)):
        report({"pid": os.getpid()}, checkpoint=lambda folder: Path(folder, "weights").write_text("w"))


def sets_credentials(config: dict[str, Any]) -> None:
    os.environ["AWS_SECRET_ACCESS_KEY"] = "of this trial only"
    trains(config)


def raises(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import report

    report({"pid": os.getpid()})
    raise ValueError("shapes do not match")


def raises_after_a_checkpoint(config: dict[str, Any]) -> None:
    trains({"steps": 1})
    raise ValueError("shapes do not match")


def loses_its_last_reports(config: dict[str, Any]) -> None:
    from tuner.errors import ReportsLost
    from tuner.trials.runtime.sending.outbox import Outbox

    def close(self: Outbox) -> None:
        raise ReportsLost("the driver is gone")

    Outbox.close = close  # type: ignore[method-assign]
    trains({"steps": 1})


def has_a_storage_of_its_own(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import report

    report({"pid": os.getpid()})
    raise OSError(f"AccessDenied; {UNWRITABLE} s3://another")


def finds_no_room(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import report

    report({"pid": os.getpid()})
    raise OSError(errno.ENOSPC, "No space left on device")


def has_a_script_that_is_killed(config: dict[str, Any]) -> None:
    from tuner.trials.training.script import Script

    text = f"print('pid={os.getpid()}', flush=True)\nimport os\nos.kill(os.getpid(), 9)"
    Script("/nowhere/train.py", text.encode(), (), "pid")({})


def dies(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import report

    report({"pid": os.getpid()})
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import report

    report({"pid": os.getpid()})
    time.sleep(1000)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowStorage]:
    storage = SlowStorage(tmp_path / "slow")
    yield storage
    storage.let_go()


def ends_early(bench: LocalBench, slow: SlowStorage) -> tuple[Launch, CheckpointInfo]:
    """Run a segment whose last checkpoint is still being uploaded when it has ended."""
    slow.hold()
    launch = bench.launch(trains, storage=slow.uri)
    outcome = bench.run(launch, {2: PAUSE})
    assert (outcome.kind, outcome.failure) == ("left", None)
    (info,) = outcome.uploading
    assert (info.step, info.ready) == (2, False)
    return launch, info


def end_of(bench: LocalBench, launch: Launch, info: CheckpointInfo) -> CheckpointInfo | str:
    end: CheckpointInfo | str = bench.call("upload_end", launch.segment_id, info.id)
    return end


def told(bench: LocalBench, group: Group, launch: Launch, info: CheckpointInfo) -> Any:
    """Return the answer of the process itself to the question how its upload ended."""

    async def ask() -> Any:
        return await group.actors[0].upload_end.remote(launch.segment_id, info.id)

    return bench.wait(ask())


def idle(bench: LocalBench) -> int:
    return int(bench.host.manager.stats()["idle"])


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_next_segment_runs_in_the_same_process_while_the_upload_goes_on(
    local_bench: LocalBench, slow: SlowStorage
) -> None:
    first, info = ends_early(local_bench, slow)
    following = local_bench.launch(trains, storage=slow.uri)
    outcome = local_bench.run(following, {1: Verdict(action="stop")})
    assert (outcome.kind, outcome.uploading) == ("left", ())
    assert local_bench.started(following)["warm"]
    assert local_bench.reports(following)[0].metrics == local_bench.reports(first)[0].metrics
    assert not checkpoints.is_committed(info.uri)
    slow.let_go()
    end = end_of(local_bench, first, info)
    assert isinstance(end, CheckpointInfo)
    assert end.ready
    assert checkpoints.is_committed(info.uri)
    assert local_bench.checkpoints(first) == [], "the host asks, so the rank does not call it"
    assert end_of(local_bench, first, info) == "its upload is no longer known", "nothing is kept of it"


def test_the_upload_of_a_trial_that_raises_an_exception_goes_on(local_bench: LocalBench, slow: SlowStorage) -> None:
    """Its retry started from an older checkpoint."""
    slow.hold()
    launch = local_bench.launch(raises_after_a_checkpoint, storage=slow.uri, checkpoint_every=1)
    outcome = local_bench.run(launch)
    assert outcome.failure is not None
    assert outcome.failure.message == "ValueError: shapes do not match"
    (info,) = outcome.uploading
    slow.let_go()
    end = end_of(local_bench, launch, info)
    assert isinstance(end, CheckpointInfo)
    assert checkpoints.is_committed(end.uri)


def test_the_upload_of_a_report_that_is_lost_is_not_followed(local_bench: LocalBench, slow: SlowStorage) -> None:
    """The driver lacks the report, so a retry must not start from its checkpoint."""
    slow.hold()
    launch = local_bench.launch(loses_its_last_reports, storage=slow.uri, checkpoint_every=1)
    outcome = local_bench.run(launch)
    slow.let_go()
    assert outcome.failure is not None
    assert outcome.failure.message.startswith("ReportsLost: the driver is gone")
    assert outcome.uploading == ()


def test_a_trial_with_credentials_of_its_own_waits_for_its_uploads(local_bench: LocalBench, slow: SlowStorage) -> None:
    slow.delay(0.3)  # longer than LATE_AFTER_S
    launch = local_bench.launch(sets_credentials, storage=slow.uri)
    assert local_bench.run(launch, {2: PAUSE}).uploading == (), "they are removed with the environment of the trial"
    assert [info.step for info in local_bench.checkpoints(launch)] == [2]


def test_a_process_that_is_killed_takes_its_uploads_with_it(local_bench: LocalBench, slow: SlowStorage) -> None:
    first, info = ends_early(local_bench, slow)
    os.kill(int(local_bench.reports(first)[0].metrics["pid"]), signal.SIGKILL)
    assert end_of(local_bench, first, info) == "its worker process exited before the upload was complete: RankLost"
    slow.let_go()


@pytest.mark.parametrize("function", [dies, hangs])
def test_a_segment_that_kills_its_process_takes_the_uploads_with_it(
    local_bench: LocalBench, slow: SlowStorage, function: Callable[..., Any]
) -> None:
    first, info = ends_early(local_bench, slow)
    following = local_bench.launch(function, limits={"stop_grace_s": 0.1})
    running = local_bench.begin(following)
    local_bench.wait_for_report(following)
    if function is hangs:
        local_bench.call("interrupt", following.segment_id, "cancel")
    running.result(60)
    assert "worker process" in str(end_of(local_bench, first, info))


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (raises, "exception"),
        (has_a_script_that_is_killed, "script_signal"),
        (has_a_storage_of_its_own, "storage"),
        (finds_no_room, "disk_full"),
    ],
)
def test_a_process_lives_until_its_uploads_have_ended(
    local_bench: LocalBench, slow: SlowStorage, function: Callable[..., Any], cause: str
) -> None:
    first, info = ends_early(local_bench, slow)
    failing = local_bench.launch(function)
    outcome: Outcome = local_bench.run(failing)
    assert outcome.failure is not None
    assert outcome.failure.cause == cause
    assert local_bench.started(failing)["warm"]
    pid = int(local_bench.reports(first)[0].metrics["pid"])
    assert Path(f"/proc/{pid}").exists(), "it is not reused, but not ended yet"
    slow.let_go()
    assert isinstance(end_of(local_bench, first, info), CheckpointInfo)
    local_bench.call("settle")
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_an_idle_process_is_not_ended_while_it_uploads(tmp_path: Path, slow: SlowStorage) -> None:
    bench = LocalBench(tmp_path, idle_timeout_s=0.05)
    try:
        first, info = ends_early(bench, slow)
        until(lambda: idle(bench) == 0)
        slow.let_go()
        assert isinstance(end_of(bench, first, info), CheckpointInfo)
    finally:
        bench.close()


def test_a_kill_gives_the_uploads_of_an_ended_segment_up(local_bench: LocalBench, slow: SlowStorage) -> None:
    first, info = ends_early(local_bench, slow)
    _, group = local_bench.host.manager._uploads._about[first.segment_id]
    local_bench.call("interrupt", first.segment_id, "stop")
    local_bench.call("interrupt", first.segment_id, "kill")
    assert end_of(local_bench, first, info) == "killed by a user"
    assert told(local_bench, group, first, info) == "killed by a user", "the process knows, and will not commit it"


def test_an_upload_that_hangs_is_given_up(
    local_bench: LocalBench, slow: SlowStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.trials.groups.segments.segment_run.SAVING_S", 0.2)
    slow.hold()
    launch = local_bench.launch(trains, storage=slow.uri, limits={"hang_timeout_s": None})
    (info,) = local_bench.run(launch, {2: PAUSE}).uploading
    assert end_of(local_bench, launch, info) == "it was not uploaded within 0.2 s of its segment's end"


def test_nothing_is_left_of_the_uploads_of_a_driver_that_ends(local_bench: LocalBench, slow: SlowStorage) -> None:
    first, info = ends_early(local_bench, slow)
    asking = local_bench.submit(local_bench.host.manager.upload_end(first.segment_id, info.id))
    local_bench.call("abandon", "exp_other", "another driver ends")
    found = local_bench.host.manager._uploads
    assert isinstance(found, uploads.Uploads)
    assert found._about
    asking.cancel()  # the driver's loop ends before what it has begun
    (group,) = (about[1] for about in found._about.values())
    local_bench.call("abandon", first.experiment_id, "the driver ends")
    assert not found._about
    assert not found._ends
    until(lambda: not group.uploads)
    assert told(local_bench, group, first, info) == "the driver ends", "the process knows, and will not commit it"
