"""A training function on its way to other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from tuner.errors import EntrypointError, SpecError
from tuner.trials.checkpoints.objects import with_parameters
from tuner.trials.compat.class_form import ClassForm
from tuner.trials.compat.forms import as_function
from tuner.trials.compat.train_loop import TrainLoop
from tuner.trials.messages.launch import CodeRef
from tuner.trials.runtime.function import code
from tuner.usercode.trainable import by_value, check_signature, pickle_function

LOCK = threading.Lock()


def uses_a_global(config: dict[str, Any]) -> None:
    with LOCK:
        pass


@pytest.fixture(autouse=True)
def _as_in_a_script() -> Any:
    """Pickle functions of this module by value, as those of a script or a notebook."""
    import sys

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Holder:
    def __init__(self) -> None:
        self.settings = {"fine": 1, "handle": threading.Lock()}


def test_a_function_comes_back_as_it_was() -> None:
    factor = 3

    def train(config: dict[str, Any]) -> int:
        return int(config["x"] * factor)

    record = by_value(train)
    assert record.blob is not None
    assert cloudpickle.loads(record.blob)({"x": 2}) == 6
    assert record.hash == by_value(train).hash
    factor = 4
    assert record.hash != by_value(train).hash
    assert {"ray", "numpy", "cloudpickle"} <= set(record.packages)


def closure() -> Any:
    holder, fine = Holder(), [1]

    def train(config: dict[str, Any]) -> None:
        print(holder, fine)

    return train


def nested() -> Any:
    handles = [1, {"deep": threading.Lock()}]

    def helper() -> None:
        print(handles)

    def train(config: dict[str, Any]) -> None:
        helper()

    return train


def default() -> Any:
    def train(config: dict[str, Any], lock: Any = threading.Lock()) -> None:  # noqa: B008
        print(lock)

    return train


class WithAttribute:
    shared = threading.Lock()

    def setup(self, config: dict[str, Any]) -> None: ...

    def step(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("function", "culprit"),
    [
        (uses_a_global, r"the global variable 'LOCK' \(lock\)"),
        (closure(), r"the item 'handle' of the attribute 'settings' of the closure variable 'holder' \(lock\)"),
        (nested(), r"the item 'deep' of item 1 of the closure variable 'handles' of the closure variable 'helper'"),
        (default(), r"the default of 'lock' \(lock\)"),
        (with_parameters(uses_a_global), "the global variable 'LOCK'"),
        (ClassForm(WithAttribute), r"the attribute 'shared' of WithAttribute \(lock\)"),
    ],
    ids=["global", "closure", "nested", "default", "wrapped", "class"],
)
def test_what_cannot_be_pickled_is_named(function: Any, culprit: str) -> None:
    with pytest.raises(EntrypointError, match=culprit) as caught:
        pickle_function(function)
    assert "'fine'" not in str(caught.value)


def test_a_function_must_take_a_configuration() -> None:
    with pytest.raises(
        EntrypointError, match=r"cannot be called with a configuration: .*; it gets one argument, a dict, as"
    ):
        check_signature(lambda: None)
    with pytest.raises(EntrypointError, match="cannot be called with a configuration"):
        check_signature(lambda config, more: None)
    check_signature(partial(lambda config, more: None, more=1))


async def reports(config: dict[str, Any]) -> None: ...


async def yields(config: dict[str, Any]) -> AsyncIterator[float]:
    yield 1.0


class Called:
    async def __call__(self, config: dict[str, Any]) -> None: ...


class WithStep:
    def setup(self, config: dict[str, Any]) -> None: ...

    async def step(self) -> dict[str, float]:
        return {"loss": 1.0}


@pytest.mark.parametrize(
    ("trainable", "name"),
    [
        (reports, "reports"),
        (yields, "yields"),
        (partial(reports), "reports"),
        (Called(), r"Called\.__call__"),
        (partial(Called()), r"Called\.__call__"),
        (ClassForm(WithStep), r"WithStep\.step"),
        (as_function(with_parameters(WithStep, data=1)), r"WithStep\.step"),
        (with_parameters(reports, data=1), "reports"),
        (TrainLoop(reports), "reports"),
    ],
)
def test_an_asynchronous_trainable_is_refused(trainable: Any, name: str) -> None:
    """Each trial failed, because the function had returned a coroutine."""
    with pytest.raises(EntrypointError, match=f"^trainable: {name} is asynchronous.*asyncio.run"):
        check_signature(trainable)


def test_a_module_that_is_missing_on_a_worker_is_named() -> None:
    blob = b"cno_such_module_here\nfunction\n."
    with pytest.raises(EntrypointError, match=r"no module 'no_such_module_here' on .*runtime_env=\{'pip'"):
        code.load(CodeRef(hash="1", blob=blob), blob)
    with pytest.raises(
        EntrypointError, match="no_such_module_here cannot be imported on this worker: there is no module"
    ):
        code.load(CodeRef(hash="1", entrypoint="no_such_module_here:train"), None)
    with pytest.raises(EntrypointError, match="json has no train"):
        code.load(CodeRef(hash="1", entrypoint="json:train"), None)


def test_an_entrypoint_may_be_any_form() -> None:
    name = "tests.usercode.test_trainable:WithAttribute"
    assert type(code.load(CodeRef(hash="1", entrypoint=name), None)) is ClassForm


def test_what_a_library_adds_to_the_path_makes_no_other_code_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray adds to the path when it is imported, between the first search of a script and the second."""
    import sysconfig

    def train(config: dict[str, Any]) -> None: ...

    before = by_value(train)
    monkeypatch.syspath_prepend(f"{sysconfig.get_paths()['purelib']}/ray/thirdparty_files")
    assert by_value(train) == before
    monkeypatch.syspath_prepend("/some/project")
    after = by_value(train)
    assert after.hash != before.hash
    assert after.sys_path == ["/some/project", *before.sys_path]


