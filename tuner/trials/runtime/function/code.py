"""Load the training function, and build its configuration, in a worker process."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle

from tuner.errors import EntrypointError, text_of
from tuner.space import Space
from tuner.trials.compat.forms import as_function
from tuner.trials.messages.launch import CodeRef, Launch
from tuner.trials.runtime.function import script_names
from tuner.usercode.importing import importing


def load(code: CodeRef, blob: bytes | None) -> Callable[[Any], Any]:
    """Import the training function by name, or unpickle it. Raise EntrypointError if that fails in this process.

    Call `script_names.remove` when the function is no longer used.
    """
    if code.entrypoint is not None:
        return as_function(_by_name(code.entrypoint))
    if blob is None:
        raise EntrypointError("the training function was not sent to this worker")
    trainable = _by_value(blob)
    script_names.add(trainable, blob)
    return as_function(trainable)


def _by_name(entrypoint: str) -> Any:
    module, _, name = entrypoint.partition(":")
    try:
        with importing(module):
            found: Any = importlib.import_module(module)
    except Exception as error:
        raise EntrypointError(f"{module} cannot be imported on this worker: {_why(error)}") from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise EntrypointError(f"{module} has no {name}") from error
    return found


def _by_value(blob: bytes) -> Any:
    try:
        with importing("the training function"):
            return cloudpickle.loads(blob)
    except Exception as error:
        raise EntrypointError(f"the training function cannot be loaded on this worker: {_why(error)}") from error


def _why(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return (
            f"there is no module {error.name!r} on {socket.gethostname()}: install it there, or send it with "
            "runtime_env={'pip': [...]}, or 'py_modules' or 'working_dir' for your own files"
        )
    return f"{type(error).__name__}: {text_of(error)}"


def resolve(launch: Launch) -> dict[str, Any]:
    """Return the configuration that the training function gets: a nested dict made from the trial's params."""
    if launch.space is not None:
        number = launch.trial_number if launch.drawn_as is None else launch.drawn_as
        return Space.from_json(launch.space, launch.space_blob).config(launch.params, launch.seed, number)
    config: dict[str, Any] = {}
    for name, value in launch.params.items():
        *path, last = name.split("/")
        inner = config
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return config


def add_to_path(launch: Launch) -> None:
    """Add the folders of the user's code to `sys.path`, after the ``working_dir`` and ``py_modules`` that were sent with it.

    The folders come last because, on the machine where the directories were packed, they contain the originals, which may have
    been edited since.
    """
    has_code = launch.runtime_env.get("py_modules") or launch.runtime_env.get("working_dir")
    sent = os.environ.get("PYTHONPATH", "").split(os.pathsep) if has_code else []
    at = 1 + max((i for i, entry in enumerate(sys.path) if entry and entry in sent), default=-1)
    for entry in reversed(launch.code.sys_path):
        if entry not in sys.path:
            sys.path.insert(at, entry)
