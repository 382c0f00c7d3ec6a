from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tuner.trials.compat.on_import import on_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"imported_{tmp_path.name.rstrip('0123456789')}"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_the_action_follows_the_import(module: str) -> None:
    calls: list[int] = []
    before = list(sys.meta_path)
    on_import(module, lambda: calls.append(sys.modules[module].value))
    assert calls == []
    __import__(module)
    __import__(module)
    assert calls == [1]
    assert sys.meta_path == before
    assert type(sys.modules[module].__spec__.loader).__name__ == "SourceFileLoader", (
        "the module has its own loader again"
    )


def test_several_actions_in_any_order(module: str) -> None:
    calls: list[str] = []
    on_import(module, lambda: calls.append("first"))
    on_import(module, lambda: calls.append("second"))
    __import__(module)
    assert sorted(calls) == ["first", "second"]


def test_taken_back(module: str) -> None:
    calls: list[int] = []
    cancel = on_import(module, lambda: calls.append(1))
    cancel()
    cancel()
    __import__(module)
    assert calls == []


def test_already_imported() -> None:
    calls: list[int] = []
    on_import("sys", lambda: calls.append(1))
    assert calls == [1]


def test_a_module_that_does_not_exist() -> None:
    on_import("no_such_module_at_all", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_module_at_all")
