"""Trials that users ask for over HTTP, checkpoints, best and pareto."""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.experiment.operations.test_amend import commands
from tests.store.examples import T0, a_report, a_spec, begin
from tests.web.searches import Search, digits
from tuner.api.routes import trials as routes
from tuner.domain.batch import Batch
from tuner.domain.events import CheckpointInfo
from tuner.domain.experiment import CheckpointPolicy, Objective
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import KeptCheckpoint
from tuner.errors import CheckpointError
from tuner.experiment import files
from tuner.experiment.analysis.pareto import front
from tuner.store import ExperimentRecord, Store
from tuner.trials.checkpoints.checkpoints import commit, digest

API = "/api/v1"


def saved(
    store: Store, folder: Path, state: TrialState = TrialState.FAILED, **options: Any
) -> tuple[ExperimentRecord, str]:
    """Make an experiment that has ended, whose trial 0 has a committed checkpoint."""
    made, epoch, trials = begin(store, 2, spec=a_spec(num_samples=2, **options))
    files = folder / "ckpt"
    (files / "inner").mkdir(parents=True)
    (files / "model.bin").write_bytes(b"x" * 3000)
    (files / "inner" / "state.json").write_text("{}")
    commit(str(files), digest(str(files)), {})
    info = CheckpointInfo(id="ckpt_0", uri=str(files), step=1, bytes=3002)
    trial = trials[0]
    trial.state, trial.checkpoint = state, info
    trial.checkpoints["ckpt_0"] = KeptCheckpoint(info, 0.5, 1)
    trials[1].state = TrialState.COMPLETED
    report = a_report(0, 1)
    batch = Batch(log=[(6, report)], trials=trials, state=ExperimentState.FAILED)
    store.drivers.commit(made.id, epoch, batch, T0 + 9)
    with store._database.write() as cursor:
        [(segment,)] = cursor.rows("SELECT s.id FROM segment s JOIN trial t ON t.id = s.trial_id WHERE t.number = 0")
        sql = (
            "INSERT INTO checkpoint (public_id, segment_id, step, uri, bytes, state) VALUES (?, ?, 1, ?, 3002, 'ready')"
        )
        cursor.execute(sql, ("ckpt_0", segment, str(files)))
    store.drivers.release(made.id, epoch)
    return store.experiments.get(made.public_id), trial_of(store, made)


def trial_of(store: Store, made: ExperimentRecord) -> str:
    return store.trials.page(made.id).items[0].public_id


async def test_a_checkpoint_is_listed_downloaded_and_pinned(
    client: httpx.AsyncClient, sqlite_store: Store, tmp_path: Path
) -> None:
    made, trial = saved(sqlite_store, tmp_path)
    [item] = (await client.get(f"{API}/experiments/{made.public_id}/checkpoints")).json()["items"]
    assert (item["id"], item["trial_id"], item["state"], item["pinned"]) == ("ckpt_0", trial, "ready", False)
    assert (await client.get(f"{API}/checkpoints/ckpt_0")).json() == item
    for query in ({"trial": 1}, {"state": "deleted"}):
        assert (await client.get(f"{API}/experiments/{made.public_id}/checkpoints", params=query)).json()["items"] == []
    answer = await client.get(f"{API}/checkpoints/ckpt_0/download")
    assert answer.headers["content-encoding"] == "identity"  # though the client accepts gzip
    assert answer.headers["content-disposition"] == 'attachment; filename="ckpt_0.tar"'
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert sorted(archive.getnames()) == ["inner/state.json", "model.bin"]
        file = archive.extractfile("model.bin")
        assert file is not None
        assert file.read() == b"x" * 3000
    assert (await client.post(f"{API}/checkpoints/ckpt_0/pin")).json()["pinned"] is True
    assert (await client.post(f"{API}/checkpoints/ckpt_0/pin")).status_code == 200
    assert (await client.post(f"{API}/checkpoints/ckpt_0/unpin")).json()["pinned"] is False
    assert [payload["pinned"] for _, payload in commands(sqlite_store, made)] == [True, False]
    (tmp_path / "ckpt" / "model.bin").unlink()
    torn = await client.get(f"{API}/checkpoints/ckpt_0/download")
    assert (torn.status_code, "damaged" in torn.json()["detail"]) == (409, True)
    for path in ("", "/download"):
        assert (await client.get(f"{API}/checkpoints/ckpt_none{path}")).status_code == 404


