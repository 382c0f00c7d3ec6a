"""Committed, torn, missing, deleted: on a local path and on S3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from tuner.domain.events import CheckpointInfo
from tuner.errors import CheckpointError, CheckpointLost, CheckpointUnreachable
from tuner.trials.checkpoints import checkpoints
from tuner.trials.checkpoints.checkpoints import Checkpoint
from tuner.trials.checkpoints.storage import Place, join, place


@pytest.fixture(params=["local", "file URI", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where checkpoints are stored. A local directory may have a ``?`` in its name, which begins an S3 URI's query."""
    if request.param == "local":
        return str(tmp_path / "which?" / "storage")
    if request.param == "file URI":
        return f"file://{tmp_path}/which?/storage"
    return join(str(request.getfixturevalue("s3")), tmp_path.name)


def save(uri: str, folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    where = place(uri)
    if where.local:
        os.makedirs(os.path.dirname(where.path), exist_ok=True)
        os.rename(folder, where.path)
        checkpoints.commit(uri, checkpoints.digest(where.path), {"iteration": 3})
    else:
        found = checkpoints.digest(str(folder))
        where.upload(str(folder))
        checkpoints.commit(uri, found, {"iteration": 3})


FILES = {"weights.pt": b"w" * 10_000, "optimizer/state.pt": b"o", "empty": b""}


def content(folder: str) -> dict[str, bytes]:
    return {name: Path(folder, name).read_bytes() for name in FILES}


def test_there_and_back(storage: str, tmp_path: Path) -> None:
    uri = join(storage, "trial_00000", "one")
    assert not checkpoints.is_committed(uri)
    save(uri, tmp_path / "made", FILES)
    assert checkpoints.is_committed(uri)
    manifest = checkpoints.committed(uri)
    assert manifest.bytes == 10_001
    assert manifest.about == {"iteration": 3}
    checkpoint = Checkpoint(uri, info=CheckpointInfo(id="ckp", uri=uri, step=3))
    checkpoint.verify()
    copied = checkpoint.to_directory(tmp_path / "copy")
    assert content(copied) == FILES
    assert sorted(os.listdir(copied)) == ["empty", "optimizer", "weights.pt"], "nothing of ours in the user's copy"
    with checkpoint.as_directory() as folder:
        assert content(folder) == FILES
        assert sorted(os.listdir(folder)) == ["empty", "optimizer", "weights.pt"]
    assert content(checkpoint.to_directory()) == FILES


def test_without_its_marker_it_is_not_offered(storage: str, tmp_path: Path) -> None:
    uri = join(storage, "trial_00000", "one")
    save(uri, tmp_path / "made", FILES)
    place(uri).beside(".committed").unlink()
    assert not checkpoints.is_committed(uri)
    with pytest.raises(CheckpointError, match="there is no committed checkpoint at"):
        Checkpoint(uri, info=CheckpointInfo(id="ckp", uri=uri, step=3)).to_directory(tmp_path / "copy")


@pytest.mark.parametrize("damage", ["gone", "short", "flipped", "manifest"])
def test_a_torn_one_is_told(storage: str, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = join(storage, "trial_00000", "one")
    save(uri, tmp_path / "made", FILES)
    where = place(uri)
    match damage:
        case "gone":
            (where / "weights.pt").unlink()
            words = "weights.pt is missing"
        case "short":
            (where / "weights.pt").write(b"w" * 9_999)
            words = "weights.pt has 9999 bytes instead of 10000"
        case "flipped":
            (where / "weights.pt").write(b"w" * 9_999 + b"x")
            words = "weights.pt does not match its hash"
        case _:
            where.beside(".manifest.json").write(json.dumps({"files": {}, "about": {}}).encode())
            words = "its manifest does not match its marker"
    checkpoint = Checkpoint(uri, info=CheckpointInfo(id="ckp", uri=uri, step=3))
    with pytest.raises(
        CheckpointLost, match=f"checkpoint ckp of iteration 3: the checkpoint at .* is damaged: {words}"
    ):
        checkpoint.to_directory(tmp_path / "copy")
    if where.local:  # others are checked when they are downloaded
        with pytest.raises(CheckpointLost, match=words):
            checkpoint.verify()
    with pytest.raises(CheckpointError, match=words) as raised:
        Checkpoint(uri).to_directory(tmp_path / "another copy")
    assert not isinstance(raised.value, CheckpointLost), "it is no trial's: whoever opens it answers for it"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with pytest.raises(CheckpointError, match=words):
        Checkpoint(uri).to_directory()
    assert os.listdir(tmp_path / "temporary") == [], "a folder that nobody knows of is not left behind"
    assert checkpoints.is_committed(uri) == (damage == "flipped"), "a flipped bit is found by reading only"


def test_deletion(storage: str, tmp_path: Path) -> None:
    one, two = (join(storage, "trial_00000", name) for name in ("one", "two"))
    save(one, tmp_path / "made one", FILES)
    save(two, tmp_path / "made two", FILES)
    checkpoints.delete(one)
    checkpoints.delete(one)
    assert not checkpoints.is_committed(one)
    assert place(one).sizes() == {}
    assert checkpoints.is_committed(two)


@pytest.mark.parametrize("left", ["files", "manifest", "marker"])
def test_a_torn_one_is_deleted_whatever_is_left_of_it(storage: str, tmp_path: Path, left: str) -> None:
    uri = join(storage, "trial_00000", "one")
    save(uri, tmp_path / "made", FILES)
    where = place(uri)
    if left != "marker":
        where.beside(".committed").unlink()
    if left != "manifest":
        where.beside(".manifest.json").unlink()
    if left == "files":
        (where / "weights.pt").unlink()
    else:
        where.remove()
    assert checkpoints.is_here(uri) == (left != "manifest" or where.local)
    checkpoints.delete(uri)
    assert not checkpoints.is_here(uri)
    assert where.beside(".manifest.json").read() is None
    assert where.sizes() == {}


def test_a_storage_that_does_not_answer_is_no_mistake_of_the_training_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "one")
    save(uri, tmp_path / "made", FILES)

    def broken(self: Place) -> bytes:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(Place, "read", broken)
    with pytest.raises(CheckpointUnreachable, match="checkpoint ckp of iteration 3 at .* cannot be read now: Network"):
        Checkpoint(uri, info=CheckpointInfo(id="ckp", uri=uri, step=3)).verify()


def test_sweeping_removes_what_was_never_committed(storage: str, tmp_path: Path) -> None:
    whole, half = (join(storage, "trial_00000", name) for name in ("whole", "half"))
    save(whole, tmp_path / "made", FILES)
    (place(half) / "weights.pt").write(b"w")
    assert checkpoints.sweep(storage) == [half]
    assert checkpoints.is_committed(whole)
    assert place(half).sizes() == {}
    assert checkpoints.sweep(storage, {whole}) == []
    assert checkpoints.is_committed(whole)


def test_sweeping_removes_what_was_committed_and_never_reported(storage: str, tmp_path: Path) -> None:
    known, unknown = (join(storage, "trial_00000", name) for name in ("known", "unknown"))
    for uri in (known, unknown):
        save(uri, tmp_path / "made", FILES)
    assert checkpoints.sweep(storage, {known}) == [unknown]
    assert checkpoints.is_committed(known)
    assert not checkpoints.is_here(unknown)


def test_files_that_are_not_there_cannot_be_committed(storage: str) -> None:
    uri = join(storage, "trial_00000", "one")
    (place(uri) / "weights.pt").write(b"w")
    with pytest.raises(CheckpointError, match="is incomplete: other.pt is missing"):
        checkpoints.commit(uri, {"weights.pt": (1, "x"), "other.pt": (1, "x")}, {})


def test_a_directory_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("text")
    checkpoint = Checkpoint.from_directory(tmp_path / "mine")
    checkpoint.verify()
    with checkpoint.as_directory() as folder:
        assert Path(folder, "file").read_text() == "text"
    with (
        pytest.raises(CheckpointError, match="there is no checkpoint at"),
        Checkpoint(tmp_path / "nothing").as_directory(),
    ):
        pass


def test_readers_of_a_remote_one_share_a_download(s3: str, tmp_path: Path) -> None:
    uri = join(s3, tmp_path.name, "one")
    save(uri, tmp_path / "made", FILES)
    folders: list[str] = []
    inside, done = threading.Barrier(3), threading.Barrier(3)

    def read() -> None:
        with Checkpoint(uri).as_directory() as folder:
            folders.append(folder)
            inside.wait(20)
            assert content(folder) == FILES
            done.wait(20)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(folders) == 3
    assert len(set(folders)) == 1
    assert not os.path.exists(folders[0]), "removed by the last one out"


def test_one_below_a_variable_that_only_its_own_node_has_is_fetched(tmp_path: Path) -> None:
    def fetch(folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        Path(folder, "count").write_text("3")

    uri = f"$NOT_SET_HERE/{tmp_path.name}"
    checkpoint = Checkpoint(uri, info=CheckpointInfo(id="ckp_1", uri=uri, step=1), fetch=fetch)
    checkpoint.verify()
    with checkpoint.as_directory() as folder:
        assert Path(folder, "count").read_text() == "3"
    assert Path(checkpoint.to_directory(tmp_path / "copy"), "count").read_text() == "3"
    assert checkpoints.manifest_and_marker(uri) == (f"{uri}.manifest.json", f"{uri}.committed")
    with pytest.raises(CheckpointError, match="NOT_SET_HERE, which is not set here"):
        Checkpoint(uri).to_directory()


def test_earlier_downloads_do_not_slow_down_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a thousand of them, the next one took ten seconds, since the folder was listed again for each of them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    listed: list[Any] = []
    for name in ("listdir", "scandir"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda path, real=real: listed.append(path) or real(path))

    def listings(number: int) -> int:
        listed.clear()
        with Checkpoint(f"/nowhere/{number}", fetch=os.makedirs).as_directory() as folder:
            assert os.path.isdir(folder)
        return len(listed)

    first, *_, last = map(listings, range(5))
    assert last == first


def test_a_download_whose_reader_was_killed_is_removed_by_the_next_one(s3: str, tmp_path: Path) -> None:
    uri, other = join(s3, tmp_path.name, "one"), join(s3, tmp_path.name, "two")
    save(uri, tmp_path / "made", FILES)
    save(other, tmp_path / "made", FILES)
    script = (
        "import os, signal, sys; from tuner.trials.checkpoints.checkpoints import Checkpoint\n"
        f"with Checkpoint({uri!r}).as_directory() as folder:\n"
        "    print(folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    left = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False).stdout.strip()
    assert os.path.isdir(left)
    with Checkpoint(other).as_directory() as folder:
        assert content(folder) == FILES
        assert not os.path.exists(left)
        with Checkpoint(uri).as_directory() as again:
            assert os.path.exists(folder), "what is being read stays"
            assert content(again) == FILES


def test_a_variable_that_is_a_relative_path_is_no_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would take it for a directory of its own."""
    monkeypatch.setenv("SCRATCH", "scratch")
    with pytest.raises(
        CheckpointError,
        match=r"the storage \$SCRATCH/x is scratch/x on this machine, but an absolute path was expected",
    ):
        place("$SCRATCH/x")


def test_a_storage_that_cannot_be_used() -> None:
    with pytest.raises(CheckpointError, match="nosuch://bucket/x cannot be used as storage"):
        place("nosuch://bucket/x")
    with pytest.raises(CheckpointError, match="names the environment variable NO_SUCH_DISK, which is not set here"):
        place("$NO_SUCH_DISK/tuner")


def test_a_path_may_name_a_variable_that_differs_from_node_to_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_DISK", str(tmp_path))
    one = place(join("$SOME_DISK/runs", "one"))
    assert (one.uri, one.path) == ("$SOME_DISK/runs/one", str(tmp_path / "runs" / "one"))


def test_joining_keeps_the_query() -> None:
    assert join("s3://b/a?region=x", "c", "d") == "s3://b/a/c/d?region=x"
    assert join("/a/b/", "c") == "/a/b/c"
    assert join("/odd?name", "c") == "/odd?name/c"


def test_a_checkpoint_whose_folder_was_moved_is_found_where_it_is_now(tmp_path: Path) -> None:
    before, now = tmp_path / "before" / "exp_1", tmp_path / "now" / "exp_1"
    uri = str(before / "trial_00000" / "iteration_00000003_ab")
    (tmp_path / "made").mkdir()
    save(uri, tmp_path / "made", dict(FILES))
    assert checkpoints.where_now(uri, str(now)) == uri
    now.parent.mkdir()
    before.rename(now)
    moved = str(now / "trial_00000" / "iteration_00000003_ab")
    assert checkpoints.where_now(uri, str(now)) == checkpoints.where_now(f"file://{uri}", str(now)) == moved
    lost = str(before / "trial_00000" / "iteration_00000002_cd")
    assert checkpoints.where_now(lost, str(now)) == lost
    assert checkpoints.where_now("s3://bucket/x/exp_1/trial_00000/y", str(now)) == "s3://bucket/x/exp_1/trial_00000/y"
    assert checkpoints.where_now(uri, "s3://bucket/exp_1") == uri
    assert [checkpoints.where_now(short, str(now)) for short in ("memory:", "/a", "a/b", "")] == [
        "memory:",
        "/a",
        "a/b",
        "",
    ]
    before.mkdir()
    assert checkpoints.where_now(uri, str(now)) == uri, "its folder is there, so this one is lost"


def test_the_disk_is_not_asked_where_a_checkpoint_is_whose_folder_was_not_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`tuner.load` had waited for a disk that does not respond, although it only names the checkpoints of all trials."""
    monkeypatch.setattr(checkpoints, "place", lambda uri: pytest.fail("asks the disk"))
    uri = "/home/exp_1/trial_00000/iteration_00000003_ab"
    assert checkpoints.where_now(uri, "/home/exp_1") == checkpoints.where_now(uri, "/home/exp_1/") == uri
