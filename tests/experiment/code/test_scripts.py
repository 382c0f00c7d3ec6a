"""A spec's `command`: which script it names, and what is wrong with one."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import SPEC
from tuner.errors import SpecError
from tuner.experiment.operations.usecases import parsed
from tuner.trials.training.script import Script


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print('accuracy=1')")
    (tmp_path / "data.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spec(command: Any, **changes: Any) -> dict[str, Any]:
    data = {**SPEC, "command": command, **changes}
    del data["entrypoint"]
    return data


@pytest.mark.parametrize(
    "command",
    ["python train.py --lr {lr} --width '{width}'", ["train.py", "--lr", "{lr}", "--width", "{width}"]],
    ids=["text", "list"],
)
def test_a_command_becomes_a_function_by_value(folder: Path, command: Any) -> None:
    found, _, code = parsed(spec(command, metric_pattern="(?P<accuracy>x)", limits={"stop_grace_s": 3}, scaling={}))
    assert code is not None
    assert code.blob is not None
    script = pickle.loads(code.blob)
    assert isinstance(script, Script)
    assert (script.path, script.source) == (str(folder / "train.py"), b"print('accuracy=1')")
    assert (script.metric, script.pattern, script.grace_s) == ("accuracy", "(?P<accuracy>x)", 3.0)
    assert script.command({"lr": 0.1, "width": 16}, "/dir")[-4:] == ["--lr", "0.1", "--width", "16"]
    assert (found.code, found.entrypoint, found.scaling.backend) == (code.hash, None, "none")
    assert parsed(spec(command, scaling={"num_workers": 2}))[0].scaling.backend == "gloo"


@pytest.mark.parametrize(
    ("command", "changes", "pointer", "words"),
    [
        ("trian.py", {}, "/command", "there is no file trian.py"),
        ("../../etc/passwd", {}, "/command", "there is no file"),
        ("data.txt", {}, "/command", "neither a .py file nor executable"),
        ("train.py --lr {rate}", {}, "/command", "{rate} is not a parameter of the space"),
        ("train.py --w {widht}", {}, "/command", "did you mean width?"),
        ("train.py 'x", {}, "/command", "cannot be split"),
        ("", {}, "/command", "does not name a script"),
        (["python"], {}, "/command", "does not name a script"),
        ([1], {}, "/command", "expected a string or a list of strings"),
        ({"a": 1}, {}, "/command", "expected a string or a list of strings"),
        ("train.py", {"metric_pattern": "("}, "/metric_pattern", ""),
        ("train.py", {"metric_pattern": 5}, "/metric_pattern", ""),
        ("train.py", {"function": {}}, "/command", "expected a command or function, got both"),
        (None, {"metric_pattern": "x"}, "/metric_pattern", "only works with a command"),
    ],
)
def test_a_wrong_command_is_pointed_at(
    folder: Path, command: Any, changes: dict[str, Any], pointer: str, words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parsed(spec(command, **changes))
    assert any(where == pointer and words in message for where, message in caught.value.errors), caught.value.errors