async def test_a_checkpoint_of_an_agent_is_read_only_in_the_storage_of_its_experiment(
    client: httpx.AsyncClient, sqlite_store: Store, tmp_path: Path
) -> None:
    """An agent, which may not even read, could let the service open a checkpoint of another project, or call any host."""
    made, _ = saved(
        sqlite_store, tmp_path / "theirs", executor="agents", checkpoint=CheckpointPolicy(storage=str(tmp_path))
    )
    answer = await client.get(f"{API}/checkpoints/ckpt_0/download")
    assert answer.status_code == 409
    assert f"only below {tmp_path}/{made.public_id}" in answer.json()["detail"]
    own = tmp_path / made.public_id / "trial_00000"
    own.parent.mkdir()
    (tmp_path / "theirs").rename(own)
    with sqlite_store._database.write() as cursor:
        cursor.execute("UPDATE checkpoint SET uri = ?", (str(own / "ckpt"),))
    assert (await client.get(f"{API}/checkpoints/ckpt_0/download")).status_code == 200


def test_a_checkpoint_that_is_deleted_while_it_is_downloaded_is_sent_to_its_end(
    sqlite_store: Store, tmp_path: Path
) -> None:
    """The connection was cut, with a traceback in the service's log, as soon as the search had a newer checkpoint."""
    saved(sqlite_store, tmp_path)
    pieces = files.archive(sqlite_store.trials.checkpoint("ckpt_0"), str(tmp_path))
    sent = next(iter(pieces))
    shutil.rmtree(tmp_path / "ckpt")
    with tarfile.open(fileobj=io.BytesIO(sent + b"".join(pieces))) as archive:
        assert {name: len(archive.extractfile(name).read()) for name in archive.getnames()} == {  # type: ignore[union-attr]
            "inner/state.json": 2,
            "model.bin": 3000,
        }


def test_an_archive_that_was_cut_or_leads_out_of_its_folder_is_not_unpacked(
    sqlite_store: Store, tmp_path: Path
) -> None:
    saved(sqlite_store, tmp_path)
    whole = b"".join(files.archive(sqlite_store.trials.checkpoint("ckpt_0"), str(tmp_path)))
    second = max(map(whole.index, (b"inner/state.json", b"model.bin")))  # where the header of the second file begins
    link, outside = tarfile.TarInfo("link"), tarfile.TarInfo("../outside")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
    end = bytes(2 * files.BLOCK)
    for content, why in (
        (whole[:second], "lacks its end"),
        (whole[:1000], "lacks its end"),
        (b"", "lacks its end"),
        (b"<html>" * 100 + end, "cannot be read"),
        (link.tobuf() + end, "'link' is no file below its folder"),
        (outside.tobuf() + end, "'../outside' is no file below its folder"),
    ):
        (tmp_path / "cut.tar").write_bytes(content)
        with pytest.raises(CheckpointError, match=why):
            list(files.unpack(tmp_path / "cut.tar", tmp_path / "into" / "it"))
    assert not (tmp_path / "into").exists()


