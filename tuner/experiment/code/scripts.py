"""A spec's `command`: a script whose arguments contain parameters, as in `tuner run train.py --lr '{lr}'`.

When an experiment is created, the service reads the script, and stores it with its arguments as a training function.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.errors import SpecError
from tuner.experiment.code import bundles
from tuner.names import did_you_mean
from tuner.store.records import CodeRecord
from tuner.trials.training.metric_lines import compiled
from tuner.trials.training.script import NOT_ELASTIC, TRIAL_DIR, Script, placeholders
from tuner.usercode.folder import working_folder
from tuner.usercode.trainable import by_value

MAX_BYTES = 10 << 20
"""The maximum size of a script, in bytes."""

FIELDS = ("command", "metric_pattern")
INTERPRETERS = ("python", "python3")


def taken(data: Any) -> tuple[Any, CodeRecord | None]:
    """Return a spec without its command, and the training function that runs the command, or None if there is no command.

    Raises:
        SpecError: there is no such script, or a placeholder does not name a parameter.
    """
    if not isinstance(data, Mapping) or data.get("command") is None:
        return data, None
    if others := [name for name in ("entrypoint", "function") if data.get(name) is not None]:
        raise SpecError(f"expected a command or {others[0]}, got both", "/command")
    words = _words(data["command"])
    path, source = _script(words[0], data.get("runtime_env"))
    arguments = tuple(words[1:])
    _check_placeholders(arguments, data.get("space"))
    pattern, metric, limits, scaling = (data.get(name) for name in ("metric_pattern", "metric", "limits", "scaling"))
    metric = metric[0] if isinstance(metric, list) and metric else metric
    if not isinstance(metric, str):
        raise SpecError("expected the name of a metric, or a list of names", "/metric")
    _check_pattern(pattern, metric)
    limits, scaling = (part if isinstance(part, Mapping) else {} for part in (limits, scaling))
    grace_s = limits.get("stop_grace_s")
    script = Script(path, source, arguments, metric, pattern)
    if isinstance(grace_s, int | float):  # the check of the spec reports other values
        script = replace(script, grace_s=float(grace_s))
    rest = {name: value for name, value in data.items() if name not in FIELDS}
    if scaling.get("max_workers") is not None or isinstance(scaling.get("num_workers"), Mapping):
        raise SpecError(NOT_ELASTIC, "/scaling/num_workers")
    ranks = scaling.get("num_workers", 1)
    # With several ranks, the worker group keeps the store for their rendezvous.
    backend = "gloo" if isinstance(ranks, int) and ranks > 1 else "none"
    if isinstance(data.get("scaling", {}), Mapping):
        rest["scaling"] = {"backend": backend, **scaling}
    rest.setdefault("name", Path(words[0]).stem)
    return rest, by_value(script)


def _words(command: Any) -> list[str]:
    """Return the script and its arguments. A leading "python" or "python3" is left out."""
    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError as error:
        raise SpecError(f"cannot be split into words: {error}", "/command") from error
    if not isinstance(words, Sequence) or not all(isinstance(word, str) and "\0" not in word for word in words):
        raise SpecError('expected a string or a list of strings, such as ["train.py", "--lr", "{lr}"]', "/command")
    words = list(words[1:] if words and words[0] in INTERPRETERS else words)
    if not words or not words[0]:
        raise SpecError("does not name a script", "/command")
    return words


def _script(name: str, runtime_env: Any) -> tuple[str, bytes]:
    """Find the script in the bundle, in the working_dir, or by its absolute path. Return its path and its content."""
    environment = runtime_env if isinstance(runtime_env, Mapping) else {}
    modules = environment.get("py_modules")
    places = [*(modules if isinstance(modules, list) else []), environment.get("working_dir")]
    folders = [bundles.unpacked(place) for place in places if isinstance(place, str)]
    for folder in [""] if os.path.isabs(name) else [*folders, working_folder()]:
        path = Path(folder, name)
        inside = not folder or path.resolve().is_relative_to(Path(folder).resolve())
        if inside and path.is_file():
            if path.stat().st_size > MAX_BYTES:
                raise SpecError(f"{name} is larger than {MAX_BYTES >> 20} MiB", "/command")
            if path.suffix != ".py" and not os.access(path, os.X_OK):
                raise SpecError(f"{name} is neither a .py file nor executable", "/command")
            return str(path), path.read_bytes()
    raise SpecError(
        f"there is no file {name} in the bundle, in runtime_env.working_dir or in the folder of the service: upload it in a "
        "bundle, or give its absolute path",
        "/command",
    )


def _check_placeholders(arguments: tuple[str, ...], space: Any) -> None:
    known = {*space, TRIAL_DIR} if isinstance(space, Mapping) else {TRIAL_DIR}
    for name in sorted(placeholders(arguments)):
        if name not in known and name.partition("/")[0] not in known:
            hint = did_you_mean(name, known) or f"; to get the literal text {{{name}}}, write {{{{{name}}}}}"
            raise SpecError(f"{{{name}}} is not a parameter of the space{hint}", "/command")


def _check_pattern(pattern: Any, metric: str) -> None:
    if pattern is None:
        return
    try:
        compiled(pattern, metric)
    except (ValueError, TypeError) as error:
        raise SpecError(str(error), "/metric_pattern") from error
