"""The notebook of `examples/`: its cells run one after the other, as in Jupyter."""

from __future__ import annotations

import ast
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import tuner

NOTEBOOK = json.loads((Path(__file__).resolve().parents[2] / "examples" / "first_search.ipynb").read_text())


def run(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last line if that is an expression."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if last is not None else None


def test_it_is_stored_without_outputs() -> None:
    assert (NOTEBOOK["nbformat"], {cell["cell_type"] for cell in NOTEBOOK["cells"]}) == (4, {"markdown", "code"})
    for cell in NOTEBOOK["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


@pytest.mark.ray
@pytest.mark.usefixtures("private_ray")
def test_its_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    main = types.ModuleType("__main__")  # as in a notebook, functions belong to it and are sent by value
    monkeypatch.setitem(sys.modules, "__main__", main)
    shown = [run("".join(cell["source"]), vars(main)) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    _, result, frame, *_ = shown
    assert isinstance(result, tuner.Result)
    assert (result.state, len(frame)) == ("completed", 8)
    assert "median" in capsys.readouterr().out
