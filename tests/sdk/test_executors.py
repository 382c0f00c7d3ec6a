"""Test where `executor="auto"` runs trials, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tuner
from tests.store.examples import a_spec
from tuner.domain.experiment import Scaling
from tuner.errors import CheckpointError, SpecError
from tuner.hosts.scripts import prestart
from tuner.sdk import arguments, driving, executors, trial_result
from tuner.sdk.executors import choose, may_be_local
from tuner.trials.messages import lost
from tuner.usercode.trainable import by_value


def plain(config: dict[str, Any]) -> None:
    tuner.report({"loss": 1.0})


CODE = by_value(lambda config: plain(config))


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)


def spec(**changes: Any) -> Any:
    return a_spec(**{"entrypoint": None, "code": CODE.hash, "executor": "auto", **changes})


def test_a_function_that_needs_only_cpus_runs_in_processes_of_this_machine() -> None:
    found = choose(spec(), CODE, None)
    assert found.local
    assert found.why == (
        "trials run in processes on this machine, without Ray: each trial is one process that needs only CPUs, and the "
        "script does not use Ray"
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"scaling": Scaling(num_workers=2)}, "without Ray, a trial is a single process, but num_workers is 2"),
        ({"scaling": Scaling(use_gpu=True)}, "without Ray, trials get only CPUs, but GPU is requested"),
        (
            {"scaling": Scaling(resources_per_worker={"TPU": 1})},
            "without Ray, trials get only CPUs, but TPU is requested",
        ),
        ({"runtime_env": {"pip": ["x"]}}, "there is a runtime_env, which needs Ray"),
        (
            {"runtime_env": {"py_modules": ["s3://b/bundles/1.zip"]}},
            "modules are sent with it, as a bundle or as py_modules, which needs Ray",
        ),
        ({"entrypoint": "module:train", "code": None}, "given by name, so it is not known whether it uses Ray"),
        ({"executor": "ray"}, "because executor is 'ray'"),
    ],
)
def test_what_asks_for_more_runs_on_ray(changes: dict[str, Any], why: str) -> None:
    found = choose(spec(**changes), CODE, None)
    assert not found.local
    assert found.why.startswith("trials run on Ray")
    assert why in found.why


def test_a_script_that_uses_ray_stays_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "address is 1.2.3.4:6379" in choose(spec(), CODE, "1.2.3.4:6379").why

    def uses_ray(config: dict[str, Any]) -> None:
        import ray

        ray.get(config["x"])

    def uses_a_part(config: dict[str, Any]) -> None:
        from ray.util.queue import Queue

        Queue()

    for function in (uses_ray, uses_a_part):
        code = by_value(function)
        assert choose(spec(code=code.hash), code, None).why == "trials run on Ray: the training function uses Ray"
    for initialized, why in ((True, "this process is connected to Ray"), (False, "the script has imported Ray")):
        fake: Any = SimpleNamespace(is_initialized=lambda initialized=initialized: initialized)
        monkeypatch.setitem(sys.modules, "ray", fake)
        assert choose(spec(), CODE, None).why == f"trials run on Ray: {why}"
        assert choose(spec(executor="local"), CODE, None).local, "it was asked for"


def test_an_import_of_ray_by_a_check_is_not_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was refused, since it asked for 500 workers, imported Ray, and all later searches started a private Ray."""
    monkeypatch.setattr(executors, "_imported_by_tuner", False)
    idle: Any = SimpleNamespace(is_initialized=lambda: False)
    with pytest.raises(SpecError), executors.noting_imports():
        monkeypatch.setitem(sys.modules, "ray", idle)
        raise SpecError("too many workers")
    assert choose(spec(), CODE, None).local
    connected: Any = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "ray", connected)
    assert not choose(spec(), CODE, None).local


def test_an_import_of_ray_by_the_script_stays_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_imported_by_tuner", False)
    idle: Any = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", idle)
    with executors.noting_imports():
        pass
    assert choose(spec(), CODE, None).why == "trials run on Ray: the script has imported Ray"


def test_the_local_executor_says_why_it_cannot_run_what_it_is_given() -> None:
    with pytest.raises(
        SpecError, match="executor: the local executor cannot run this: without Ray, a trial is a single process"
    ):
        choose(spec(executor="local", scaling=Scaling(num_workers=2)), CODE, None)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"executor": "local", "num_workers": 2}, True),  # refused later
        ({"executor": "ray"}, False),
        ({"num_workers": 2}, False),
        ({"use_gpu": True}, False),
        ({"address": "http://host:8000"}, False),
        ({"executor": "local", "address": "http://host:8000"}, False),
        ({"ray_address": "auto"}, False),
        ({"trainable": "module:train"}, False),
    ],
)
def test_processes_are_started_early_only_if_they_may_be_needed(changes: dict[str, Any], expected: bool) -> None:
    given: dict[str, Any] = {
        "trainable": plain, "num_workers": 1, "use_gpu": False, "runtime_env": None, "address": None, "ray_address": None,
        "executor": "auto",
    }  # fmt: skip
    assert may_be_local({**given, **changes}) is expected


def test_gp_is_refused_where_torch_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who has named gp must not get random configurations instead. The default search lets TPE propose then."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))  # other tests of this process have experiments in theirs
    monkeypatch.setattr("tuner.sdk.driving.find_spec", lambda _: None)
    options: dict[str, Any] = {"metric": "loss", "mode": "min", "num_samples": 2, "verbose": 0, "executor": "local"}
    space = {"x": tuner.uniform(0, 1)}
    with pytest.raises(
        SpecError, match=r"^search: gp needs PyTorch, .* pip install 'tuner-hpo\[torch\]'; tpe does not need it"
    ):
        tuner.run(lambda config: {"loss": config["x"]}, space, search_alg="gp", **options)
    assert tuner.experiments() == []
    result = tuner.run(lambda config: {"loss": config["x"]}, space, **options)
    assert result.state == "completed"


def test_workers_start_with_what_the_script_has_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, list[str]]] = []
    monkeypatch.setattr(prestart, "start_forks", lambda torch, used: asked.append((torch, used)))
    monkeypatch.setattr(executors, "is_connected", lambda: False)
    ranks: dict[str, Any] = {"num_workers": 2, "max_workers": None, "backend": None, "use_gpu": False}
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    executors.start_forks(ranks)
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    executors.start_forks(ranks)
    executors.start_forks({**ranks, "backend": "none"})
    assert asked == [(True, []), (True, ["torch._dynamo"]), (False, [])]


def test_ray_may_be_half_imported_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two searches in threads failed: "partially initialized module 'ray' has no attribute 'is_initialized'"."""
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setattr(prestart, "start_forks", lambda torch, used: None)
    assert not driving.connected()
    assert executors._uses_ray(None) in (None, "the script has imported Ray")
    executors.start_forks({"num_workers": 1, "max_workers": None, "backend": "none", "use_gpu": False})
    assert arguments._room_for_data({"num_workers": 1}) is None
    with pytest.raises(CheckpointError, match="not on this machine"):
        trial_result._fetch("/disk/ckp", "a" * 56, "/there")
    assert by_value(lambda config: plain(config)).blob
    assert lost.lost_errors() == (lost.RankLost,)
    assert lost.unavailable_errors() == ()
