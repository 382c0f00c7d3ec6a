"""Deployments on a real Ray Serve. `test_rollouts.py` is the short form: the same application without it."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray import cloudpickle

import tuner
from tests.serving import predictors, search
from tests.serving.search import NAME, searched
from tuner.errors import Conflict, NotFound, SpecError, TunerError
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


def test_the_module_of_a_predictor_is_sent_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray pickled it by its name, so a replica found it only in the folder of the script."""
    (tmp_path / "own_predictor.py").write_text(
        "def double(x):\n    return 2 * x\n\nclass Own:\n    predict = staticmethod(double)\n"
    )
    with monkeypatch.context() as here:
        here.syspath_prepend(tmp_path)
        ray_serve.by_value(importlib.import_module("own_predictor").Own)
        sent = cloudpickle.dumps(sys.modules["own_predictor"].Own)
        cloudpickle.unregister_pickle_by_value(sys.modules.pop("own_predictor"))
    assert pickle.loads(sent).predict(4) == 8


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


class FakeServe:
    """Ray Serve, as far as `deployment` calls it."""

    def __init__(self, *applications: str) -> None:
        self.applications = {name: SimpleNamespace(status=SimpleNamespace(value="RUNNING")) for name in applications}
        self.options: dict[str, dict[str, Any]] = {}
        self.done: list[str] = []
        self.RunTarget = lambda bound, name, route_prefix: name

    def status(self) -> Any:
        return SimpleNamespace(applications=self.applications)

    def start(self, **options: Any) -> None:
        self.done.append("start")

    def shutdown(self) -> None:
        self.done.append("shutdown")

    def delete(self, name: str) -> None:
        self.applications.pop(name, None)

    def deployment(self, what: Any) -> Any:
        def options(**options: Any) -> Any:
            self.options[options["name"]] = options
            return SimpleNamespace(bind=lambda *args: None)

        return SimpleNamespace(options=options)

    def ingress(self, build: Any) -> Any:
        return lambda what: what

    def run(self, bound: Any, name: str, route_prefix: str) -> None:
        self.applications[name] = SimpleNamespace(status=SimpleNamespace(value="RUNNING"))

    def run_many(self, targets: Any, **options: Any) -> None:
        for name in targets:
            self.run(None, name, "")

    def get_app_handle(self, name: str) -> None: ...


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, _by_value: Any) -> Any:
    def install(*applications: str, runs_at: str | None = None) -> FakeServe:
        serve = FakeServe(*applications)
        client = SimpleNamespace(http_config=SimpleNamespace(host=runs_at), root_url=f"http://{runs_at}:8000")
        monkeypatch.setitem(sys.modules, "ray.serve.context", SimpleNamespace(_get_global_client=lambda: client))
        monkeypatch.setattr(ray_serve, "_serve", lambda: serve)
        monkeypatch.setattr(ray_serve, "_serve_runs", lambda: runs_at is not None)
        monkeypatch.setattr(ray_serve, "_this_node", dict)
        monkeypatch.setattr("tuner.hosts.ray.cluster.connect", lambda address: False)
        return serve

    return install


def deploy(**options: Any) -> Any:
    return tuner.serving.deployment(
        lambda: Origin(checkpoint=tuner.Checkpoint("."), config={}), predictors.Lines, **options
    )


async def test_a_deployment_starts_inside_an_event_loop(fake: Any) -> None:
    serve = fake()
    with deploy(port=8000) as deployed:
        assert deployed.url == "http://127.0.0.1:8000"
        assert set(serve.applications) == {"tuner-model", "tuner-model-v1"}
        assert serve.options["ingress"]["max_ongoing_requests"] == 1000
    assert (serve.applications, serve.done) == ({}, ["start", "shutdown"])


def test_a_result_can_be_deployed(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    with tuner.create_study({"x": tuner.uniform(0, 1)}, metric="loss", mode="min", num_samples=1, name=NAME) as study:
        trial = study.ask()
        assert trial is not None
        trial.report({"loss": 1.0}, checkpoint=str(tmp_path))
        trial.tell()
        result = study.result()
    fake()
    with tuner.serving.deployment(result, predictors.Lines, port=8000) as deployed:
        assert deployed.url == "http://127.0.0.1:8000"
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "other"))
    with pytest.raises(NotFound, match=f"no experiment '{result.experiment_id}'.*set TUNER_ADDRESS to its address"):
        tuner.serving.deployment(result, predictors.Lines, port=8000)


async def test_an_ipv6_address_gets_a_free_port_and_brackets(fake: Any) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    fake()
    with deploy(host="::1") as deployed:
        assert re.fullmatch(r"http://\[::1\]:[1-9]\d*", deployed.url)


@pytest.mark.parametrize("host", ["0.0.0.0", "", "host.invalid"])
def test_a_running_serve_that_others_can_reach_needs_a_token(fake: Any, host: str) -> None:
    serve = fake(runs_at=host)
    with pytest.raises(
        SpecError, match="Ray Serve already runs on this cluster, and other machines may reach its host"
    ):
        deploy()
    assert not serve.options
    deploy(token="secret").close()
    assert serve.done == []


def test_a_running_serve_on_loopback_needs_no_token(fake: Any) -> None:
    fake(runs_at="127.0.0.1")
    with deploy() as deployed:
        assert deployed.url == "http://127.0.0.1:8000"
    with pytest.raises(SpecError, match="pass a token"):
        ray_serve._check_running(object(), None)  # a Ray without this private API


@pytest.mark.parametrize(
    ("there", "name"), [("a", "a"), ("a-v3", "a"), ("a", "a-v2")], ids=["same", "a release", "its release"]
)
def test_a_name_in_use_is_a_conflict_and_what_runs_stays(fake: Any, there: str, name: str) -> None:
    serve = fake(there, "a-viewer", runs_at="127.0.0.1")
    with pytest.raises(Conflict, match=f"Ray Serve already has an application '{there}'"):
        deploy(name=name)
    assert set(serve.applications) == {there, "a-viewer"}
    assert not serve.options


def test_serve_stays_if_it_has_other_applications(fake: Any) -> None:
    serve = fake()
    with deploy(name="a"):
        serve.run(None, "b", "/b")
    assert (set(serve.applications), serve.done) == ({"b"}, ["start"])


def test_the_name_of_an_application_comes_from_the_experiment() -> None:
    assert ray_serve.application_name("my digits/2 (new)") == "my-digits-2-new"
    assert ray_serve.application_name("???") == "tuner-model"
