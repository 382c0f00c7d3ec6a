"""Folders below the temporary directory, and what is on the disk before what."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from tuner.domain.events import CheckpointInfo
from tuner.errors import CheckpointError, CheckpointLost, CheckpointUnreachable
from tuner.trials.checkpoints import checkpoints
from tuner.trials.checkpoints.checkpoints import Checkpoint
from tuner.trials.checkpoints.storage import is_within, join, place, private_folder, unknown_scheme


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_private_folder_is_made_and_found_again(temporary: Path) -> None:
    folder = private_folder("tuner-cache")
    assert folder == str(temporary / f"tuner-cache-{os.getuid()}") == private_folder("tuner-cache")
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


@pytest.mark.parametrize("trap", ["open to the group", "open to all", "a link", "a file", "another owner"])
def test_what_is_not_private_is_avoided(temporary: Path, trap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = temporary / f"tuner-cache-{os.getuid()}"
    match trap:
        case "open to the group" | "open to all":
            there.mkdir()
            there.chmod(0o770 if trap == "open to the group" else 0o707)
        case "a link":
            (temporary / "elsewhere").mkdir(mode=0o700)
            there.symlink_to(temporary / "elsewhere")
        case "a file":
            there.touch(mode=0o600)
        case _:
            there.mkdir(mode=0o700)
            uid = os.getuid()
            monkeypatch.setattr(os, "getuid", lambda: uid + 1)
            there.rename(temporary / f"tuner-cache-{uid + 1}")
    folder = private_folder("tuner-cache")
    assert Path(folder).parent == temporary
    assert folder != str(there)
    assert not os.path.islink(folder)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert private_folder("tuner-cache") == folder, "one for the life of the process"


def test_a_directory_may_be_called_file() -> None:
    assert unknown_scheme("file") is None


@pytest.mark.parametrize("scheme", ["", "file://", "local://"])
def test_a_local_directory_has_three_spellings(tmp_path: Path, scheme: str) -> None:
    uri = f"{scheme}{tmp_path}/folder"
    assert unknown_scheme(uri) is None
    (place(uri) / "file").write(b"content")
    assert (tmp_path / "folder" / "file").read_bytes() == b"content"


def test_a_file_that_two_threads_write_at_once_has_the_content_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, real_replace = place(str(tmp_path / "file")), os.replace

    def replace(*paths: str) -> None:
        monkeypatch.setattr(os, "replace", real_replace)
        target.write(b"of the other thread, which is quicker")
        real_replace(*paths)

    monkeypatch.setattr(os, "replace", replace)
    target.write(b"of this thread")
    assert target.read() == b"of this thread"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        place(str(tmp_path / "file")).write(b"content")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("durable", [True, False])
def test_each_step_of_a_commit_is_on_the_disk_before_the_next(
    tmp_path: Path, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def name(path: str) -> str:
        return os.path.relpath(path, tmp_path).partition(".tmp")[0]

    def fsync(descriptor: int) -> None:
        steps.append(f"sync {name(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        real_sync(descriptor)

    def replace(source: str, target: str) -> None:
        steps.append(f"write {name(target)}")
        real_replace(source, target)

    one = tmp_path / "exp" / "trial" / "one"
    (one / "sub").mkdir(parents=True)
    (one / "sub" / "weights").write_text("w")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    below = str(tmp_path / "exp") if durable else None
    checkpoints.commit(str(one), checkpoints.digest(str(one)), {}, below)
    assert checkpoints.is_committed(str(one))
    in_full = [
        "sync exp/trial/one/sub/weights",
        "sync exp/trial/one/sub",
        "sync exp/trial/one",
        "sync exp/trial",
        "sync exp",
        "sync .",
        "sync exp/trial/one.manifest.json",
        "write exp/trial/one.manifest.json",
        "sync exp/trial",
        "sync exp/trial/one.committed",
        "write exp/trial/one.committed",
        "sync exp/trial",
    ]
    assert steps == (in_full if durable else [step for step in in_full if step.startswith("write")])


NO_REGION = (
    "When resolving region for bucket 'kept': AWS Error NETWORK_CONNECTION during HeadBucket operation: curlCode: 28"
)


def test_a_bucket_whose_region_is_not_known_now_is_no_lost_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is lost would be deleted."""
    from pyarrow import fs

    said = [NO_REGION]

    class Unreachable:
        @staticmethod
        def from_uri(uri: str) -> None:
            raise OSError(said[0])

    monkeypatch.setattr(fs, "FileSystem", Unreachable)
    checkpoint = Checkpoint("s3://kept/1", info=CheckpointInfo(id="ckp_1", uri="s3://kept/1", step=3, bytes=10))
    with pytest.raises(CheckpointUnreachable, match="cannot be reached now: When resolving region"):
        checkpoint.verify()
    said[0] = "When resolving region for bucket 'kept': AWS Error RESOURCE_NOT_FOUND (HTTP status 404)"
    with pytest.raises(CheckpointLost):
        checkpoint.verify()
    with pytest.raises(CheckpointError, match="cannot be used as storage"):
        place("s3://kept/2")


STORAGES = ["/shared/exp", "/shared/which?/exp", "/shared/100%25/exp", "file:///shared/exp", "s3://b/exp?region=eu-1"]


@pytest.mark.parametrize("storage", STORAGES)
def test_an_agents_checkpoint_is_below_the_storage_of_its_experiment(storage: str) -> None:
    assert is_within(storage, join(storage, "trial_00000", "one"))
    assert not is_within(storage, join(storage, "..", "other"))
    assert not is_within(storage, join(storage, "%2e%2e", "other"))
    assert not is_within(storage, join(storage, "..%2Fother"))
    assert not is_within(storage, join(storage, "trial_00000", ""))
    assert not is_within(storage, storage)
    assert not is_within(storage, join(storage.replace("shared", "other").replace("s3://b", "s3://c"), "one"))


@pytest.mark.parametrize("query", ["", "?region=eu-1&endpoint_override=http://10.0.0.1", "?region=us-1"])
def test_an_agents_checkpoint_has_the_query_of_the_storage(query: str) -> None:
    """The query may name a host, to which the service sent requests when it deleted the checkpoint."""
    assert not is_within("s3://b/exp?region=eu-1", f"s3://b/exp/trial_00000/one{query}")
