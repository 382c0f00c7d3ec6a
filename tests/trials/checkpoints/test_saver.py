"""Savers of two ranks over a real channel, each with its thread."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.slow_storage import SlowStorage
from tests.trials.messages.test_channel import star
from tuner.domain.events import CheckpointInfo
from tuner.domain.segments import UNWRITABLE
from tuner.errors import CheckpointError
from tuner.trials.checkpoints import checkpoints
from tuner.trials.checkpoints.checkpoints import Checkpoint
from tuner.trials.checkpoints.saver import Saver, answer_notes
from tuner.trials.checkpoints.staging import make_locked, spool, sweep_spool, take_over
from tuner.trials.checkpoints.storage import join, walk
from tuner.trials.runtime.sending import uploads as limits
from tuner.trials.runtime.sending.uploads import Uploads


def alone(storage: Path | str, committed: list[CheckpointInfo]) -> Saver:
    return Saver(
        storage=str(storage), segment_id="seg", trial_number=4, rank=0, world_size=1, committed=committed.append
    )


class Pair:
    """Rank 0 and rank 1 of a group."""

    def __init__(self, storage: Path) -> None:
        self.server, (self.client,) = star(2)
        self.committed: list[CheckpointInfo] = []
        self.zero, self.one = (
            Saver(
                storage=str(storage),
                segment_id="seg",
                trial_number=0,
                rank=rank,
                world_size=2,
                server=self.server if rank == 0 else None,
                committed=self.committed.append,
            )
            for rank in range(2)
        )
        self.begun = threading.Event()  # rank 1 has begun the segment
        self.begun.set()
        self.asked = threading.Event()  # rank 1 was asked for its part

        def begun(_: str) -> bool:
            self.asked.set()
            return self.begun.is_set()

        def saver(_: str) -> Saver | None:
            return self.one if self.begun.is_set() else None

        threading.Thread(target=answer_notes, args=(self.client, saver, begun), daemon=True).start()

    def close(self) -> None:
        self.server.close()
        self.client.close()


def fill(name: str, text: str = "text") -> checkpoints.Source:
    def source(folder: str) -> None:
        Path(folder, name).write_text(text)

    return source


def ended_within(saver: Saver, seconds: float) -> bool:
    """Return whether the saver has nothing left to save within some seconds."""
    end = time.monotonic() + seconds
    while saver.unsaved and time.monotonic() < end:
        time.sleep(0.01)
    return not saver.unsaved


def test_a_temporary_directory_is_moved_and_may_be_deleted(tmp_path: Path) -> None:
    committed: list[CheckpointInfo] = []
    saver = alone(tmp_path / "storage", committed)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "weights").write_bytes(b"w" * 1000)
        Path(folder, "sub").mkdir()
        Path(folder, "sub", "more").write_text("m")
        info = saver.take(folder, 2, 12)
        assert os.listdir(folder) == [], "moved, not copied"
    saver.drain()
    assert info is not None
    assert not info.ready
    assert (info.bytes, info.step) == (1001, 12)
    assert [(c.id, c.uri, c.step, c.bytes, c.ready) for c in committed] == [(info.id, info.uri, 12, 1001, True)]
    with Checkpoint(info.uri, info=info).as_directory() as found:
        assert Path(found, "sub", "more").read_text() == "m"
    assert os.listdir(tmp_path / "storage" / ".staging") == []


def test_a_checkpoint_says_how_long_training_waited_for_it_and_when(tmp_path: Path) -> None:
    committed: list[CheckpointInfo] = []
    saver = alone(tmp_path / "storage", committed)
    written: list[float] = []

    def slow(folder: str) -> None:
        begun = time.monotonic()
        while time.monotonic() < begun + 0.05:  # what takes its time must be counted
            time.sleep(0.01)
        written.append(time.monotonic() - begun)
        Path(folder, "weights").write_text("w")

    begun = time.monotonic()
    info = saver.take(slow, 2, 12)
    whole = time.monotonic() - begun
    assert info is not None
    assert written[0] <= info.took_s + 1e-3 <= whole + 2e-3
    assert 0 <= info.age_s <= whole
    saver.drain()
    assert committed[0].took_s == info.took_s
    assert 0 <= committed[0].age_s <= time.monotonic() - begun  # it may be committed before `take` has returned


def test_what_a_killed_process_has_staged_is_deleted_by_the_next_segment_of_its_trial(tmp_path: Path) -> None:
    code = """if True:
        import os, sys
        from tuner.trials.checkpoints.saver import Saver
        storage, segment, trial = sys.argv[1], sys.argv[2], int(sys.argv[3])
        saver = Saver(storage=storage, segment_id=segment, trial_number=trial, rank=0, world_size=1, committed=print)
        saver.take(lambda folder: (open(f"{folder}/weights", "w").close(), os._exit(3)), 1, 1)
    """
    for segment, trial in (("first", "4"), ("of_another", "5")):
        killed = subprocess.run([sys.executable, "-c", code, str(tmp_path), segment, trial], timeout=60, check=False)
        assert killed.returncode == 3
    assert [name.split(".")[0] for name in sorted(os.listdir(tmp_path / ".staging"))] == ["trial_00004", "trial_00005"]
    saver = alone(tmp_path, [])  # of trial 4
    saver.take(fill("weights"), 1, 1)
    saver.drain()
    assert [name.split(".")[0] for name in os.listdir(tmp_path / ".staging")] == ["trial_00005"]


def test_what_a_killed_process_had_to_upload_is_deleted_by_the_next_segment_of_the_node(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = """if True:
        import os, sys
        from tuner.trials.checkpoints.saver import Saver
        saver = Saver(storage=sys.argv[1], segment_id="seg", trial_number=5, rank=0, world_size=1, committed=print)
        def save(folder):
            open(f"{folder}/weights", "w").close()
            if len(sys.argv) > 2:
                print("saving", flush=True)
                sys.stdin.read()
            os._exit(3)
        saver.take(save, 1, 1)
    """
    begin = [sys.executable, "-c", code, join(s3, tmp_path.name)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    assert subprocess.run(begin, env=environment, timeout=60, check=False).returncode == 3
    (killed,) = os.listdir(spool())
    living = subprocess.Popen([*begin, "waits"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert living.stdin is not None
    assert living.stdout is not None
    assert living.stdout.readline() == b"saving\n"
    (waits,) = set(os.listdir(spool())) - {killed}
    saver = alone(join(s3, tmp_path.name), [])
    saver.take(fill("weights"), 1, 1)
    saver.drain()
    assert os.listdir(spool()) == [waits], "a process that lives keeps what it has"
    living.communicate(timeout=60)
    sweep_spool()
    assert os.listdir(spool()) == []


def test_two_sweeps_at_once_spare_a_directory_that_is_made_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second sweep had opened the directory that the first one deleted, and then deleted the new one of its name."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = Path(spool(), "left")
    left.mkdir()
    locks: list[int] = []
    lock = fcntl.flock

    def late(folder: int, operation: int) -> None:
        if not locks and operation & fcntl.LOCK_EX:
            left.rmdir()  # by the first sweep
            locks.append(make_locked(str(left)))
        lock(folder, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    sweep_spool()
    assert left.exists()
    os.close(locks[0])
    sweep_spool()
    assert not left.exists()


def test_any_other_directory_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "weights").write_text("first")
    committed: list[CheckpointInfo] = []
    saver = alone(tmp_path / "storage", committed)
    saver.take(tmp_path / "mine", 1, 1)
    (tmp_path / "mine" / "weights").write_text("second")
    saver.take(Checkpoint(tmp_path / "mine"), 2, 2)
    saver.drain()
    assert [Path(c.uri, "weights").read_text() for c in committed] == ["first", "second"]
    assert (tmp_path / "mine" / "weights").exists()


@pytest.mark.parametrize("remote", [False, True], ids=["disk", "remote"])
def test_a_checkpoint_that_is_handed_back_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the storage is below it, as with TUNER_HOME=/tmp/...
    storage = SlowStorage(tmp_path / "slow").uri if remote else str(tmp_path / "storage")
    committed: list[CheckpointInfo] = []
    saver = alone(storage, committed)

    def two(folder: str) -> None:
        Path(folder, "part").mkdir()
        Path(folder, "part", "weights").write_text("w")

    saver.take(two, 1, 1)
    saver.drain()
    first = Checkpoint(committed[0].uri, info=committed[0])
    saver = alone(storage, committed)
    saver.take(first, 2, 2)
    with first.as_directory() as folder:
        saver.take(folder, 3, 3)
        saver.take(os.path.join(folder, "part"), 4, 4)
        assert Path(folder, "part", "weights").read_text() == "w", "others may read this folder, too"
    saver.drain()
    names = ["part/weights", "part/weights", "part/weights", "weights"]
    for info, name in zip(committed, names, strict=True):
        with Checkpoint(info.uri, info=info).as_directory() as folder:
            assert walk(folder) == [name]


def test_a_temporary_directory_of_a_new_checkpoint_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "weights").write_text("w")
    saver = alone(tmp_path / "storage", [])
    saver.take(Checkpoint.from_directory(tmp_path / "mine"), 1, 1)
    saver.drain()
    assert os.listdir(tmp_path / "mine") == []


@pytest.mark.parametrize("way", ["callable", "temporary", "other"])
def test_links_are_replaced_by_what_they_point_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("tmp" if way == "other" else "mine")))
    (tmp_path / "outside").write_text("outside")

    def save(folder: str) -> None:
        os.makedirs(f"{folder}/epoch=3.ckpt")
        Path(folder, "epoch=3.ckpt", "shard").write_text("third")
        os.symlink(f"{folder}/epoch=3.ckpt", f"{folder}/last.ckpt")  # as Lightning does with save_last="link"
        os.symlink("epoch=3.ckpt/shard", f"{folder}/best")
        os.symlink(tmp_path / "outside", f"{folder}/data")

    source: Any = save
    if way != "callable":
        source = tmp_path / "mine" / "made"
        save(str(source))
    committed: list[CheckpointInfo] = []
    saver = alone(tmp_path / "storage", committed)
    saver.take(source, 1, 1)
    (tmp_path / "outside").write_text("changed")
    saver.drain()
    with Checkpoint(committed[0].uri, info=committed[0]).as_directory() as found:
        texts = {
            name: Path(found, name).read_text() for name in ("epoch=3.ckpt/shard", "last.ckpt/shard", "best", "data")
        }
    assert list(texts.values()) == ["third", "third", "third", "outside"]


def test_a_checkpoint_with_what_is_no_file_is_refused_by_name(tmp_path: Path) -> None:
    saver = alone(tmp_path / "storage", [])
    for make, said in (
        (lambda path: os.symlink("gone", path), "latest is a symbolic link to gone, which does not exist"),
        (lambda path: os.symlink(".", path), r"latest is a symbolic link to \., a directory that contains it"),
        (os.mkfifo, "latest is a pipe, a socket or a device"),
    ):
        with pytest.raises(CheckpointError, match=said):
            saver.take(lambda folder, make=make: make(os.path.join(folder, "latest")), 1, 1)
    saver.take(fill("weights"), 2, 2)
    saver.drain()


@pytest.mark.parametrize("way", ["a link", "a folder"])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: os.symlink(".", path), "odd is a symbolic link to a directory that contains it"),
        (lambda path: os.symlink("/dev/zero", path), "odd is a pipe, a socket or a device"),
        (os.mkfifo, "odd is a pipe, a socket or a device"),
        (lambda path: os.symlink("gone", path), "No such file or directory: '.*odd'"),
    ],
)
def test_a_folder_that_cannot_be_copied_is_refused_and_nothing_stays_of_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], None], said: str, way: str
) -> None:
    """Take a folder outside the temp directory, or one with a link to it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    data, source = tmp_path / "data", tmp_path / "temporary" / "made"
    for folder in (data, source):
        folder.mkdir(parents=True)
    (data / "shard").touch()
    make(str(data / "odd"))
    (source / "link").symlink_to(data)
    says = f"link is a symbolic link to .*data, which cannot be copied: .*{said}" if way == "a link" else said
    with pytest.raises(CheckpointError, match=says):
        alone(tmp_path / "storage", []).take(source if way == "a link" else data, 1, 1)
    assert os.listdir(source) == ["link"]
    assert os.listdir(tmp_path / "storage" / ".staging") == []


