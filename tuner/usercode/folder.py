"""The current folder, in which users run their scripts."""

from __future__ import annotations

import os

from tuner.errors import SpecError


def working_folder() -> str:
    """Return the current folder. Raise SpecError if it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise SpecError(
            "the current folder of this process has been deleted: change to another folder, or start the process again in one"
        ) from error
