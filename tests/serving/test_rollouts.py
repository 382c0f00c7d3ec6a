"""A deployment without Ray: FastAPI over models in this process, and their rollouts."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import tuner
from tests.serving.predictors import Lines
from tests.serving.search import NAME, searched
from tuner.errors import CheckpointError, NotFound, SpecError
from tuner.serving.ingress import application
from tuner.serving.origin import Origin, origin
from tuner.serving.ray_serve import check_host, finder, in_process
from tuner.serving.rollouts import InProcess, Release, Rollouts
from tuner.settings import Settings

INPUTS = {"inputs": [[1.0, 2.0]]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    return tmp_path


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def test_the_best_model_predicts_and_gives_way_to_a_better_one(home: Path) -> None:
    result = await asyncio.to_thread(searched, [1.0, 2.0])
    async with client(await in_process(finder(NAME, Settings.from_env()), Lines)) as http:
        assert (await http.get("/healthz")).json() == {"status": "ok", "version": 1}
        assert (await http.post("/predict", json=INPUTS)).json() == {"outputs": [[6.0]], "version": 1}
        info = (await http.get("/info")).json()
        assert (info["experiment"], info["trial"], info["value"]) == (result.experiment_id, 1, 1.0)
        assert (info["metric"], info["mode"], info["config"]) == ("loss", "min", {"slope": 2.0})
        same = (await http.post("/rollout")).json()
        assert (same["changed"], same["version"]) == (False, 1)

        await asyncio.to_thread(result.add, 1, verbose=0)
        (home / "broken").touch()
        failed = await http.post("/rollout")
        assert failed.status_code == 502
        assert failed.json()["detail"].startswith(
            "version 1 still answers, since the new one failed: RuntimeError: this predictor is broken"
        )
        assert (await http.post("/predict", json=INPUTS)).json() == {"outputs": [[6.0]], "version": 1}
        (home / "broken").unlink()
        better = (await http.post("/rollout")).json()
        assert (better["changed"], better["version"], better["trial"], better["value"]) == (True, 3, 2, 0.0)
        assert (await http.post("/predict", json=INPUTS)).json() == {"outputs": [[9.0]], "version": 3}

        wrong = await http.post("/predict", json={"inputs": []})
        assert (wrong.status_code, wrong.json()["detail"]) == (422, "ValueError: no inputs")
        broken = await http.post("/predict", json={"inputs": "x"})
        assert broken.status_code == 500
        assert (await http.post("/predict", json={})).status_code == 422


def a_release(slope: float, path: Path) -> Origin:
    folder = path / str(slope)
    folder.mkdir(exist_ok=True)
    return Origin(checkpoint=tuner.Checkpoint(folder), config={"slope": slope}, experiment="exp_1", value=slope)


class Slow:
    """Wait at the gate of its slope, if there is one."""

    gates: dict[float, threading.Event] = {}  # noqa: RUF012

    def __init__(self, checkpoint: tuner.Checkpoint, config: dict[str, Any]) -> None:
        self.slope = config["slope"]
        if gate := self.gates.get(self.slope):
            assert gate.wait(60)
        if self.slope < 0:
            raise RuntimeError("downhill")

    async def predict(self, inputs: Any) -> Any:
        return [self.slope * one for one in inputs]


async def test_the_old_model_answers_until_the_new_one_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(Slow, "gates", {2.0: gate})
    found = [a_release(1.0, tmp_path)]
    rollouts = await Rollouts.start(lambda: found[-1], InProcess(Slow))
    found.append(a_release(2.0, tmp_path))
    first, second = asyncio.create_task(rollouts.roll_out()), asyncio.create_task(rollouts.roll_out())
    assert await rollouts.predict([1.0]) == ([1.0], 1)
    assert not first.done()
    gate.set()
    assert sorted([(await first)["changed"], (await second)["changed"]]) == [False, True]
    assert await rollouts.predict([1.0]) == ([2.0], 2)


async def test_a_first_model_that_fails_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="downhill"):
        await Rollouts.start(lambda: a_release(-1.0, tmp_path), InProcess(Slow))


class Strange:
    def __init__(self, checkpoint: tuner.Checkpoint, config: dict[str, Any]) -> None: ...

    def predict(self, inputs: Any) -> Any:
        return float("nan") if inputs == "nan" else object()


async def test_what_json_lacks_is_explained_and_only_a_token_gets_in(tmp_path: Path) -> None:
    rollouts = await Rollouts.start(lambda: a_release(1.0, tmp_path), InProcess(Strange))
    async with client(application(lambda: rollouts, "secret")) as http:
        for call in (http.post("/predict", json=INPUTS), http.get("/info"), http.post("/rollout")):
            assert (await call).status_code == 401
        assert (await http.get("/healthz")).status_code == 200
        http.headers["authorization"] = "Bearer secret"
        assert (await http.get("/info")).json()["value"] == 1.0
        elsewhere = {"Host": "models.example.com", "Origin": "https://app.example.com"}
        assert (await http.get("/info", headers=elsewhere)).status_code == 200, "the token is enough at any name"
        strange = await http.post("/predict", json=INPUTS)
        assert strange.json()["detail"] == "TypeError: predict returned a object, which JSON cannot represent"
        nan = await http.post("/predict", json={"inputs": "nan"})
        assert nan.status_code == 500, "the model is at fault, not the request"
        assert nan.json()["detail"] == "predict returned NaN or an infinity, which JSON cannot represent"


async def test_no_web_page_reaches_a_model_without_a_token(tmp_path: Path) -> None:
    """A page of any site could start a rollout, and one whose name resolves to 127.0.0.1 could also read predictions."""
    rollouts = await Rollouts.start(lambda: a_release(1.0, tmp_path), InProcess(Strange))
    async with client(application(lambda: rollouts, hosts=["gpu-box"])) as http:
        for host, origin, status in (
            ("evil.example.com", "http://evil.example.com", 421),
            ("localhost:8100", "http://evil.example.com", 403),
            ("localhost:8100", "http://localhost:8100", 200),
            ("127.0.0.1:8100", None, 200),
            ("[::1]:8100", None, 200),
            ("gpu-box:8100", "http://gpu-box:8100", 200),
        ):
            head = {"Host": host, **({} if origin is None else {"Origin": origin})}
            assert (await http.post("/rollout", headers=head)).status_code == status, head
            assert (await http.get("/info", headers=head)).status_code == status, head
        assert (await http.get("/healthz", headers={"Host": "10.0.0.7"})).status_code == 200


def test_what_cannot_be_served_says_so_before_anything_is_started(home: Path) -> None:
    with pytest.raises(NotFound):
        finder("digits", Settings.from_env())
    with pytest.raises(SpecError, match="other machines can reach 0.0.0.0: pass a token"):
        check_host("0.0.0.0", None)
    check_host("0.0.0.0", "secret")


def test_a_search_without_checkpoints_has_nothing_to_serve(home: Path) -> None:
    result = tuner.run(without, metric="loss", mode="min", num_samples=1, executor="local", verbose=0, name="none")
    with pytest.raises(CheckpointError, match="has no best checkpoint: its best trial has saved no checkpoint"):
        origin(result)


def without(config: dict[str, Any]) -> None:
    tuner.report({"loss": 1.0})


@pytest.mark.parametrize("token", ["", " \n"])
def test_an_empty_token_is_refused(token: str) -> None:
    for host in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(SpecError, match="the token is empty"):
            check_host(host, token)


async def test_a_rollout_goes_on_if_its_caller_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(Slow, "gates", {2.0: gate})
    found = [a_release(1.0, tmp_path)]
    rollouts = await Rollouts.start(lambda: found[-1], InProcess(Slow))
    found.append(a_release(2.0, tmp_path))
    call = asyncio.create_task(rollouts.roll_out())
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert rollouts.current.release.version == 1
    gate.set()
    async with asyncio.timeout(10):
        while rollouts.current.release.version == 1:
            await asyncio.sleep(0.01)
    assert await rollouts.predict([1.0]) == ([2.0], 2)


class Gated:
    """A stage whose models predict once the gate opens."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.ended: list[int] = []

    async def up(self, release: Release) -> Any:
        async def predict(inputs: Any) -> Any:
            await self.gate.wait()
            return inputs

        return SimpleNamespace(release=release, predict=predict)

    async def down(self, running: Any) -> None:
        self.ended.append(running.release.version)


@pytest.mark.parametrize("patience", [60.0, 0.0])
async def test_an_old_model_ends_after_its_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr("tuner.serving.rollouts.DRAIN_S", patience)
    found = [a_release(1.0, tmp_path)]
    stage = Gated()
    rollouts = await Rollouts.start(lambda: found[-1], stage)
    call = asyncio.create_task(rollouts.predict(5))
    await asyncio.sleep(0)
    found.append(a_release(2.0, tmp_path))
    await rollouts.roll_out()
    await asyncio.sleep(0.2)
    assert stage.ended == ([] if patience else [1])
    stage.gate.set()
    assert await call == (5, 1)
    async with asyncio.timeout(10):
        while not stage.ended:
            await asyncio.sleep(0.01)
    assert stage.ended == [1]
