"""The functions that users name at the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle
import pytest

from tuner.cli.targets import imported
from tuner.errors import EntrypointError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_function_of_a_file_finds_its_neighbors_and_is_pickled_by_value(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "beside_the_target.py").write_text("SCALE = 3")
    # A module of this name is loaded already, and stays what it is.
    (folder / "code" / "json.py").write_text(
        "from beside_the_target import SCALE\ndef train(x):\n    return SCALE * x\n"
    )
    loaded = sys.modules["json"]
    train = imported("code/json.py:train")
    module = sys.modules[train.__module__]
    try:
        assert (train(2), sys.modules["json"]) == (6, loaded)
        assert train.__module__ in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_a_module_of_the_working_directory_is_found(folder: Path) -> None:
    (folder / "in_the_working_directory.py").write_text("value = 5")
    assert imported("in_the_working_directory:value") == 5


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nowhere.py:train", "there is no file nowhere.py"),
        ("target.py:nothing", "target.py has no function 'nothing'"),
        ("target", "expected FILE.py:FUNCTION or module:function, got 'target'"),
        ("json:nothing", "json:nothing cannot be imported"),
    ],
)
def test_what_is_not_there_is_named(folder: Path, target: str, says: str) -> None:
    (folder / "target.py").write_text("")
    with pytest.raises(EntrypointError, match=says):
        imported(target)
