"""Test the saver while its storage is not available. Real servers that answer 503 are in `test_busy_storage.py`."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.services import until
from tests.slow_storage import SlowStorage
from tests.trials.checkpoints.test_saver import fill, uploading
from tuner.domain.events import CheckpointInfo
from tuner.errors import CheckpointError, CheckpointUnreachable
from tuner.trials.checkpoints import checkpoints
from tuner.trials.checkpoints import saver as saving
from tuner.trials.checkpoints.storage import Place, place


class Refusing:
    """Lets the first uploads fail. lost: True if they fail without an error, but no file is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, said: str, times: int, lost: bool = False) -> None:
        self.left = times
        upload = Place.upload

        def refuse(place: Place, source: str) -> None:
            self.left -= 1
            if self.left >= 0 and lost:
                return
            if self.left >= 0:
                raise OSError(said)
            upload(place, source)

        monkeypatch.setattr(Place, "upload", refuse)
        monkeypatch.setattr(saving, "_RETRY_WAITS_S", (0.001,))


BUSY = "AWS Error UNKNOWN (HTTP status 503) during HeadBucket operation"


@pytest.mark.parametrize("lost", [False, True])
def test_an_upload_is_tried_again_while_the_storage_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lost: bool
) -> None:
    """A search against a real server that answers 503 is in `test_busy_storage.py`."""
    slow, told = SlowStorage(tmp_path), list[CheckpointInfo]()
    Refusing(monkeypatch, BUSY, 3, lost)
    saver = uploading(slow, told)
    info = saver.take(fill("weights"), 1, 1)
    assert info is not None
    saver.drain()
    assert [one.id for one in told] == [info.id]
    assert checkpoints.is_committed(info.uri)
    assert caplog.text.count("the checkpoint of iteration 1 cannot be saved now, and this will be tried again") == 3


def test_an_upload_that_stays_impossible_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowStorage(tmp_path)
    Refusing(monkeypatch, BUSY, 1_000_000)
    monkeypatch.setattr(saving, "RETRY_S", 0.01)
    saver = uploading(slow, [])
    saver.take(fill("weights"), 1, 1)
    with pytest.raises(CheckpointError, match="a checkpoint could not be saved: AWS Error UNKNOWN"):
        saver.drain()


def test_all_that_waits_for_the_storage_is_given_up_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowStorage(tmp_path)
    refusing = Refusing(monkeypatch, BUSY, 1_000_000)
    monkeypatch.setattr(saving, "_RETRY_WAITS_S", (0.2,))
    monkeypatch.setattr(saving, "RETRY_S", 1.0)
    saver = uploading(slow, [])
    for number in range(1, 5):
        saver.take(fill("weights"), number, number)
    with pytest.raises(CheckpointError, match="a checkpoint could not be saved"):
        saver.drain()
    tries = 1_000_000 - refusing.left
    assert 4 <= tries <= 6 + 3, "the first checkpoint for a second, and each of the others once"


def test_each_outage_has_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, told = SlowStorage(tmp_path), list[CheckpointInfo]()
    refusing = Refusing(monkeypatch, BUSY, 2)
    saver = uploading(slow, told)
    saver.take(fill("weights"), 1, 1)
    until("the first checkpoint is saved", lambda: len(told) == 1)
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 2 * saving.RETRY_S)
    refusing.left = 2
    saver.take(fill("weights"), 2, 2)
    saver.drain()
    assert [info.step for info in told] == [1, 2]


def test_training_waits_if_many_checkpoints_wait_for_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, told = SlowStorage(tmp_path), list[CheckpointInfo]()
    refusing = Refusing(monkeypatch, BUSY, 1_000_000)
    monkeypatch.setattr(saving, "_RETRY_WAITS_S", (0.01,))
    saver = uploading(slow, told)
    for number in range(1, saving.MOST_WAITING + 1):
        saver.take(fill("weights"), number, number)
    until("the storage is not available", lambda: saver._unavailable_since is not None)
    training = threading.Thread(target=saver.take, args=(fill("weights"), 9, 9))
    training.start()
    left = refusing.left
    until("the saver tries again", lambda: refusing.left < left - 5)
    assert training.is_alive()
    refusing.left = 0
    training.join(60)
    assert not training.is_alive()
    saver.drain()
    assert [info.step for info in told] == [1, 2, 3, 4, 9]


def test_a_bucket_whose_region_cannot_be_asked_for_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pyarrow asks for the region when it makes a filesystem, before anything is uploaded."""
    slow, told = SlowStorage(tmp_path), list[CheckpointInfo]()
    real, left = place, [4]

    def asked(uri: str) -> Place:
        left[0] -= 1
        if left[0] >= 0:
            raise CheckpointUnreachable(f"{uri} cannot be reached now: {BUSY}")
        return real(uri)

    monkeypatch.setattr(saving, "place", asked)
    monkeypatch.setattr(saving, "_RETRY_WAITS_S", (0.001,))
    saver = uploading(slow, told)
    info = saver.take(fill("weights"), 1, 1)
    assert info is not None
    saver.drain()
    assert [one.id for one in told] == [info.id]
    assert left[0] < 0


def test_a_truncated_file_is_uploaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, told = SlowStorage(tmp_path), list[CheckpointInfo]()
    sizes, seen = Place.sizes, list[dict[str, int]]()

    def cut(place: Place) -> dict[str, int]:
        found = sizes(place)
        seen.append(found)
        return dict.fromkeys(found, 1) if len(seen) == 1 else found

    monkeypatch.setattr(Place, "sizes", cut)
    monkeypatch.setattr(saving, "_RETRY_WAITS_S", (0.001,))
    saver = uploading(slow, told)
    saver.take(fill("weights"), 1, 1)
    saver.drain()
    assert len(told) == 1
    assert len(seen) == 3, "after each of two uploads, and for the commit"


def test_an_upload_that_waits_for_the_storage_ends_with_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowStorage(tmp_path)
    refusing = Refusing(monkeypatch, BUSY, 1_000_000)
    monkeypatch.setattr(saving, "_RETRY_WAITS_S", (300.0,))
    saver = uploading(slow, [])
    info = saver.take(fill("weights"), 1, 1)
    assert info is not None
    saver.leave(0.01)
    saver.abandon("killed by a user")
    assert saver._thread is not None
    saver._thread.join(60)
    assert saver.unsaved == 0
    assert "killed by a user" in str(saver.outcome(info.id))
    assert refusing.left >= 1_000_000 - 1


def test_a_mistake_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowStorage(tmp_path)
    refusing = Refusing(monkeypatch, "AWS Error ACCESS_DENIED during PutObject operation: Access Denied", 1_000_000)
    saver = uploading(slow, [])
    saver.take(fill("weights"), 1, 1)
    with pytest.raises(CheckpointError, match="Access Denied"):
        saver.drain()
    assert refusing.left == 1_000_000 - 1
