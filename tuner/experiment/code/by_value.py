"""Training functions that are sent over REST as part of a spec: cloudpickle in base64.

The service never unpickles these functions; only the ranks do.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import platform
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.domain.experiment import Spec
from tuner.errors import SpecError
from tuner.store.records import CodeRecord
from tuner.usercode.pickling import holds_functions

MAX_BYTES = 10 << 20
"""The maximum size of a pickled function, in bytes. In base64, such a function and its spec fit into a request of 16 MiB."""

ELSEWHERE = ("conda", "container", "image_uri", "py_executable", "uv")
"""The options of a runtime_env that may give the ranks another version of Python than the service has."""


class Function(BaseModel):
    """A training function that is sent with the spec. Ranks unpickle it; the service does not."""

    model_config = ConfigDict(extra="forbid", strict=True)

    pickle: str = Field(
        description="a function of the configuration, pickled with cloudpickle, in base64; the pickle has at most 10 MiB"
    )
    python: str = Field(description="the version of Python that pickled the function", examples=["3.12.1"])
    packages: dict[str, str] = Field(
        default_factory=dict, description="versions of packages that the function may depend on; they are only recorded"
    )
    sys_path: list[str] = Field(
        default_factory=list,
        description="folders in which ranks look for modules, if these folders exist on their machines",
    )
    working_dir: str = Field(
        default="", description="the directory of the script that sent the function; scaling.working_dir may use it"
    )


def written(code: CodeRecord) -> dict[str, Any]:
    """Return the value of the field `function` of a spec. Raise SpecError if the function is too large."""
    assert code.blob is not None
    _check_size(len(code.blob), "/trainable")
    return {
        "pickle": base64.b64encode(code.blob).decode(),
        "python": code.python,
        "packages": dict(code.packages),
        "sys_path": list(code.sys_path),
        "working_dir": code.working_dir,
    }


def sent(data: Any) -> CodeRecord | None:
    """Return the function in a spec, or None if there is none or it is malformed, which the check of the spec reports.

    Raises:
        SpecError: the text is not base64, the function is too large, or another version of Python pickled it.
    """
    if not isinstance(data, Mapping) or "function" not in data:
        return None
    try:
        function = Function.model_validate(data["function"])
    except ValidationError:
        return None
    try:
        blob = base64.b64decode(function.pickle, validate=True)
    except (binascii.Error, ValueError) as error:
        raise SpecError(f"expected base64: {error}", "/function/pickle") from error
    _check_size(len(blob), "/function/pickle")
    _check_python(function.python, data.get("runtime_env"))
    content = hashlib.blake2b(blob, digest_size=16)
    for part in (function.python, *function.sys_path, function.working_dir):
        content.update(b"\0" + part.encode(errors="replace"))
    return CodeRecord(
        hash=content.hexdigest(),
        blob=blob,
        python=function.python,
        packages=function.packages,
        sys_path=function.sys_path,
        working_dir=function.working_dir,
    )


def _check_size(size: int, pointer: str) -> None:
    if size > MAX_BYTES:
        raise SpecError(
            f"the pickled function is {size / 1e6:.0f} MB, but a service takes at most {MAX_BYTES / 1e6:.0f} MB: pass large "
            "objects with tuner.with_parameters(train, data=...) and a storage that the workers can read",
            pointer,
        )


def _check_python(version: str, runtime_env: Any) -> None:
    if _is_other(version) and not _runs_elsewhere(runtime_env):
        raise SpecError(
            f"the function was pickled by Python {version}, and the workers of this service have Python "
            f"{platform.python_version()}, which may not unpickle it: use that version, or an entrypoint",
            "/function/python",
        )


def needs_other_python(spec: Spec, code: CodeRecord | None, verb: str = "continue") -> str | None:
    """Return why this Python cannot run the code that an experiment has by value, or None if it can.

    Functions that the code names by their module run in every version.

    verb: what the user wants to do with the experiment.
    """
    if code is None or not _is_other(code.python):
        return None
    by_rank = () if spec.executor == "agents" or _runs_elsewhere(spec.runtime_env) else (code.blob,)
    if not any(holds_functions(blob) for blob in (*by_rank, code.space_blob, code.parts_blob)):
        return None
    minor = ".".join(code.python.split(".")[:2])
    return (
        f"the experiment has functions that were pickled by Python {code.python}, and this is Python "
        f"{platform.python_version()}, which cannot run them: {verb} it with Python {minor}"
    )


def runnable_space(code: CodeRecord | None) -> bytes | None:
    """Return the pickled Python objects of the search space, or None if there are none or this Python cannot run them."""
    return _runnable(code, code.space_blob) if code is not None else None


def runnable_parts(code: CodeRecord | None) -> bytes | None:
    """Return the pickled scheduler, searcher and stopper, or None if there are none or this Python cannot run them."""
    return _runnable(code, code.parts_blob) if code is not None else None


def _runnable(code: CodeRecord, blob: bytes | None) -> bytes | None:
    return None if _is_other(code.python) and holds_functions(blob) else blob


def _is_other(version: str) -> bool:
    """Return whether a version of Python, if it is known, has another bytecode than this one."""
    return bool(version) and version.split(".")[:2] != platform.python_version().split(".")[:2]


def _runs_elsewhere(runtime_env: Any) -> bool:
    return isinstance(runtime_env, Mapping) and any(runtime_env.get(name) for name in ELSEWHERE)
