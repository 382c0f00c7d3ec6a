"""The functions and other objects that users name at the command line: `FILE.py:NAME` and `module:name`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from tuner.errors import EntrypointError
from tuner.usercode.folder import working_folder


def imported(target: str) -> Any:
    """Return the object that ``FILE.py:NAME`` or ``module:name`` names. Modules in the working directory can be imported.

    Raises:
        EntrypointError: there is no such object, or the module cannot be imported.
    """
    found = function(target)
    if not isinstance(found, str):
        return found
    module, colon, name = found.partition(":")
    if not colon:
        raise EntrypointError(f"expected FILE.py:FUNCTION or module:function, got {target!r}", "/trainable")
    if (here := working_folder()) not in sys.path:
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise EntrypointError(f"{target} cannot be imported: {error}", "/trainable") from error


def function(target: str) -> Any:
    """Return the function that ``FILE.py:FUNCTION`` names, which is pickled by value. Return ``module:function`` unchanged."""
    file, _, name = target.rpartition(":")
    if not file.endswith(".py"):
        return target
    path = Path(file)
    if not path.is_file():
        raise EntrypointError(f"there is no file {file}", "/trainable")
    module_name = path.stem if path.stem not in sys.modules else f"{path.stem}_of_tuner_run"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.absolute()))
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # so that the ranks do not need the file
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise EntrypointError(f"{file} has no function {name!r}", "/trainable") from error
