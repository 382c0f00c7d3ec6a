"""Pickles that were written when modules of trials had other names."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import ray

import tuner
from tuner import Checkpoint, get_context, report
from tuner.schedulers.freeze_thaw.decisions.novelty import Novelty
from tuner.schedulers.freeze_thaw.model.repeats import Repeats
from tuner.search import OptunaSearch
from tuner.torch import prepare_model
from tuner.trials.checkpoints import checkpoints
from tuner.trials.compat.class_form import ClassForm
from tuner.trials.messages.launch import CodeRef
from tuner.trials.moved import MOVED
from tuner.trials.runtime.function.code import load
from tuner.trials.training import session


def train(config: dict[str, Any], scale: float) -> Any:
    report({"loss": scale})
    return session.current, checkpoints.Checkpoint, Checkpoint, get_context


def train_with_torch(config: dict[str, Any]) -> Any:
    return prepare_model


class Step:
    def setup(self, config: dict[str, Any]) -> None: ...
    def step(self) -> dict[str, float]:
        return {}


def aged(value: Any) -> bytes:
    """Pickle in the text form, by value what is defined here, and with the names that modules had before."""
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)
    try:
        blob: bytes = cloudpickle.dumps(value, protocol=0)
    finally:
        cloudpickle.unregister_pickle_by_value(here)
    for before, now in MOVED.items():
        blob = blob.replace(f"{now}\n".encode(), f"{before}\n".encode())
    return blob


@pytest.fixture(scope="module")
def old() -> bytes:
    function = tuner.with_parameters(train, scale=2.0)
    blob = aged({"function": function, "class": ClassForm(Step), "checkpoint": Checkpoint("/nowhere")})
    assert b"tuner.trials.session\nreport" in blob
    assert b"tuner.trials.checkpoints\nCheckpoint" in blob
    assert b"tuner.trials.training" not in blob
    assert b"tuner.trials.checkpoints.checkpoints" not in blob
    return blob


def test_functions_classes_and_modules_of_an_old_pickle_are_those_of_today(old: bytes) -> None:
    value = pickle.loads(old)
    assert pickle.loads(aged(train_with_torch)).__globals__["prepare_model"] is prepare_model
    names = value["function"].trainable.__globals__
    assert names["report"] is report
    assert names["session"].current is session.current
    assert names["checkpoints"].Checkpoint is Checkpoint
    assert type(value["class"]) is ClassForm
    assert type(value["checkpoint"]) is Checkpoint


def test_an_old_pickle_opens_in_a_process_that_knows_nothing_of_tuner(old: bytes, tmp_path: Path) -> None:
    """Load it in a process such as a Ray worker."""
    (tmp_path / "old.pickle").write_bytes(old)
    code = (
        "import pickle, sys; value = pickle.load(open(sys.argv[1], 'rb')); import tuner; "
        "assert value['function'].trainable.__globals__['report'] is tuner.report; "
        "assert type(value['checkpoint']) is tuner.Checkpoint"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "old.pickle")], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_an_old_searcher_opens_in_a_process_that_knows_only_searchers(tmp_path: Path) -> None:
    """The former names are known whichever module of this package a process imports first."""
    blob = aged(OptunaSearch("RandomSampler", constraints={"size": {"max": 1.0}}))
    assert b"tuner.search.optuna_search\nOptunaSearch" in blob
    (tmp_path / "old.pickle").write_bytes(blob)
    code = "import pickle, sys, tuner.search; print(pickle.load(open(sys.argv[1], 'rb')))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "old.pickle")], capture_output=True, text=True)
    assert done.stdout.strip() == "OptunaSearch(RandomSampler)", done.stderr


def test_the_parts_of_an_old_scheduler_are_those_of_today() -> None:
    """A scheduler of a user's own that builds on freeze-thaw is stored with objects of these types."""
    blob = aged([Repeats, Novelty])
    assert b"tuner.schedulers.freeze_thaw.repeats" in blob
    assert b"freeze_thaw.model" not in blob
    assert pickle.loads(blob) == [Repeats, Novelty]


@pytest.mark.parametrize("name", sorted(MOVED))
def test_every_module_of_before_leads_to_one_of_today(name: str) -> None:
    today = importlib.import_module(MOVED[name])
    spec = today.__spec__
    before: Any = importlib.import_module(name)
    assert before is today or name == "tuner.trials.checkpoints"
    assert today.__spec__ is spec, "the import by the old name has left no trace in the module"


def test_the_modules_that_tuner_offers_can_be_imported_by_these_names(tmp_path: Path) -> None:
    other = tmp_path / "other_library" / "callbacks"  # as pytorch_lightning has it, which takes five seconds to import
    other.mkdir(parents=True)
    for file in (other.parent / "__init__.py", other / "__init__.py", other / "callback.py"):
        file.touch()
    code = (
        "from tuner.callbacks import CSVLoggerCallback; from tuner.stoppers import TimeStopper; import tuner, tuner.stoppers; "
        "assert CSVLoggerCallback is tuner.callbacks.CSVLoggerCallback; assert TimeStopper is tuner.stoppers.TimeStopper; "
        "import tuner.callbacks.base, tuner.sdk.callbacks.base; assert tuner.callbacks.base is tuner.sdk.callbacks.base; "
        "from tuner.stoppers.function import __spec__ as one; assert one.name == 'tuner.schedulers.stoppers.function', one; "
        "import other_library.callbacks.callback as one; assert one.__name__ == 'other_library.callbacks.callback'; "
        "print(tuner.callbacks.__spec__.name)"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout == "tuner.sdk.callbacks\n", done.stderr


def test_an_unknown_name_is_an_error_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'tuner\.trials\.sesion'"):
        importlib.import_module("tuner.trials.sesion")
    with pytest.raises(AttributeError, match="has no attribute 'Chekpoint'"):
        importlib.import_module("tuner.trials.checkpoints").Chekpoint  # noqa: B018


def test_a_rank_loads_the_function_that_an_old_database_holds() -> None:
    function: Any = load(CodeRef(hash="h"), aged(tuner.with_parameters(train, scale=2.0)))
    assert function.trainable.__globals__["report"] is report


@pytest.mark.ray
def test_a_worker_of_ray_opens_an_old_pickle(old: bytes, local_ray: None) -> None:
    opened = ray.remote(lambda blob: type(pickle.loads(blob)["checkpoint"]).__module__)
    assert ray.get(opened.remote(old)) == "tuner.trials.checkpoints.checkpoints"
