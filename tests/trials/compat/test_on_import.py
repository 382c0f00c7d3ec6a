from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
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


def test_one_who_only_looks_for_the_module_takes_no_action_away(module: str, tmp_path: Path) -> None:
    """Libraries such as Transformers do so to find out what is installed."""
    calls: list[str] = []
    on_import(module, lambda: calls.append("first"))
    on_import(module, lambda: calls.append("second"))
    for _ in range(2):
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.loader is not None
        assert spec.loader.get_source(module) == "value = 1\n"  # type: ignore[attr-defined]
    assert calls == []
    __import__(module)
    assert sorted(calls) == ["first", "second"]


def test_one_who_looks_for_the_module_while_another_imports_it_does_not_change_it(module: str, tmp_path: Path) -> None:
    """The module was not in `sys.modules` when the first thread looked there, and has its loader from its import."""
    calls: list[int] = []
    on_import(module, lambda: calls.append(1))
    (tmp_path / f"{module}.py").write_text("import sys\nfor one in sys.meta_path: one.find_spec(__name__, None)\n")
    spec = __import__(module).__spec__
    assert isinstance(spec.loader, SourceFileLoader)
    assert calls == [1]


def test_an_import_that_failed_may_be_tried_again(module: str, tmp_path: Path) -> None:
    calls: list[int] = []
    on_import(module, lambda: calls.append(1))
    (tmp_path / f"{module}.py").write_text("import no_such_module_at_all\n")
    with pytest.raises(ModuleNotFoundError):
        __import__(module)
    assert calls == []
    (tmp_path / f"{module}.py").write_text("value = 1\n")
    __import__(module)
    assert calls == [1]


def test_already_imported() -> None:
    calls: list[int] = []
    on_import("sys", lambda: calls.append(1))
    assert calls == [1]


def test_a_module_that_does_not_exist() -> None:
    on_import("no_such_module_at_all", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_module_at_all")