def test_a_link_to_a_device_or_a_pipe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    for target in ("/dev/zero", str(tmp_path / "pipe")):
        source = tmp_path / f"to {os.path.basename(target)}"
        source.mkdir()
        (source / "latest").symlink_to(target)
        with pytest.raises(
            CheckpointError, match=f"latest is a symbolic link to {target}, which is neither a file nor"
        ):
            alone(tmp_path / "storage", []).take(source, 1, 1)


def test_what_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a checkpoint must be a directory, or a callable that fills one"):
        alone(tmp_path / "storage", []).take(tmp_path / "nothing", 1, 1)
    state: Any = {"weights": [1.0]}
    with pytest.raises(CheckpointError, match="a callable that fills one, not dict: save the state to a file"):
        alone(tmp_path / "storage", []).take(state, 1, 1)


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no second filesystem here")
def test_a_temp_directory_on_another_filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        monkeypatch.setattr(tempfile, "tempdir", elsewhere)
        source = Path(elsewhere, "made")
        source.mkdir()
        (source / "weights").write_text("w")
        (tmp_path / "staging").mkdir()
        locks: list[int] = []
        aside = take_over(str(source), str(tmp_path / "staging"), locks)
        assert aside is not None, "left on its filesystem for the saver's thread to copy"
        assert Path(aside, "weights").read_text() == "w"
        assert os.listdir(source) == []
        sweep_spool()
        assert os.path.isdir(aside), "it is being copied"
        os.close(*locks)  # as if this process were killed
        (source / "weights").write_text("later")
        committed: list[CheckpointInfo] = []
        saver = alone(tmp_path / "storage", committed)
        saver.take(source, 1, 1)
        saver.drain()
        assert Path(committed[0].uri, "weights").read_text() == "later"
        assert os.listdir(spool()) == os.listdir(source) == []
        (source / "weights").write_text("never saved")
        monkeypatch.setattr(checkpoints, "digest", lambda folder: 1 / 0)
        saver.take(source, 2, 2)
        with pytest.raises(CheckpointError, match="division by zero"):
            saver.drain()
        assert os.listdir(spool()) == []


