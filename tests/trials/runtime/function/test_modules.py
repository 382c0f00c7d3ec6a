"""Sources that change after a warm process has imported them."""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.trials.runtime.function import modules as noting
from tuner.trials.runtime.function.modules import Modules

_numbers = itertools.count()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a user's module, under a name that no other test uses."""
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / f"module_of_the_user_{next(_numbers)}.py"
    file.write_text("value = 1")
    yield file
    sys.modules.pop(file.stem, None)


def test_changed_sources_are_seen(mine: Path) -> None:
    modules = Modules()
    modules.note()
    importlib.import_module(mine.stem)
    modules.note()
    assert modules.stale() is None
    os.utime(mine, (1, 1))
    assert modules.stale() == str(mine)


def test_a_source_that_changed_between_its_import_and_the_look_at_it_is_seen(mine: Path) -> None:
    modules = Modules()
    modules.note()
    importlib.import_module(mine.stem)
    os.utime(mine, (4e9, 4e9))
    modules.note()
    assert modules.stale() == str(mine)


def test_an_import_is_seen_where_another_module_has_gone(mine: Path) -> None:
    gone = mine.with_name(f"{mine.stem}_gone.py")
    gone.touch()
    importlib.import_module(gone.stem)
    modules = Modules()
    modules.note()
    del sys.modules[gone.stem]
    importlib.import_module(mine.stem)
    modules.note()
    os.utime(mine, (1, 1))
    assert modules.stale() == str(mine)


def test_a_process_does_not_watch_what_it_was_forked_with(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked at thousands of modules before its first trial, and would be replaced by a process with the same modules."""
    monkeypatch.setattr(noting, "_given", frozenset())
    given = mine.with_name(f"{mine.stem}_given.py")
    given.touch()
    importlib.import_module(given.stem)
    noting.forking()
    modules = Modules()
    importlib.import_module(mine.stem)
    modules.note()
    assert list(modules._stamps) == [str(mine)]
    del sys.modules[given.stem]


def test_the_libraries_of_an_environment_behind_a_link_are_not_watched(tmp_path: Path) -> None:
    """All their files were looked at, at the start of a process and again for each experiment."""
    (tmp_path / "env").symlink_to(sys.prefix)
    code = "from tuner.trials.runtime.function.modules import Modules; found = Modules(); found.note(); print(*found._stamps)"
    command = [str(tmp_path / "env" / "bin" / "python"), "-c", f"import psutil; {code}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[4]).stdout
    assert "/psutil/" not in said
