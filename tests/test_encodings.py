"""Test that text files are read and written in UTF-8, and that names of processes may have any bytes."""

from __future__ import annotations

import ast
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.hosts import owners
from tuner.trials.runtime import python_state
from tuner.trials.runtime.measures import process_stats, profiler

PACKAGE = Path(__file__).parents[1] / "tuner"
OF_TEXT = {"read_text", "write_text"}
POSITION_OF_MODE = {"open": 1, "fdopen": 1, "TemporaryFile": 0, "NamedTemporaryFile": 0}
BINARY_BY_DEFAULT = {"TemporaryFile", "NamedTemporaryFile"}


def _unnamed(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls that open a text file without naming its encoding, so that it is the locale's."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(word.arg == "encoding" for word in node.keywords):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in OF_TEXT:
            yield node
        elif name in POSITION_OF_MODE:
            at = POSITION_OF_MODE[name] - (name == "open" and isinstance(node.func, ast.Attribute))
            given = [word.value for word in node.keywords if word.arg == "mode"] or node.args[at : at + 1]
            mode = given[0].value if given and isinstance(given[0], ast.Constant) else None
            if not given and name not in BINARY_BY_DEFAULT and isinstance(node.func, ast.Name):
                mode = "r"
            if isinstance(mode, str) and set(mode) <= set("rwaxt+"):
                yield node


def test_every_text_file_is_opened_with_an_encoding() -> None:
    found = [
        f"{path.relative_to(PACKAGE.parent)}:{call.lineno}: {ast.unparse(call)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for call in _unnamed(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == [], 'the locale may have another encoding: pass encoding="utf-8"'


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("open(path)", 1),
        ("open(path, 'rb')", 0),
        ("open(path, encoding='utf-8')", 0),
        ("path.open('x')", 1),
        ("path.open('rb')", 0),
        ("os.fdopen(pipe, 'w')", 1),
        ("(home / 'token').read_text()", 1),
        ("path.write_text('', encoding='utf-8')", 0),
        ("tempfile.NamedTemporaryFile('w', dir=home)", 1),
        ("tempfile.TemporaryFile()", 0),
        ("Store.open(url)", 0),
    ],
)
def test_the_check_finds_text_files(code: str, count: int) -> None:
    assert len(list(_unnamed(ast.parse(code)))) == count


@pytest.fixture
def odd_name() -> Iterator[None]:
    """Give this thread, and so the process, a name that is not UTF-8. The kernel has the name in several files of /proc."""
    if not sys.platform.startswith("linux"):
        pytest.skip("there is no prctl")
    libc = ctypes.CDLL(None)
    before = ctypes.create_string_buffer(16)
    libc.prctl(16, before)
    libc.prctl(15, b"train\xfcber)")
    yield
    libc.prctl(15, before)


@pytest.mark.parametrize(
    "examine",
    [
        process_stats.usage,
        lambda: process_stats._children_cpu_s(os.getppid()),
        profiler._cpu_by_thread,
        python_state._umask,
        lambda: owners._start_ticks(os.getpid()),
    ],
    ids=["usage", "children", "threads", "umask", "owner"],
)
@pytest.mark.usefixtures("odd_name")
def test_a_process_may_have_a_name_that_is_not_utf_8(examine: Callable[[], Any]) -> None:
    assert examine() is not None