def test_shards_of_all_ranks_become_one_checkpoint(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    info = pair.zero.take(fill("shard0"), 3, 3)
    assert pair.one.take(fill("shard1", "longer text"), 3, 3) is None
    pair.zero.drain()
    pair.one.drain()
    assert info is not None
    manifest = checkpoints.committed(info.uri)
    assert sorted(manifest.files) == ["shard0", "shard1"]
    assert [c.bytes for c in pair.committed] == [15]
    pair.close()


@pytest.mark.parametrize("first", [0, 1])
def test_of_files_with_the_same_name_rank_0s_is_kept(tmp_path: Path, first: int) -> None:
    pair = Pair(tmp_path)
    savers = [pair.zero, pair.one]
    info = None
    for rank in (first, 1 - first):
        taken = savers[rank].take(fill("weights", f"of rank {rank}"), 3, 3)
        info = taken or info
        if rank == 1:
            pair.one.drain()
    pair.zero.drain()
    assert info is not None
    assert checkpoints.committed(info.uri).files.keys() == {"weights"}
    checkpoints.Checkpoint(info.uri).verify()
    assert Path(info.uri, "weights").read_text() == "of rank 0"
    pair.close()


def test_a_rank_without_a_part_and_a_slow_rank(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.one.passed(1)
    pair.one.passed(2)
    pair.zero.take(fill("shard0"), 2, 2)
    pair.zero.passed(3)
    pair.zero.take(fill("shard0"), 4, 4)
    released = threading.Event()

    def late() -> None:
        released.wait(10)
        pair.one.passed(3)
        pair.one.take(fill("shard1"), 4, 4)
        pair.one.drain()

    thread = threading.Thread(target=late)
    thread.start()
    released.set()
    pair.zero.drain()
    thread.join()
    assert [sorted(checkpoints.committed(c.uri).files) for c in pair.committed] == [["shard0"], ["shard0", "shard1"]]
    pair.close()


def test_a_checkpoint_that_a_failed_rank_has_not_reached_is_not_committed(tmp_path: Path) -> None:
    """Its shard is missing, so a trial that starts from the checkpoint would lack a part of the model."""
    pair = Pair(tmp_path)
    pair.zero.take(fill("shard0"), 1, 1)
    pair.zero.take(fill("shard0"), 2, 2)
    pair.one.take(fill("shard1"), 1, 1)
    pair.one.fail()
    pair.one.drain()
    assert ended_within(pair.zero, 60)
    assert [c.step for c in pair.committed] == [1]
    assert not list(tmp_path.glob("trial_00000/iteration_00000002*"))
    pair.zero.drain()  # the error of rank 1 ends the segment, and rank 0 has none
    pair.close()


def test_at_the_end_is_another_moment_than_at_the_last_report(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.zero.passed(5)
    pair.one.passed(5)
    pair.zero.take(fill("shard0"), 5, 5, at_end=True)
    pair.one.take(fill("shard1"), 5, 5, at_end=True)
    pair.one.drain()
    pair.zero.drain()
    assert sorted(checkpoints.committed(pair.committed[0].uri).files) == ["shard0", "shard1"]
    pair.close()


def test_a_rank_that_never_comes_is_named_and_nothing_is_committed(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.zero.patience_s = 0.1
    pair.zero.take(fill("shard0"), 1, 1)
    with pytest.raises(CheckpointError, match="rank 1 did not reach report 1 within 0.1 s"):
        pair.zero.drain()
    assert pair.committed == []
    pair.close()


def test_a_rank_that_begins_and_never_comes_is_named(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.zero.patience_s = 0.1
    pair.begun.clear()
    pair.zero.take(fill("shard0"), 1, 1)
    assert pair.asked.wait(10)
    pair.begun.set()
    with pytest.raises(CheckpointError, match="rank 1 did not reach report 1 within 0.1 s"):
        pair.zero.drain()
    assert pair.committed == []
    pair.close()


def test_a_rank_that_has_come_may_take_its_time(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.zero.patience_s = 0.2
    begun, done = threading.Event(), threading.Event()

    def slowly(folder: str) -> None:
        begun.set()
        assert done.wait(10)
        Path(folder, "shard1").write_text("large")

    thread = threading.Thread(target=pair.one.take, args=(slowly, 1, 1))
    thread.start()
    assert begun.wait(10)
    pair.zero.take(fill("shard0"), 1, 1)
    threading.Timer(1.0, done.set).start()
    pair.zero.drain()
    thread.join()
    assert [sorted(checkpoints.committed(c.uri).files) for c in pair.committed] == [["shard0", "shard1"]]
    pair.close()


def test_a_rank_that_begins_after_rank_0_has_saved_adds_its_part(tmp_path: Path) -> None:
    """Without a process group, no collective operation makes rank 0 wait for the others.

    The time that a rank takes to import modules, or to copy the checkpoint that it starts from, is no time to leave a trial.
    """
    pair = Pair(tmp_path)
    pair.zero.patience_s = 0.3
    pair.begun.clear()
    pair.zero.take(fill("shard0"), 1, 1)
    assert pair.asked.wait(10)
    assert not ended_within(pair.zero, 3 * pair.zero.patience_s)
    pair.zero.patience_s = 10
    pair.begun.set()
    pair.one.take(fill("shard1"), 1, 1)
    pair.zero.drain()
    assert [sorted(checkpoints.committed(c.uri).files) for c in pair.committed] == [["shard0", "shard1"]]
    pair.close()


def test_a_callable_that_raises_on_one_rank_leaves_no_torn_checkpoint(tmp_path: Path) -> None:
    pair = Pair(tmp_path)

    def breaks(folder: str) -> None:
        raise ValueError("cannot be pickled")

    with pytest.raises(ValueError, match="cannot be pickled") as raised:
        pair.one.take(breaks, 1, 1)
    assert raised.value.__notes__ == ["raised by the function that was passed as checkpoint to tuner.report"]
    pair.one.passed(1)
    pair.zero.take(fill("shard0"), 1, 1)
    with pytest.raises(CheckpointError, match="rank 1 could not save its part of the checkpoint: ValueError: cannot"):
        pair.zero.drain()
    assert pair.committed == []
    assert list((tmp_path / ".staging").iterdir()) == [], "a part that could not be written takes no room"
    assert list((tmp_path / "trial_00000").iterdir()) == []
    pair.close()


def test_an_error_without_a_text_is_told_to_rank_0(tmp_path: Path) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            return str(self.nowhere)  # type: ignore[attr-defined]

    def raises(folder: str) -> None:
        raise Odd

    saver = alone(tmp_path / "storage", [])
    with pytest.raises(Odd):
        saver.take(raises, 1, 1)
    assert saver.answer((1, False), lambda: None) == "Odd: <Odd.__str__ raised AttributeError>"


def test_a_shard_that_cannot_be_written_fails_the_checkpoint(tmp_path: Path) -> None:
    pair = Pair(tmp_path)

    def blocked(folder: str) -> None:
        Path(folder, "shard0").mkdir()
        Path(folder, "shard0", "file").write_text("in the way of rank 0's file")

    pair.zero.take(fill("shard0"), 1, 1)
    pair.one.take(blocked, 1, 1)
    with pytest.raises(CheckpointError):
        pair.zero.drain()
    assert pair.committed == []
    pair.close()


def test_a_part_that_cannot_be_saved_on_another_rank_fails_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 waits for as long as the other rank saves its part."""
    pair = Pair(tmp_path)

    digest = checkpoints.digest

    def broken(folder: str) -> Any:
        if Path(folder, "shard1").exists():
            raise OSError("Input/output error")
        return digest(folder)

    monkeypatch.setattr(checkpoints, "digest", broken)
    pair.one.take(fill("shard1"), 1, 1)
    pair.zero.take(fill("shard0"), 1, 1)
    assert ended_within(pair.zero, 20)
    with pytest.raises(CheckpointError, match="rank 1 could not save its part of the checkpoint: OSError: Input"):
        pair.zero.drain()
    assert pair.committed == []
    pair.close()


def test_an_error_comes_up_at_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    saver = alone(tmp_path / "storage", [])
    info = saver.take(fill("a"), 1, 1)
    assert info is not None
    saver.drain()
    Path(info.uri).parent.joinpath("iteration_00000002_" + "x").mkdir()

    def refuse(_: CheckpointInfo) -> None:
        raise ConnectionError("the driver is gone")

    broken = Saver(
        storage=str(tmp_path / "storage"), segment_id="seg", trial_number=4, rank=0, world_size=1, committed=refuse
    )
    broken.take(fill("a"), 1, 1)
    with pytest.raises(CheckpointError, match="a checkpoint could not be saved: the driver is gone"):
        broken.drain()


@pytest.mark.parametrize("durable", [True, False])
def test_only_a_durable_saver_waits_for_the_disk(
    tmp_path: Path, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    committed: list[CheckpointInfo] = []
    saver = Saver(
        storage=str(tmp_path / "storage"),
        segment_id="seg",
        trial_number=0,
        rank=0,
        world_size=1,
        durable=durable,
        committed=committed.append,
    )
    saver.take(fill("weights"), 1, 1)
    saver.drain()
    assert len(committed) == 1
    assert bool(synced) == durable


def uploading(slow: SlowStorage, committed: list[CheckpointInfo], segment: str = "seg") -> Saver:
    return Saver(storage=slow.uri, segment_id=segment, trial_number=4, rank=0, world_size=1, committed=committed.append)


def test_an_upload_goes_on_after_its_segment(tmp_path: Path) -> None:
    slow, told = SlowStorage(tmp_path), list[CheckpointInfo]()
    saver = uploading(slow, told)
    quick = saver.take(fill("weights", "first"), 1, 1)
    assert quick is not None
    deadline = time.monotonic() + 10
    while not told and time.monotonic() < deadline:
        time.sleep(0.001)
    slow.hold()
    info = saver.take(fill("weights"), 2, 2)
    assert info is not None
    assert saver.leave(0.01) == [info]
    assert saver.unsaved == 1
    assert not checkpoints.is_committed(info.uri)
    slow.let_go()
    end = saver.outcome(info.id)
    assert isinstance(end, CheckpointInfo)
    assert (end.id, end.ready, end.bytes) == (info.id, True, 4)
    assert saver.outcome(info.id) is end, "the answer may get lost"
    assert checkpoints.is_committed(info.uri)
    assert [one.id for one in told] == [quick.id], "the driver asks for the other one"


def test_an_upload_that_fails_after_its_segment_says_why(tmp_path: Path) -> None:
    slow, told = SlowStorage(tmp_path), list[CheckpointInfo]()
    slow.hold()
    saver = uploading(slow, told)
    info = saver.take(fill("weights"), 1, 1)
    assert info is not None
    assert saver.leave(0.01) == [info]
    slow.fail()
    assert saver.outcome(info.id) == f"OSError: the bucket is gone; {UNWRITABLE} {slow.uri}"
    assert not checkpoints.is_committed(info.uri)
    assert not told


def test_a_storage_that_refuses_a_checkpoint_is_named_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver knows by these words that all trials would fail."""
    slow = SlowStorage(tmp_path)
    slow.fail()
    saver = alone(slow.uri, [])
    saver.take(lambda folder: Path(folder, "w").touch(), 1, 1)
    with pytest.raises(CheckpointError, match=f"the bucket is gone; {UNWRITABLE} {re.escape(slow.uri)}"):
        saver.drain()

    def makedirs(path: str, **options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", path)

    local = alone(tmp_path / "local", [])
    monkeypatch.setattr(os, "makedirs", makedirs)
    with pytest.raises(OSError, match=f"Read-only file system: .*; {UNWRITABLE} {tmp_path}/local"):
        local.take(lambda folder: None, 1, 1)


def test_an_abandoned_upload_is_never_committed(tmp_path: Path) -> None:
    slow = SlowStorage(tmp_path)
    slow.hold()
    saver = uploading(slow, [])
    info = saver.take(fill("weights"), 1, 1)
    assert info is not None
    saver.leave(0.01)
    saver.abandon("killed by a user")
    assert saver.outcome(info.id) == "killed by a user"
    slow.let_go()
    assert saver._thread is not None
    saver._thread.join(10)
    assert not checkpoints.is_committed(info.uri)


def test_an_upload_that_failed_before_the_end_fails_the_segment(tmp_path: Path) -> None:
    slow = SlowStorage(tmp_path)
    slow.fail()
    saver = uploading(slow, [])
    saver.take(fill("weights"), 1, 1)
    with pytest.raises(CheckpointError, match="the bucket is gone"):
        saver.leave(None)


def test_the_parts_of_all_ranks_meet_after_the_segment_while_the_next_one_saves(tmp_path: Path) -> None:
    slow = SlowStorage(tmp_path)
    server, (client,) = star(2)
    uploads = Uploads()  # of rank 1
    told: list[CheckpointInfo] = []

    def savers(segment: str) -> tuple[Saver, Saver]:
        found = [
            Saver(
                storage=slow.uri,
                segment_id=segment,
                trial_number=0,
                rank=rank,
                world_size=2,
                server=server if rank == 0 else None,
                committed=told.append,
            )
            for rank in range(2)
        ]
        uploads.begin(segment, found[1])
        return found[0], found[1]

    threading.Thread(target=answer_notes, args=(client, uploads.saver, uploads.has_begun), daemon=True).start()
    slow.hold()
    ends = []
    for segment in ("first", "second"):
        zero, one = savers(segment)
        one.take(fill("shard1", segment), 1, 1)
        zero.take(fill("shard0"), 1, 1)
        ends.append((zero, zero.leave(0.01)[0]))
        assert one.leave(0.01) == []
    slow.let_go()
    for segment, (zero, info) in zip(("first", "second"), ends, strict=True):
        end = zero.outcome(info.id)
        assert isinstance(end, CheckpointInfo), end
        with Checkpoint(end.uri, info=end).as_directory() as folder:
            assert Path(folder, "shard1").read_text() == segment
            assert sorted(os.listdir(folder)) == ["shard0", "shard1"]
    server.close()
    client.close()


def test_the_end_of_a_segment_waits_if_too_much_is_being_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, uploads = SlowStorage(tmp_path), Uploads()
    monkeypatch.setattr(limits, "LATE_AFTER_S", 0.01)
    slow.hold()
    for number in range(limits.MOST):
        saver = uploading(slow, [], f"seg{number}")
        uploads.begin(f"seg{number}", saver)
        info = saver.take(fill("weights"), 1, 1)
        assert uploads.leave(saver) == [info]
    last = uploading(slow, [], "last")
    uploads.begin("last", last)
    last.take(fill("weights"), 1, 1)
    left: list[CheckpointInfo] = []
    waiting = threading.Thread(target=lambda: left.extend(uploads.leave(last)))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive(), "it waits"
    slow.let_go()
    waiting.join(10)
    assert not waiting.is_alive()
    assert left == [], "and then has nothing left to upload"


def test_the_end_of_a_segment_waits_if_the_disk_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, uploads, told = SlowStorage(tmp_path), Uploads(), list[CheckpointInfo]()
    monkeypatch.setattr(limits, "LATE_AFTER_S", 0.0)
    monkeypatch.setattr(limits, "FREE", 1.0)
    saver = uploading(slow, told)
    uploads.begin("seg", saver)
    info = saver.take(fill("weights"), 1, 1)
    assert uploads.leave(saver) == []
    assert info is not None
    assert [one.id for one in told] == [info.id]


@pytest.mark.parametrize("full", ["while it is filled", "when it is committed"])
def test_a_disk_that_is_full_keeps_nothing_of_a_checkpoint_and_takes_the_next_one(
    tmp_path: Path, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: list[CheckpointInfo] = []
    saver = alone(tmp_path, committed)

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def half(folder: str) -> None:
        Path(folder, "weights").write_text("half")
        no_space()

    if full == "while it is filled":
        with pytest.raises(OSError, match="No space left"):
            saver.take(half, 1, 1)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "commit", no_space)
            saver.take(fill("weights"), 1, 1)
            with pytest.raises(CheckpointError, match="No space left"):
                saver.drain()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    saver.take(fill("weights"), 2, 2)
    saver.drain()
    assert [checkpoints.is_committed(info.uri) for info in committed] == [True]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_failed_trial_waits_until_its_last_checkpoint_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """It waited for two seconds, which a large checkpoint or a slow disk exceeds."""
    monkeypatch.setattr(limits, "LATE_RANK_S", 0.0)
    collected, leaving = threading.Event(), threading.Event()
    pair = Pair(tmp_path)
    committed = pair.committed
    saver = alone(tmp_path, committed) if ranks == 1 else pair.zero
    commit, drain = checkpoints.commit, saver.drain

    def slow(*arguments: Any) -> None:
        collected.set()
        assert leaving.wait(10)
        commit(*arguments)

    def leave(*seconds: float) -> None:
        leaving.set()
        drain(*seconds)

    monkeypatch.setattr(checkpoints, "commit", slow)
    monkeypatch.setattr(saver, "drain", leave)
    pair.one.take(fill("shard1"), 1, 1)
    saver.take(lambda folder: Path(folder, "weights").write_text("w"), 1, 1)
    assert collected.wait(60)
    saver.fail()
    assert Uploads().leave_failed(saver) == []
    assert [info.step for info in committed] == [1]
    pair.close()


def test_a_failed_trial_does_not_wait_for_a_rank_that_may_never_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a rank may wait for the one that has failed, for ever."""
    monkeypatch.setattr(limits, "LATE_RANK_S", 0.0)
    pair = Pair(tmp_path)
    pair.zero.take(fill("shard0"), 1, 1)
    pair.zero.fail()
    assert Uploads().leave_failed(pair.zero) == []
    assert pair.committed == []
    pair.close()
