"""Import the libraries of loggers."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from tuner.errors import MissingPackage, TunerError


def imported(module: str, attribute: str, *, user: str, library: str, install: str) -> Any:
    """Import what a logger needs of a library that may not be installed.

    Args:
        module: the name of the module.
        attribute: the name of what is needed of it. A folder such as ``./wandb`` can be imported, but has none.
        user: the name of the logger's class.
        library: the name of the library, in words.
        install: the name of the distribution, for pip.

    Raises:
        MissingPackage: the library is not installed.
        TunerError: it is installed, but cannot be imported.
    """
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a library that does not fit its own dependencies raises errors of many types
        if not _is_installed(module.partition(".")[0]):
            raise MissingPackage(f"{user} needs {library}: pip install {install}") from error
        raise TunerError(
            f"{user} needs {library}, which is installed, but cannot be imported ({type(error).__name__}: {error}): "
            f"`pip check` may say why, and `pip install {install} --upgrade` may help"
        ) from error


def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # a folder without an __init__.py has no origin
