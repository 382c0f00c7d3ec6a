"""Test a storage that answers 503 for a while: a real S3 server behind a layer that can refuse requests.

pyarrow takes many seconds to give up, so these tests are long. Their short form is in `test_outages.py`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests import invariants
from tuner.domain.events import CheckpointInfo
from tuner.errors import CheckpointError, CheckpointUnreachable
from tuner.settings import Settings
from tuner.store import Store
from tuner.trials.checkpoints import checkpoints, saver
from tuner.trials.checkpoints.checkpoints import Checkpoint
from tuner.trials.checkpoints.saver import Saver
from tuner.trials.checkpoints.storage import is_passing

REFUSAL = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
FOREVER = 1_000_000
LONGER = 70  # pyarrow gives up after 62 refusals


class Bucket:
    """A bucket. `refusals` is the number of requests that are still to be answered with 503."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self.refusals = self.refused = 0
        self.freed = threading.Condition()
        self._real = DomainDispatcherApplication(create_backend_app)
        self.server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def refuse(self, count: int) -> None:
        self.refusals, self.refused = count, 0

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/refuse":
            self.refuse(LONGER)
            start_response("204 No Content", [])
            return []
        if self.refusals <= 0:
            return self._real(environ, start_response)
        with self.freed:
            self.refusals -= 1
            self.refused += 1
            self.freed.notify_all()
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(REFUSAL)))])
        return [REFUSAL]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    import boto3

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    made = Bucket()
    threading.Thread(target=made.server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    boto3.client("s3", endpoint_url=made.url, region_name="us-east-1").create_bucket(Bucket="busy")
    yield made
    made.server.shutdown()


@pytest.fixture
def storage(bucket: Bucket, tmp_path: Path) -> str:
    place = bucket.url.replace(":", "%3A").replace("/", "%2F")
    return f"s3://busy/{tmp_path.name}?endpoint_override={place}&region=us-east-1"


def of_one_rank(storage: str, committed: list[CheckpointInfo]) -> Saver:
    return Saver(storage=storage, segment_id="seg", trial_number=0, rank=0, world_size=1, committed=committed.append)


def weights(folder: str) -> None:
    Path(folder, "weights").write_bytes(bytes(1000))


def train(config: dict[str, Any]) -> None:
    """Train for six iterations with a checkpoint each. After the third one, the storage refuses requests for a while."""
    import urllib.request

    for step in range(6):
        if step == 3:
            urllib.request.urlopen(config["refuse"]).read()
        tuner.report({"loss": 1.0 / (step + 1)}, checkpoint=weights)


@pytest.mark.long
@pytest.mark.slow
def test_a_search_loses_nothing_while_its_storage_refuses_requests(
    bucket: Bucket, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage that is not available is no failure of a trial, so none is retried, and no checkpoint is missing."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    try:
        result = tuner.run(
            train,
            {"refuse": f"{bucket.url}/refuse"},
            metric="loss",
            mode="min",
            num_samples=1,
            max_t=6,
            scheduler="fifo",
            search_alg="random",
            storage=storage,
            executor="local",
            verbose=0,
        )
    finally:
        tuner.shutdown()
    assert result.state == "completed", result.error
    assert bucket.refused == LONGER
    [trial] = result.trials
    assert (trial.state, trial.iteration) == ("completed", 6)
    assert result.best_checkpoint.iteration == 6
    with Store.open(Settings.from_env().database_url) as store:
        record = store.experiments.get(result.experiment_id)
        assert list(invariants.broken(store, record)) == []
        [segments] = store.trials.segments(record.id).values()
        assert [segment.cause for segment in segments] == ["start"], "nothing was retried"
        kept = [each.uri for each in store.trials.checkpoints(record.id) if each.state == "ready"]
    assert kept
    assert [uri for uri in kept if not checkpoints.is_committed(uri)] == []


@pytest.mark.long
@pytest.mark.slow
def test_a_checkpoint_is_saved_once_the_storage_answers_again(
    bucket: Bucket, storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The storage refuses for longer than pyarrow tries by itself."""
    committed: list[CheckpointInfo] = []
    rank = of_one_rank(storage, committed)
    bucket.refuse(FOREVER)
    info = rank.take(weights, 1, 1)
    assert info is not None
    tried_again = "the checkpoint of iteration 1 cannot be saved now, and this will be tried again"
    with bucket.freed:
        assert bucket.freed.wait_for(lambda: tried_again in caplog.text, 60)
    assert committed == []
    bucket.refuse(0)
    rank.drain(60)
    assert [each.id for each in committed] == [info.id]
    assert checkpoints.is_committed(info.uri)


@pytest.mark.long
@pytest.mark.slow
def test_in_the_end_an_upload_is_given_up_with_what_the_storage_said(
    bucket: Bucket, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "RETRY_S", 0.0)
    committed: list[CheckpointInfo] = []
    rank = of_one_rank(storage, committed)
    bucket.refuse(FOREVER)
    rank.take(weights, 1, 1)
    with pytest.raises(CheckpointError, match="a checkpoint could not be saved: .*HTTP status 503"):
        rank.drain(60)
    bucket.refuse(0)
    info = rank.take(weights, 2, 2)
    rank.drain(60)
    assert info is not None
    assert [each.id for each in committed] == [info.id]


@pytest.mark.long
@pytest.mark.slow
def test_who_gives_up_an_upload_does_not_wait_for_the_storage(bucket: Bucket, storage: str) -> None:
    rank = of_one_rank(storage, [])
    bucket.refuse(FOREVER)
    info = rank.take(weights, 1, 1)
    assert info is not None
    rank.leave(0.01)
    rank.abandon("killed by a user")
    assert rank.outcome(info.id) == "killed by a user"
    assert rank._thread is not None
    rank._thread.join(60)
    assert not rank._thread.is_alive()
    assert rank.unsaved == 0


@pytest.mark.long
@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_read_now_is_not_lost(bucket: Bucket, storage: str) -> None:
    committed: list[CheckpointInfo] = []
    rank = of_one_rank(storage, committed)
    info = rank.take(weights, 1, 1)
    rank.drain(60)
    assert info is not None
    bucket.refuse(2)
    Checkpoint(info.uri, info=info).verify()
    bucket.refuse(FOREVER)
    with pytest.raises(CheckpointUnreachable, match="cannot be read now: .*HTTP status 503"):
        Checkpoint(info.uri, info=info).verify()
    bucket.refuse(0)
    Checkpoint(info.uri, info=info).verify()


@pytest.mark.parametrize(
    ("said", "passing"),
    [
        ("When uploading part: AWS Error NETWORK_CONNECTION during UploadPart operation: curlCode: 28", True),
        ("AWS Error UNKNOWN (HTTP status 503) during HeadBucket operation: No response body.", True),
        ("AWS Error SLOW_DOWN during PutObject operation: Please reduce your request rate.", True),
        ("AWS Error ACCESS_DENIED during PutObject operation: Access Denied", False),
        ("AWS Error NO_SUCH_BUCKET during CreateMultipartUpload operation: The bucket does not exist", False),
        ("AWS Error UNKNOWN (HTTP status 403) during HeadBucket operation: No response body.", False),
        ("[Errno 28] No space left on device", False),
        ("When reading 'a' in bucket 'timeout-study': AWS Error ACCESS_DENIED during GetObject operation", False),
        ("AWS Error NETWORK_CONNECTION during HeadBucket operation: curlCode: 60, SSL peer certificate", False),
        ("AWS Error UNKNOWN (HTTP status 501) during PutObject operation: Not Implemented", False),
        ("[ServerBusy] 503 The server is busy.", True),
        ("google::cloud::Status(DEADLINE_EXCEEDED: Deadline Exceeded)", True),
    ],
)
def test_only_what_may_pass_is_tried_again(said: str, passing: bool) -> None:
    assert is_passing(OSError(said)) == passing
