"""Write the spec of an experiment so that it can be sent again, as a whole or with changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.domain.experiment import Spec
from tuner.experiment.code.bundles import bundle_in, is_bundle
from tuner.experiment.specs.respace import points_inside
from tuner.experiment.specs.spec import shortened
from tuner.store import ExperimentRecord

_PARTS: Mapping[str, str] = {"scheduler": "the scheduler", "search": "the searcher", "stop": "the stop condition"}


@dataclass(frozen=True, slots=True)
class Copy:
    """The spec of a new experiment that is like another one.

    spec: its JSON form, without the options that have their defaults.
    left_out: what the JSON form cannot contain, as (JSON pointer, explanation).
    """

    spec: dict[str, Any]
    left_out: list[tuple[str, str]]


def copy_of(record: ExperimentRecord) -> Copy:
    """Return the current spec of an experiment in the form in which `create_experiment` takes it."""
    spec = record.spec
    inside = points_inside(spec)
    outside = len(spec.points_to_evaluate) - len(inside)
    spec = replace(spec, points_to_evaluate=tuple(inside))
    found = {**shortened(spec), **_code(spec)}
    left_out = []
    if spec.entrypoint is None and spec.executor != "agents":
        left_out.append(
            (
                "/entrypoint",
                "the training function was sent as a pickle, from Python or for a command, and a spec cannot contain it: name "
                "an entrypoint or a command; or fork the experiment, since a fork keeps the function",
            )
        )
    left_out += [
        (f"/{name.replace('.', '/')}", "this version of tuner does not know this option") for name in record.unknown
    ]
    if outside:
        lie = "1 point lies" if outside == 1 else f"{outside} points lie"
        left_out.append(("/points_to_evaluate", f"{lie} outside the search space, which a user has changed"))
    for name, what in _PARTS.items():
        part = found.get(name, {})
        if part.get("type") == "python":
            del found[name]
            shown = f", {part['repr']}," if part.get("repr") else ""
            left_out.append(
                (
                    f"/{name}",
                    f"{what} is a Python object{shown} which a spec cannot contain: choose another one, or start the search "
                    "from Python",
                )
            )
    return Copy({name: value for name, value in found.items() if value is not None or name == "warm_start"}, left_out)


def _code(spec: Spec) -> dict[str, Any]:
    """Return the fields `bundle` and `runtime_env`. A service adds the bundle to the runtime environment itself."""
    bundle = bundle_in(spec.runtime_env)
    if bundle is None:
        return {}
    others = [module for module in spec.runtime_env["py_modules"] if not is_bundle(module)]
    rest = {name: value for name, value in spec.runtime_env.items() if name != "py_modules"}
    environment = {**rest, "py_modules": others} if others else rest
    return {"bundle": bundle, "runtime_env": environment or None}
