"""Prepare a training function for another process, which imports the function by name or unpickles it."""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import sys
import sysconfig
from collections.abc import Callable
from importlib import metadata
from typing import Any

from tuner.errors import EntrypointError
from tuner.store.records import CodeRecord
from tuner.usercode.folder import working_folder
from tuner.usercode.import_check import ASYNCHRONOUS, asynchronous
from tuner.usercode.pickling import culprits, dumps

PACKAGES = ("torch", "ray", "pytorch-lightning", "lightning", "numpy", "cloudpickle", "tuner")
"""Packages whose versions are stored with a pickled function, which may need the same versions to be unpickled."""


def by_value(
    function: Callable[..., Any] | None, *, space_blob: bytes | None = None, parts_blob: bytes | None = None
) -> CodeRecord:
    """Return the record that stores a training function by value, with the versions and paths that it needs.

    `function` is None if workers import the training function by its entrypoint instead.

    Raises:
        EntrypointError: the function cannot be called with a configuration, or cannot be pickled. If it cannot be pickled,
            the message names the objects that prevent it.
        SpecError: the current folder has been deleted.
    """
    here = working_folder()
    blob = None
    if function is not None:
        check_signature(function)
        blob = pickle_function(function)
    content = hashlib.blake2b(digest_size=16)
    sys_path = _own_path()
    for part in (blob, space_blob, parts_blob, "\n".join([*sys_path, here]).encode(errors="surrogateescape")):
        content.update(b"\0" if part is None else part)
    return CodeRecord(
        hash=content.hexdigest(),
        blob=blob,
        space_blob=space_blob,
        parts_blob=parts_blob,
        python=platform.python_version(),
        packages=_versions(),
        sys_path=sys_path,
        working_dir=here,
    )


def check_signature(function: Callable[..., Any]) -> None:
    """Raise EntrypointError unless an ordinary call of the function with one argument, the configuration, runs it."""
    name = getattr(function, "__qualname__", repr(function))
    if not callable(function):
        raise EntrypointError(f"expected a function that takes the configuration, got {function!r}", "/trainable")
    if found := asynchronous(function):
        raise EntrypointError(ASYNCHRONOUS.format(name=found), "/trainable")
    try:
        inspect.signature(function).bind({})
    except TypeError as error:
        raise EntrypointError(
            f"{name} cannot be called with a configuration: {error}; it gets one argument, a dict, as in def train(config)",
            "/trainable",
        ) from error
    except ValueError:  # a builtin without a readable signature
        return


def pickle_function(function: Callable[..., Any]) -> bytes:
    """Return the pickled function. If it cannot be pickled, raise EntrypointError, which names the objects that prevent it."""
    try:
        return dumps(function)
    except Exception as error:
        name = getattr(function, "__qualname__", None) or getattr(function, "__name__", repr(function))
        because = ", ".join(culprits(function)) or "an object that the function refers to"
        raise EntrypointError(
            f"{name} cannot be sent to other processes because of {because}: {type(error).__name__}: {error}",
            "/trainable",
        ) from error


def _own_path() -> list[str]:
    """Return `sys.path` without the folders of this Python's libraries, which workers have in their own `sys.path`."""
    paths = sysconfig.get_paths()
    libraries = tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    entries = [os.path.abspath(entry or os.getcwd()) for entry in sys.path]
    return [
        entry for entry in entries if not f"{entry}{os.sep}".startswith(tuple(f"{path}{os.sep}" for path in libraries))
    ]


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