async def test_files_that_cannot_be_opened_are_a_conflict(
    client: httpx.AsyncClient, sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(sqlite_store, tmp_path)

    def broken(uri: str) -> None:
        raise OSError(f"{uri}: input/output error")

    monkeypatch.setattr(files, "committed", broken)
    answer = await client.get(f"{API}/checkpoints/ckpt_0/download")
    assert answer.status_code == 409
    assert "ckpt_0 cannot be read here" in answer.json()["detail"]


async def test_enqueue_fork_and_retry_ask_the_driver_and_wake_an_ended_experiment(
    client: httpx.AsyncClient, sqlite_store: Store, tmp_path: Path
) -> None:
    made, trial = saved(sqlite_store, tmp_path)
    body = {"configurations": [{"lr": 0.01}, {}]}
    answer = await client.post(f"{API}/experiments/{made.public_id}/enqueue", json=body)
    assert (answer.status_code, answer.json()["source"]) == (202, "adopted")
    forked = await client.post(f"{API}/trials/{trial}/fork", json={"params": {"lr": 0.05}})
    assert (forked.status_code, forked.json()["id"]) == (202, trial)
    assert (await client.post(f"{API}/trials/{trial}/retry")).status_code == 202
    asked = commands(sqlite_store, made)
    assert [name for name, _ in asked] == ["enqueue", "continue", "enqueue", "continue", "retry", "continue"]
    assert asked[0][1] == {
        "points": [{"params": {"lr": 0.01}, "space_revision": 0}, {"params": {}, "space_revision": 0}]
    }
    reasons = [one.reason for one in sqlite_store.commands.pending([made.id])]
    assert reasons[2] == "forked by a user from trial 0 at iteration 1 with lr=0.05"
    [point] = asked[2][1]["points"]
    assert len(point.pop("key")) == 32
    assert point == {"params": {"lr": 0.05}, "checkpoint": "ckpt_0", "parent": 0, "space_revision": 0}


async def test_a_request_for_trials_with_the_same_key_is_carried_out_once(
    client: httpx.AsyncClient, sqlite_store: Store, tmp_path: Path
) -> None:
    made, trial = saved(sqlite_store, tmp_path)
    url = f"{API}/experiments/{made.public_id}"
    for path, body in (("retry", None), ("fork", {"params": {"lr": 0.05}})):
        key = {"Idempotency-Key": path}
        for _ in range(2):
            assert (await client.post(f"{API}/trials/{trial}/{path}", json=body, headers=key)).status_code == 202
            with sqlite_store._database.write() as cursor:
                cursor.execute("UPDATE command SET state = 'done'")  # its driver has carried them out
        other = await client.post(f"{API}/trials/{trial}/fork", json={"params": {"lr": 0.06}}, headers=key)
        assert (other.status_code, "was used before" in other.json()["detail"]) == (409, True)
    with sqlite_store._database.write() as cursor:
        assert list(cursor.rows("DELETE FROM command RETURNING command")) == [
            ("retry",), ("continue",), ("enqueue",), ("continue",),
        ]  # fmt: skip
    for verb, body in (("enqueue", {"configurations": [{"lr": 0.01}]}), ("continue", {"num_samples": 2})):
        key = {"Idempotency-Key": verb}
        answers = [await client.post(f"{url}/{verb}", json=body, headers=key) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [202, 202]
        other = await client.post(f"{url}/continue", json={"num_samples": 9}, headers=key)
        assert (other.status_code, "was used before" in other.json()["detail"]) == (409, True)
        long = await client.post(f"{url}/{verb}", json=body, headers={"Idempotency-Key": "k" * 201})
        assert long.status_code == 422
    assert [name for name, _ in commands(sqlite_store, made)] == ["enqueue", "continue", "amend", "continue"]


async def test_a_fork_answers_with_the_new_trial_once_it_has_started(
    client: httpx.AsyncClient, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "FORK_WAIT_S", 20.0)
    search = Search(sqlite_store, digits("forked", 2, scheduler={"type": "fifo"}, max_t=9), start=T0)
    search.advance(8)
    parent = sqlite_store.trials.page(search.id).items[0]
    asked = asyncio.create_task(client.post(f"{API}/trials/{parent.public_id}/fork", json={"params": {"lr": 0.05}}))
    while not sqlite_store.commands.pending([search.id]):
        await asyncio.sleep(0.01)
    search.obey()
    answer = await asked
    assert (answer.status_code, answer.json()["number"], answer.json()["params"]["lr"]) == (201, 2, 0.05)
    assert answer.headers["location"] == f"/api/v1/trials/{answer.json()['id']}"
    [segment] = answer.json()["segments"]
    assert segment["cause"] == "fork"


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/experiments/{id}/enqueue", {"configurations": [{"lr": 0.01}, {"lr": 7.0}]}, "/configurations/1/lr"),
        ("/experiments/{id}/enqueue", {"configurations": []}, "/configurations"),
        ("/trials/{trial}/fork", {"params": {"lr": "high"}}, "/params/lr"),
        ("/trials/{trial}/fork", {"params": {"lrr": 0.1}}, "/params/lrr"),
    ],
)
async def test_a_wrong_configuration_is_pointed_at(
    client: httpx.AsyncClient, sqlite_store: Store, tmp_path: Path, path: str, body: Any, pointer: str
) -> None:
    made, trial = saved(sqlite_store, tmp_path)
    answer = await client.post(API + path.format(id=made.public_id, trial=trial), json=body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert commands(sqlite_store, made) == []


async def test_only_failed_trials_are_retried_and_only_those_with_checkpoints_forked(
    client: httpx.AsyncClient, sqlite_store: Store, tmp_path: Path
) -> None:
    made, trial = saved(sqlite_store, tmp_path, TrialState.COMPLETED)
    other = sqlite_store.trials.page(made.id).items[1].public_id
    assert (await client.post(f"{API}/trials/{trial}/retry")).status_code == 409
    assert (await client.post(f"{API}/trials/{other}/fork")).status_code == 409
    foreign = await client.post(f"{API}/trials/{other}/fork", json={"checkpoint_id": "ckpt_0"})
    assert (foreign.status_code, foreign.json()["errors"][0]["pointer"]) == (422, "/checkpoint_id")


AT_ONE = {"type": "asha", "max_t": 1}


@pytest.mark.parametrize(
    "spec",
    [{"max_t": 1}, {"scheduler": AT_ONE}, {"max_t": 9, "scheduler": AT_ONE}],
    ids=["spec", "scheduler", "smaller"],
)
async def test_a_trial_is_not_forked_from_a_checkpoint_at_its_end(
    client: httpx.AsyncClient, sqlite_store: Store, tmp_path: Path, spec: dict[str, Any]
) -> None:
    made, trial = saved(sqlite_store, tmp_path, TrialState.COMPLETED, **spec)
    answer = await client.post(f"{API}/trials/{trial}/fork")
    assert (answer.status_code, "ends at max_t, which is 1" in answer.json()["detail"]) == (409, True)
    assert commands(sqlite_store, made) == []


REQUESTS: dict[str, dict[str, Any]] = {"enqueue": {"configurations": [{}]}}


@pytest.mark.parametrize("max_t", [1, 9], ids=["at the end", "before the end"])
@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.PAUSED, TrialState.FAILED, TrialState.COMPLETED])
@pytest.mark.parametrize("whole", [ExperimentState.RUNNING, ExperimentState.CANCELLING, ExperimentState.COMPLETED])
async def test_exactly_the_actions_that_are_listed_have_an_effect(
    client: httpx.AsyncClient,
    sqlite_store: Store,
    tmp_path: Path,
    whole: ExperimentState,
    state: TrialState,
    max_t: int,
) -> None:
    made, trial = saved(sqlite_store, tmp_path, state, max_t=max_t)
    with sqlite_store._database.write() as cursor:
        cursor.execute("UPDATE experiment SET state = ? WHERE id = ?", (whole, made.id))
    for path, names in {
        f"/experiments/{made.public_id}": ("enqueue",),
        f"/trials/{trial}": ("stop", "retry", "fork"),
        "/checkpoints/ckpt_0": ("pin", "unpin"),
    }.items():
        for name in names:
            before, listed = commands(sqlite_store, made), (await client.get(API + path)).json()["actions"]
            answer = await client.post(f"{API}{path}/{name}", json=REQUESTS.get(name))
            asked = commands(sqlite_store, made) != before
            assert (answer.status_code < 300 and asked) == (name in listed), (path, name, listed, answer.text)
    fork = {"checkpoint_id": "ckpt_0"}
    listed = (await client.get(f"{API}/checkpoints/ckpt_0")).json()["actions"]
    answer = await client.post(f"{API}/trials/{trial}/fork", json=fork)
    assert (answer.status_code == 202) == ("fork" in listed)


