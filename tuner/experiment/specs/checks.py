"""Check what types cannot express: JSON, strings, entrypoints, resources, elastic trials, storage."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, cast

from pydantic import ValidationError

from tuner.domain.experiment import PRINTABLE, Scaling, Spec
from tuner.domain.keys import may_be_experiment_id
from tuner.errors import SpecError
from tuner.experiment.specs.messages import Errors, shown
from tuner.experiment.specs.model import SECTION, Written
from tuner.names import resource_meant
from tuner.space.words import escape
from tuner.trials.checkpoints.storage import (
    blocking_file,
    is_in_kernel_filesystem,
    is_relative,
    secret_in,
    unknown_scheme,
)

_SURROGATE = re.compile("[\ud800-\udfff]")
ENTRYPOINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

LEAST_AMOUNT = 1e-4
"""The smallest amount of a resource that Ray can reserve. It refuses smaller ones only once the ranks are started."""


def check_sections(plain: Mapping[str, Any], model: Written | None, errors: Errors) -> None:
    """Check each well-formed section for mistakes that types cannot express, even if other sections are malformed.

    model: the whole spec, or None if a part of it is malformed.
    """
    if (scaling := _section(plain, model, "scaling")) is not None:
        _check_resources(scaling, errors)
    if (limits := _section(plain, model, "limits")) is not None:
        check_repeats(limits.repeats, errors)
    if (checkpoint := _section(plain, model, "checkpoint")) is not None:
        _check_storage(checkpoint.storage, errors)
        _check_interval(checkpoint.interval_s, errors)
    if isinstance(environment := plain.get("runtime_env", {}), dict):
        _check_environment(environment, errors)


def _section(plain: Mapping[str, Any], model: Written | None, name: str) -> Any:
    """Return a section as its dataclass, or None if it is malformed."""
    if model is not None:
        return getattr(model, name)
    try:
        return cast("Any", SECTION[name].model_validate({"only": plain.get(name, {})})).only
    except ValidationError:
        return None


def plain_json(data: Any) -> dict[str, Any]:
    """Return an object as plain JSON, with dicts and lists. Raise SpecError if it is not an object, or not JSON."""
    return plain_and_text(data)[0]


def plain_and_text(data: Any) -> tuple[dict[str, Any], str]:
    """Return `plain_json` and its text."""
    if not isinstance(data, Mapping):
        raise SpecError(f"expected an object, got {shown(data)}")
    try:
        text = _ENCODER.encode(data)
        plain: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"not JSON: {error}", _place(data)) from error
    return plain, text


def _plain(value: Any) -> Any:
    """Return the JSON form of a mapping, or of a number of NumPy or torch."""
    if isinstance(value, Mapping):
        return dict(value)
    if getattr(value, "ndim", None) == 0:
        with contextlib.suppress(Exception):  # such as a tensor of the device "meta"
            if isinstance(plain := value.item(), bool | int | float | str):
                return plain  # else it may be another number of NumPy, such as a longdouble
    raise TypeError(f"{shown(value)} is not a JSON value")


def _place(data: Any) -> str:
    """Return a pointer to the innermost part of `data` that is not JSON."""
    parts = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list | tuple) else ()
    for key, value in parts:
        try:
            _ENCODER.encode(value)
        except TypeError:
            return f"/{escape(str(key))}{_place(value)}"
        except (ValueError, RecursionError):  # the data contain themselves, or are nested too deeply
            break
    return ""


_ENCODER = json.JSONEncoder(default=_plain)


def check_entrypoint(model: Written, code: str | None, errors: Errors) -> None:
    if model.command is None and model.metric_pattern is not None:
        errors.append(("/metric_pattern", "only works with a command"))
    if model.bundle is not None:
        errors.append(("/bundle", "only a service accepts bundles; here, list folders in runtime_env.py_modules"))
    if vars(model)["executor"] == "agents":
        _check_for_agents(model, code, errors)
    elif model.function is not None and model.entrypoint is not None:
        errors.append(("/function", "expected an entrypoint or a function, got both"))
    elif model.entrypoint is None:
        if code is None:
            errors.append(("/entrypoint", 'is required; expected "module:function"'))
    elif not ENTRYPOINT.fullmatch(model.entrypoint):
        errors.append(("/entrypoint", f'expected "module:function", got {shown(model.entrypoint)}'))


def _check_for_agents(model: Written, code: str | None, errors: Errors) -> None:
    """Check a spec for agents, which bring their own code. The entrypoint in such a spec is a name that the agents know."""
    given = [name for name in ("function", "runtime_env") if getattr(model, name)]
    if given or code:
        what = given[0] if given else "a command or a function"
        errors.append(
            (
                "/executor",
                f"agents ask a service for trials, and bring their own code: create the experiment on a service, without {what} "
                "(`tuner docs agents`), or use another executor",
            )
        )
    if model.entrypoint is not None and not re.match(PRINTABLE, model.entrypoint):
        errors.append(("/entrypoint", "must not have control characters"))


def _check_resources(scaling: Scaling, errors: Errors) -> None:
    amounts = scaling.resources_per_worker
    for name, amount in amounts.items():
        pointer = f"/scaling/resources_per_worker/{escape(name)}"
        if not name or not re.match(PRINTABLE, name):
            errors.append((pointer, "the name of a resource must not be empty or have control characters"))
        elif not math.isfinite(amount):
            errors.append((pointer, f"expected a number, got {shown(amount)}"))
        elif amount < 0:
            errors.append((pointer, f"expected at least 0, got {amount:g}"))
        elif (meant := resource_meant(name)) is not None:
            errors.append((pointer, f"unknown resource; did you mean {meant}?"))
        elif amount > 1 and amount != int(amount):
            errors.append((pointer, f"above 1, Ray accepts only whole numbers, got {amount:g}"))
        elif 0 < amount < LEAST_AMOUNT:
            errors.append((pointer, f"expected 0 or at least {LEAST_AMOUNT:g}, Ray's smallest amount, got {amount:g}"))
    if scaling.use_gpu and amounts.get("GPU") == 0:
        errors.append(
            ("/scaling/resources_per_worker/GPU", "use_gpu is true, so each rank needs a GPU or a fraction of one")
        )
    if scaling.backend == "nccl" and not scaling.use_gpu and not amounts.get("GPU"):
        errors.append(("/scaling/backend", "nccl needs GPUs; set use_gpu"))


def check_elastic(spec: Spec, errors: Errors) -> None:
    """Check the range for the number of ranks, and check that the rest of the spec supports elastic trials."""
    scaling = spec.scaling
    if scaling.max_workers is not None and scaling.max_workers < scaling.num_workers:
        message = f"expected at least num_workers, {scaling.num_workers}, got {scaling.max_workers}"
        errors.append(("/scaling/max_workers", message))
    if not scaling.elastic:
        return
    if spec.executor in ("local", "agents"):
        errors.append(
            ("/executor", f"elastic trials need Ray, and executor is {spec.executor!r}: leave out max_workers")
        )
    if spec.time_attr == "time_total_s":
        message = "elastic trials of different sizes train at different speeds, so seconds do not compare them"
        errors.append(("/time_attr", f"{message}: expected training_iteration or a metric"))
    if scaling.placement_strategy.startswith("STRICT"):
        message = f"elastic trials use free workers wherever they are: expected PACK or SPREAD, got {scaling.placement_strategy}"
        errors.append(("/scaling/placement_strategy", message))
    if not scaling.bundle():
        message = "elastic trials grow into free resources, so each rank must need some"
        errors.append(("/scaling/resources_per_worker", message))


def _check_storage(storage: str | None, errors: Errors) -> None:
    wrong = unknown_scheme(storage) or secret_in(storage) if storage is not None else None
    if storage is not None and wrong is None and is_relative(storage):
        errors.append(
            (
                "/checkpoint/storage",
                "expected an absolute path, a URI such as s3://bucket/folder, or a path that begins with ~ or $NAME, got "
                f"{shown(storage)}, which would be a different directory in each process",
            )
        )
    elif wrong is not None:
        errors.append(("/checkpoint/storage", wrong))
    elif storage is not None and is_in_kernel_filesystem(storage):
        errors.append(
            (
                "/checkpoint/storage",
                f"expected a directory for files, got {shown(storage)}, which belongs to the kernel",
            )
        )
    elif storage is not None and (file := blocking_file(storage)) is not None:
        errors.append(("/checkpoint/storage", f"expected a directory, but {file} is a file"))


def check_repeats(repeats: int | Literal["auto"], errors: Errors) -> None:
    if repeats != "auto" and repeats < 0:
        errors.append(("/limits/repeats", f'expected a number of repeats, 0 or more, or "auto", got {repeats}'))


def _check_interval(interval_s: float | Literal["auto"] | None, errors: Errors) -> None:
    if isinstance(interval_s, float | int) and not 0 < interval_s < math.inf:
        errors.append(("/checkpoint/interval_s", f"expected a number of seconds above 0, got {interval_s:g}"))


def _check_environment(runtime_env: Mapping[str, Any], errors: Errors) -> None:
    variables = runtime_env.get("env_vars", {})
    if not isinstance(variables, dict):
        errors.append(("/runtime_env/env_vars", f"expected an object of strings, got {shown(variables)}"))
        return
    for name, value in variables.items():
        if not isinstance(value, str):
            errors.append((f"/runtime_env/env_vars/{escape(name)}", f"expected a string, got {shown(value)}"))


def check_name(name: str, errors: Errors) -> None:
    """Check that the name of an experiment can be seen, and cannot be taken for an id."""
    if not any(letter.isprintable() and not letter.isspace() for letter in name):
        errors.append(("/name", "has no character that can be seen: choose another name"))
    if may_be_experiment_id(name):
        errors.append(
            ("/name", "has the form of an experiment's id, so it would be taken for one: choose another name")
        )


def check_strings(plain: Mapping[str, Any], errors: Errors, text: str | None = None) -> None:
    """Check that no string contains NUL or unpaired surrogates, which cannot be stored.

    text: the JSON text of `plain`, or of an object with the same strings, if the caller has it.
    """
    text = json.dumps(plain) if text is None else text
    if "\\u0000" not in text and "\\ud" not in text:  # nearly always true, and much quicker to check than every string
        return
    stack: list[tuple[str, Any]] = [("", plain)]
    while stack:
        pointer, value = stack.pop()
        if isinstance(value, str):
            if "\0" in value or not (value.isascii() or _SURROGATE.search(value) is None):
                errors.append((pointer, "has characters that cannot be stored"))
        elif isinstance(value, dict):
            stack.extend((f"{pointer}/{escape(key)}", item) for key, item in value.items())
            stack.extend((f"{pointer}/{escape(key)}", key) for key in value)
        elif isinstance(value, list):
            stack.extend((f"{pointer}/{at}", item) for at, item in enumerate(value))
