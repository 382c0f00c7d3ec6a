"""Names that a script defines can be pickled in a rank, as in the script itself."""

from __future__ import annotations

import functools
import multiprocessing
import multiprocessing.spawn
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from tuner.trials.messages.launch import CodeRef
from tuner.trials.runtime.function import script_names
from tuner.trials.runtime.function.code import load

SCRIPT = """
class Net:
    def __init__(self, width):
        self.width = width

def square(x):
    return x * x

def pytest_is_here():
    pass

def train(config):
    return Net(3), square, pytest_is_here

class Class:
    def step(self):
        return square(2)
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Yield the names of a script that another process runs, and give this process's `__main__` one of them."""
    monkeypatch.setattr(sys.modules["__main__"], "pytest_is_here", 1, raising=False)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, names)
    yield names
    script_names.remove()


def add(trainable: Any) -> Any:
    blob = cloudpickle.dumps(trainable)
    loaded = cloudpickle.loads(blob)
    script_names.add(loaded, blob)
    return loaded


@pytest.mark.parametrize("wrapped", [lambda train: train, lambda train: functools.partial(train, config={})])
def test_what_the_script_defines_is_pickled_by_name(script: dict[str, Any], wrapped: Callable[[Any], Any]) -> None:
    """`torch.save(model)` and `Pool.map` failed with "attribute lookup Net on __main__ failed"."""
    main = vars(sys.modules["__main__"])
    load(CodeRef(hash="h"), cloudpickle.dumps(wrapped(script["train"])))
    net = main["Net"](3)
    assert pickle.loads(pickle.dumps(net)).width == 3
    assert pickle.loads(pickle.dumps(main["square"]))(3) == 9
    assert main["pytest_is_here"] == 1, "a name of the rank's own is kept"
    script_names.remove()
    assert not {"Net", "square", "train"} & main.keys()
    assert main["pytest_is_here"] == 1


def test_the_next_trainable_replaces_the_names_of_the_one_before(script: dict[str, Any]) -> None:
    main = vars(sys.modules["__main__"])
    add(script["train"])
    assert {"Net", "train"} <= main.keys()
    add(script["Class"])
    assert {"square"} <= main.keys()
    assert not {"Net", "train"} & main.keys()


def test_a_spawned_process_has_what_the_script_defines(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    usual = multiprocessing.spawn.get_preparation_data
    train = add(script["train"])
    square = train.__globals__["square"]
    train.__globals__["square"].cannot_be_pickled = threading.Lock()  # as what a trial itself may put into its module
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map_async(square, [2, 3]).get(timeout=60) == [4, 9]
    assert list(tmp_path.glob("tuner-main-*/names.py"))
    script_names.remove()
    assert not list(tmp_path.glob("tuner-main-*/names.py"))
    assert multiprocessing.spawn.get_preparation_data is usual
