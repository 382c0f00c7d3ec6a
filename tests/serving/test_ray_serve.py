"""Deployments on a real Ray Serve. `test_rollouts.py` is the short form: the same application without it."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import httpx
import pytest

import tuner
from tests.serving import predictors, search
from tests.serving.search import NAME, searched
from tuner.errors import TunerError
from tuner.serving import ray_serve
from tuner.serving.origin import Origin

INPUTS = {"inputs": [[1.0, 2.0]]}
installed = pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs the extra `serve`")


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    with pytest.raises(
        TunerError, match=r"Ray Serve is not installed: pip install 'tuner-hpo\[serve\]'.*--without-ray"
    ):
        tuner.serving.deployment(lambda: Origin(checkpoint=tuner.Checkpoint("."), config={}), predictors.Lines)


def test_the_reason_of_a_failure_is_the_last_line_of_its_traceback() -> None:
    class Status:
        message = "Deploying app failed"
        deployments: dict[str, Any] = {}  # noqa: RUF012

    failed = Status()
    assert ray_serve._why(failed) == "Deploying app failed"
    failed.deployments = {"model": Status()}
    failed.deployments["model"].message = "The replica failed: Traceback (most recent call last):\n  x\nValueError: no"
    assert ray_serve._why(failed) == "ValueError: no"


@pytest.fixture
def _by_value() -> Any:
    yield
    for module in (predictors, search):
        if module.__name__ in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.unregister_pickle_by_value(module)


@installed
@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_by_value")
@pytest.mark.filterwarnings("ignore")
def test_a_better_model_takes_over_and_a_failing_one_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    result = searched([1.0, 2.0])
    with tuner.serving.deployment(NAME, predictors.Lines, token="secret") as deployed:
        http = httpx.Client(base_url=deployed.url, timeout=200, headers={"authorization": "Bearer secret"})
        assert httpx.get(f"{deployed.url}/info").status_code == 401
        assert http.post("/predict", json=INPUTS).json() == {"outputs": [[6.0]], "version": 1}
        assert http.post("/predict", json={"inputs": []}).status_code == 422
        elsewhere = http.post("/predict", json={"inputs": "process"}).json()["outputs"]["pid"]
        assert elsewhere != os.getpid()

        result.add(1, verbose=0)
        (tmp_path / "broken").touch()
        failed = http.post("/rollout")
        assert failed.status_code == 502
        assert (
            "version 1 still answers, since the new one failed: TunerError: RuntimeError: this predictor is broken"
            in (failed.json()["detail"])
        )
        assert http.post("/predict", json=INPUTS).json()["version"] == 1

        (tmp_path / "broken").unlink()
        versions: list[int] = []
        rolled: list[Any] = []
        rollout = threading.Thread(target=lambda: rolled.append(http.post("/rollout").json()))
        rollout.start()
        while rollout.is_alive():
            answer = http.post("/predict", json=INPUTS)
            assert answer.status_code == 200, answer.text
            versions.append(answer.json()["version"])
        assert (rolled[0]["changed"], rolled[0]["version"], rolled[0]["trial"]) == (True, 3, 2)
        assert versions[0] == 1
        assert http.post("/predict", json=INPUTS).json() == {"outputs": [[9.0]], "version": 3}
        assert versions == sorted(versions)
    with pytest.raises(httpx.ConnectError):
        http.get("/healthz")
    assert not sys.modules["ray"].is_initialized()