def test_a_folder_may_have_a_name_that_is_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.fsencode(tmp_path) + b"/by\xfcte"
    os.mkdir(folder)

    def train(config: dict[str, Any]) -> None: ...

    monkeypatch.chdir(os.fsdecode(folder))
    assert os.fsencode(by_value(train).working_dir) == folder


def test_a_folder_that_has_been_deleted_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(config: dict[str, Any]) -> None: ...

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.syspath_prepend("")
    (tmp_path / "gone").rmdir()
    with pytest.raises(
        SpecError, match="the current folder of this process has been deleted: change to another folder"
    ):
        by_value(train)


def test_a_module_that_loads_its_parts_late_is_imported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(ModuleType):
        pass

    lazy = Lazy("a_lazy_module_of_a_library")
    monkeypatch.setitem(sys.modules, lazy.__name__, lazy)
    function = cloudpickle.loads(pickle_function(lambda config: lazy))
    assert function({}) is lazy
    with pytest.raises(EntrypointError, match="the closure variable 'other'"):
        other = Lazy("not_imported")
        pickle_function(lambda config: other)


SPAWNED = """
import multiprocessing
import pickle

import tuner


class Net:
    def __init__(self, width):
        self.width = width


def train(config):
    net = pickle.loads(pickle.dumps(Net(config["width"])))
    for _ in range(3):
        tuner.report({"loss": net.width})


def width(config):
    return Net(5).width


def stop(trial_id, result):
    return result["training_iteration"] == 2


def search(verbose):
    result = tuner.run(
        train, {"width": tuner.sample_from(width)}, metric="loss", mode="min", num_samples=1, stop=stop, verbose=verbose
    )
    return result.best_value, result.trials[0].iterations, result.errors


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(search, (0,)))
"""


def test_a_process_that_multiprocessing_has_spawned_searches_with_the_functions_of_its_script(tmp_path: Path) -> None:
    """The script's module is `__mp_main__` there, and no rank can import that."""
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    environment = {**os.environ, "TUNER_HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout, done.returncode) == ("(5.0, 2, [])\n", 0), done.stderr
