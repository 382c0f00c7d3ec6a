"""`import tuner` is light, and every public name is there."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from rich.console import Console

import tuner


def test_import_loads_nothing_heavy() -> None:
    heavy = {"torch", "ray", "sqlalchemy", "optuna", "numpy", "fastapi", "httpx"}
    code = f"import tuner, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_api_loads_no_models_and_no_ray() -> None:
    """A service answers as soon as this is loaded."""
    heavy = {"torch", "ray", "scipy", "optuna", "pandas", "sklearn"}
    code = f"import tuner.api.app, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_agent_loads_no_database() -> None:
    """SQLAlchemy takes a third of the time in which an agent starts."""
    heavy = {"torch", "ray", "sqlalchemy", "optuna", "numpy"}
    code = f"import tuner.cli.agent, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_service_with_sqlite_loads_nothing_for_postgresql(sqlite_url: str) -> None:
    """SQLAlchemy's modules for PostgreSQL take a twentieth of the time in which the API is loaded."""
    code = (
        "import sys, tuner.api.app, tuner.store\n"
        f"with tuner.store.Store.open({sqlite_url!r}) as store: store.migrate(); store.experiments.page()\n"
        "print(sorted(name for name in sys.modules if name.startswith('sqlalchemy.dialects.postgresql')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", tuner.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(tuner, name) is not None


def test_public_names_are_sorted_and_shown() -> None:
    assert list(tuner.__all__) == sorted(tuner.__all__)
    assert set(tuner.__all__) <= set(dir(tuner))


@pytest.mark.parametrize("name", ["schedulers", "search"])
def test_modules_that_the_docs_name_are_there_before_a_search_loads_them(name: str) -> None:
    """`tuner.search.DefineByRunSearch`, which an error recommends, was an AttributeError in a new process."""
    assert importlib.import_module("tuner").__getattr__(name) is importlib.import_module(f"tuner.{name}")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        tuner.rum  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'Tuner'; tuner.run\(train, space, .*\) runs a search"):
        tuner.Tuner  # type: ignore[attr-defined]  # noqa: B018


def test_torch_and_lightning_can_be_imported_as_modules() -> None:
    from tuner.lightning import ReportCallback
    from tuner.torch import prepare_model

    assert tuner.torch.prepare_model is prepare_model
    assert tuner.lightning.ReportCallback is ReportCallback


ROOT = Path(__file__).resolve().parents[1]


def test_an_older_python_is_told_what_is_needed() -> None:
    """Import tuner as from a checkout, where pip has not checked the version of Python."""
    code = "import sys; sys.hexversion = 0x030A0DF0; import tuner"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith(
        f"ImportError: tuner needs Python 3.11 or newer, but {sys.executable} is"
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_asks_for_a_newer_python_before_it_makes_an_environment(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    old = tmp_path / "python3"
    pretend = "import sys; sys.version_info = (3, 10, 13); exec(sys.argv[1])"
    old.write_text(f"#!/bin/sh\n[ \"$1\" = -c ] && exec '{sys.executable}' -c '{pretend}' \"$2\"\nexit 3\n")
    old.chmod(0o755)
    # The first is the Python to make .venv with; the second is that of a .venv that already exists.
    for place in (old, tmp_path / ".venv" / "bin" / "python"):
        place.parent.mkdir(parents=True, exist_ok=True)
        if place != old:
            shutil.copy(old, place)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        done = subprocess.run(
            ["make", "setup", f"PYTHON={old}"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0
        assert "tuner needs Python 3.11 or newer, but" in done.stderr
        assert "is Python 3.10. Install a newer one" in done.stderr
        assert (tmp_path / ".venv").exists() == (place != old)


def test_the_oldest_rich_that_is_allowed_calls_on_broken_pipe() -> None:
    """`tuner run ... | head -1` ends the search with an older one."""
    needed = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["dependencies"]
    rich = next(one for one in map(Requirement, needed) if one.name == "rich")
    assert "13.7.1" not in rich.specifier
    assert "13.8" in rich.specifier
    assert callable(Console.on_broken_pipe)


@pytest.mark.parametrize(
    ("name", "too_old", "oldest"),
    [
        ("ray", "2.53.0", "2.54.0"),
        ("scipy", "1.14.1", "1.15.0"),
        ("typer", "0.18.0", "0.19.0"),
        ("pydantic", "2.11.1", "2.11.2"),
        ("starlette", "1.4.0", "1.5.0"),
        ("pytorch-lightning", "2.5.6", "2.6.0"),
    ],
)
def test_versions_with_which_tuner_fails_are_not_allowed(name: str, too_old: str, oldest: str) -> None:
    """`tests/test_wheel.py` installs the oldest versions that are allowed, in its long form."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = [one for extra in project["optional-dependencies"].values() for one in extra]
    needed = [one for one in map(Requirement, [*project["dependencies"], *extras]) if one.name == name]
    assert needed
    assert not any(too_old in one.specifier for one in needed)
    assert all(oldest in one.specifier for one in needed)
