"""The current folder, in which users run their scripts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tuner.errors import SpecError

_ROOT = str(Path(__file__).resolve().parents[2])


def working_folder() -> str:
    """Return the current folder. Raise SpecError if it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise SpecError(
            "the current folder of this process has been deleted: change to another folder, or start the process again in one"
        ) from error


def python_without_folder(module: str) -> list[str]:
    """Return a command that runs a module of this package and imports nothing from the current folder.

    The folder may have a module with the name of one that is imported, such as `signal`. The command runs the package of this
    process even if another tuner is installed, as when this one is imported from a checkout.
    """
    this = f"sys.path.insert(0, {_ROOT!r}); import tuner; sys.path.append(sys.path.pop(0))"
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-P", "-c", f"import runpy, sys; {this}; {run}"]