async def test_lists_name_the_actions_of_their_items(
    client: httpx.AsyncClient, sqlite_store: Store, tmp_path: Path
) -> None:
    made, _ = saved(sqlite_store, tmp_path)
    base = f"{API}/experiments/{made.public_id}"
    for path in ("trials", "trials?sort=-number", "trials/sample"):
        items = {item["number"]: item["actions"] for item in (await client.get(f"{base}/{path}")).json()["items"]}
        assert items == {0: ["retry", "fork"], 1: []}
    [checkpoint] = (await client.get(f"{base}/checkpoints")).json()["items"]
    assert checkpoint["actions"] == ["fork", "pin"]
    assert (await client.get(base)).json()["actions"] == ["continue", "edit", "fork", "enqueue", "archive", "delete"]


async def test_the_hypervolume_grows_as_trials_end(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    spec = a_spec(num_samples=4, objectives=(Objective("accuracy", "max"), Objective("latency", "min")))
    made, epoch, trials = begin(sqlite_store, 4, spec=spec)
    url = f"{API}/experiments/{made.public_id}/hypervolume"
    empty = (await client.get(url)).json()
    assert empty == {"metrics": ["accuracy", "latency"], "x": [], "y": [], "front": 0, "of": 0}
    values = [(0.9, 8.0), (0.5, 1.0), (0.4, 9.0), (0.7, 3.0)]
    for trial, (accuracy, latency) in zip(trials, values, strict=True):
        trial.last = {"accuracy": accuracy, "latency": latency}
        trial.ended_at = T0 + 10 * (trial.number + 1)
    trials[3].ended_at = None
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(10, a_report(1, 1))], trials=trials), T0 + 9)
    answer = await client.get(url)
    found = answer.json()
    assert (found["front"], found["of"], len(found["x"])) == (3, 4, 2)
    assert found["x"][1] - found["x"][0] == 10
    assert found["y"] == pytest.approx([1 / 8, 1 / 8 + 0.2 * 7 / 8])
    tag = {"If-None-Match": answer.headers["etag"]}
    assert (await client.get(url, headers=tag)).status_code == 304


async def test_lists_of_trials_have_the_front_of_each_trial(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    spec = a_spec(num_samples=4, objectives=(Objective("accuracy", "max"), Objective("latency", "min")))
    made, epoch, trials = begin(sqlite_store, 4, spec=spec)
    values = [(0.9, 8.0), (0.5, 9.0), (None, 1.0), (0.7, 3.0)]
    for trial, (accuracy, latency) in zip(trials, values, strict=True):
        trial.last = {"accuracy": accuracy, "latency": latency}
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(10, a_report(1, 1))], trials=trials), T0 + 9)
    url = f"{API}/experiments/{made.public_id}/trials"
    for query in ({}, {"sort": "-best_value"}, {"state": "running"}):
        found = (await client.get(url, params={**query, "fronts": True})).json()
        assert [item["number"] for item in found["items"]] == [0, 1, 2, 3]
        assert found["fronts"] == [1, 2, None, 1]
        assert (await client.get(url, params=query)).json()["fronts"] == []
    assert (await client.get(f"{url}/sample")).json()["fronts"] == [1, 2, None, 1]
    made, _, _ = begin(sqlite_store, 2, spec=a_spec(num_samples=2))
    assert (await client.get(f"{API}/experiments/{made.public_id}/trials/sample")).json()["fronts"] == []


async def test_best_and_pareto(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    spec = a_spec(num_samples=4)
    made, epoch, trials = begin(sqlite_store, 4, spec=spec)
    assert (await client.get(f"{API}/experiments/{made.public_id}/best")).status_code == 404
    for trial, accuracy in zip(trials, (0.5, 0.9, 0.9, float("nan")), strict=True):
        trial.last = {"accuracy": accuracy}
    best = {"trial_number": 1, "value": 0.9, "iteration": 3, "params": {"lr": 0.02}, "checkpoint_id": None}
    batch = Batch(log=[(10, a_report(1, 1))], trials=trials, summary={"best": best, "counts": {"running": 4}})
    sqlite_store.drivers.commit(made.id, epoch, batch, T0 + 9)
    found = (await client.get(f"{API}/experiments/{made.public_id}/best")).json()
    assert (found["trial_number"], found["value"]) == (1, 0.9)
    answer = await client.get(f"{API}/experiments/{made.public_id}/pareto")
    shown = answer.json()
    assert ([item["number"] for item in shown["items"]], shown["total"], shown["of"]) == ([1, 2], 2, 4)
    tag = {"If-None-Match": answer.headers["etag"]}
    assert (await client.get(f"{API}/experiments/{made.public_id}/pareto", headers=tag)).status_code == 304


def test_the_front_is_what_comparing_every_pair_gives() -> None:
    objectives = (Objective("a", "max"), Objective("b", "min"), Objective("c", "max"))
    values = np.random.default_rng(0).integers(0, 5, (200, 3)).astype(float)
    values[7] = np.nan
    signs = values * np.array([-1, 1, -1])

    def beaten(row: int) -> bool:
        return any((other <= signs[row]).all() and (other < signs[row]).any() for other in signs)

    assert front(values, objectives) == [row for row in range(200) if row != 7 and not beaten(row)]
