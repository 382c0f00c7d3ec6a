"""Check the JSON of a spec and return it as a `Spec`, for both REST and `tuner.run`.

All mistakes are reported at once, each with a JSON pointer, what was expected, and the nearest valid name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from tuner import schedulers, search
from tuner.domain.experiment import SECTIONS, Objective, Spec
from tuner.driver.assemble import Parts, set_up
from tuner.driver.parts import resolved_json
from tuner.errors import SpecError
from tuner.experiment.specs.checks import (
    check_elastic,
    check_entrypoint,
    check_name,
    check_sections,
    check_strings,
    plain_and_text,
    plain_json,
)
from tuner.experiment.specs.messages import Errors, errors_in_words, field_of, shown
from tuner.experiment.specs.model import DECLARED, SpecModel, Written
from tuner.schedulers import stoppers
from tuner.search.constraints import as_option
from tuner.space import Space
from tuner.space.words import escape

_LEFT_OUT: Any = object()


def parse_spec(
    data: Mapping[str, Any], *, space_blob: bytes | None = None, code: str | None = None, parts: Parts | None = None
) -> Spec:
    """Return the spec that this JSON describes, with all defaults filled in.

    Args:
        data: the JSON form of the spec.
        space_blob: the pickled Python objects of the space, which JSON cannot express.
        code: the hash of a pickled training function that is used instead of an entrypoint.
        parts: the Python objects for which the spec has placeholders of the type "python".

    Raises:
        SpecError: the spec has mistakes. The error lists all of them.
    """
    errors: Errors = []
    given = parts is not None
    read, text = plain_and_text(data)
    plain = _with_range(_with_types(read), errors)
    model = _shape(plain, errors)
    spec = None
    if model is not None:
        objectives = _objectives(model, errors)
        spec = _spec(model, objectives, plain["space"], code) if objectives else None
        check_entrypoint(model, code, errors)
        check_strings(plain, errors, text)
        if spec is not None:
            check_elastic(spec, errors)
            check_name(spec.name, errors)
    check_sections(plain, model, errors)
    space, parts = _checked_parts(plain, space_blob, parts, errors)
    resolved: Mapping[str, Any] = {}
    if spec is not None and space is not None:
        resolved = _resolved(spec, space, parts, given, errors)
    if errors or spec is None:
        raise SpecError(_in_order(errors, plain))
    return replace(spec, resolved=resolved)


def written(spec: Spec) -> dict[str, Any]:
    """Return a spec in its JSON form, with all defaults filled in. A function by value is left out."""
    plain = spec.to_json()
    found = {name: plain[name] for name in SpecModel.model_fields if name in plain}
    metrics, modes = [each.metric for each in spec.objectives], [each.mode for each in spec.objectives]
    several = len(metrics) > 1
    return {**found, "metric": metrics if several else metrics[0], "mode": modes if several else modes[0]}


def shortened(spec: Spec) -> dict[str, Any]:
    """Return a spec in its JSON form, without the options that have their defaults. A function by value is left out.

    The seed and `warm_start` stay: a request without a `warm_start` takes that of its project.
    """
    plain = plain_json(written(spec))
    return {name: value for name, found in plain.items() if (value := _short(name, found)) is not _LEFT_OUT}


def _short(name: str, value: Any) -> Any:
    """Return the value of a field without the options that have their defaults, or `_LEFT_OUT` if none is left."""
    if name in SECTIONS:
        usual = plain_json(dataclasses.asdict(SECTIONS[name]()))
        return {key: given for key, given in value.items() if given != usual[key]} or _LEFT_OUT
    field = SpecModel.model_fields[name]
    if name in ("seed", "warm_start") or field.is_required():
        return value
    return _LEFT_OUT if value == field.get_default(call_default_factory=True) else value


def mistakes_beside(found: Errors, data: Mapping[str, Any], parts: Parts) -> Errors:
    """Check `data`, and return the mistakes in fields that have no mistake in `found`."""
    wrong = {field_of(pointer) for pointer, _ in found}
    left_out: dict[str, Any] = {name: {"type": "auto"} for name in ("scheduler", "search") if name in wrong}
    if "space" in wrong:
        left_out["space"] = {"?": {"type": "?"}}  # an invalid space, so that nothing is checked against the space
    try:
        parse_spec({**data, **left_out}, code="", parts=parts)
    except SpecError as error:
        return [one for one in error.errors if field_of(one[0]) not in wrong]
    return []


def _spec(model: Written, objectives: tuple[Objective, ...], space: Mapping[str, Any], code: str | None) -> Spec:
    return Spec(
        name=model.name or _default_name(model.entrypoint),
        space=space,
        objectives=objectives,
        entrypoint=model.entrypoint,
        code=code,
        search=model.search,
        scheduler=model.scheduler,
        stop=model.stop,
        points_to_evaluate=tuple(model.points_to_evaluate),
        runtime_env=model.runtime_env,
        notes=model.notes,
        tags=model.tags,
        **{name: getattr(model, name) for name in DECLARED},
    )


def _with_types(plain: dict[str, Any]) -> dict[str, Any]:
    """Replace a scheduler or searcher that is a name, such as "asha", with an object of this type."""
    named = {name: {"type": plain[name]} for name in ("scheduler", "search") if isinstance(plain.get(name), str)}
    return {**plain, **named}


def _with_range(plain: dict[str, Any], errors: Errors) -> dict[str, Any]:
    """Replace scaling.num_workers with num_workers and max_workers if it is a range, such as {"min": 1, "max": 8}."""
    scaling = plain.get("scaling")
    given = scaling.get("num_workers") if isinstance(scaling, dict) else None
    if not isinstance(scaling, dict) or not isinstance(given, dict):
        return plain
    if given.keys() != {"min", "max"}:
        errors.append(("/scaling/num_workers", f'expected an integer or {{"min": 1, "max": 8}}, got {shown(given)}'))
        return {**plain, "scaling": {**scaling, "num_workers": 1}}
    if scaling.get("max_workers") is not None:
        errors.append(("/scaling/max_workers", "num_workers is a range, which already contains the maximum"))
    return {**plain, "scaling": {**scaling, "num_workers": given["min"], "max_workers": given["max"]}}


def _shape(plain: Mapping[str, Any], errors: Errors) -> Written | None:
    try:
        return SpecModel.model_validate(plain)
    except ValidationError as problem:
        errors.extend(errors_in_words(problem.errors(), plain))
        return None


def _objectives(model: Written, errors: Errors) -> tuple[Objective, ...]:
    metrics = [model.metric] if isinstance(model.metric, str) else model.metric
    modes = [model.mode] * len(metrics) if isinstance(model.mode, str) else model.mode
    if not metrics:
        errors.append(("/metric", "must not be empty"))
    elif len(modes) != len(metrics):
        errors.append(("/mode", f"expected one mode for each of the {len(metrics)} metrics, got {len(modes)}"))
    if len(set(metrics)) != len(metrics):
        errors.append(("/metric", "the same metric twice"))
    return tuple(Objective(metric, mode) for metric, mode in zip(metrics, modes, strict=False))


def _checked_parts(
    plain: Mapping[str, Any], space_blob: bytes | None, parts: Parts | None, errors: Errors
) -> tuple[Space | None, Parts]:
    """Check the space, the scheduler, the searcher and the stopper, each separately.

    Return the space if it is valid, and the others as far as they are given or valid.
    """
    space = None
    found: dict[str, Any] = {}
    if isinstance(plain.get("space"), dict):
        try:
            space = Space.from_json(plain["space"], space_blob)
        except SpecError as error:
            errors.extend(error.errors)
    for name, build in (("scheduler", schedulers.from_json), ("search", search.from_json)):
        part = plain.get(name)
        if parts is not None and isinstance(part, dict) and part.get("type") == "python":
            continue
        if not isinstance(part, dict) or part.get("type") == "auto":
            extra = [key for key in part if key != "type"] if isinstance(part, dict) else []
            for key in extra:
                beside = f"; {key} belongs beside {name}, not in it" if key in DECLARED else ""
                errors.append((f"/{name}/{escape(key)}", f'unknown option; "auto" takes none{beside}'))
            continue
        try:
            found[name] = build(part, f"/{name}")
        except SpecError as error:
            errors.extend(error.errors)
    stop = plain.get("stop")
    if isinstance(stop, dict) and stop and not (parts is not None and stop.get("type") == "python"):
        try:
            found["stop"] = stoppers.from_json(stop, "/stop")
        except SpecError as error:
            errors.extend(error.errors)
    kept = parts or Parts()
    return space, Parts(
        scheduler=found.get("scheduler") if kept.scheduler is None else kept.scheduler,
        searcher=found.get("search") if kept.searcher is None else kept.searcher,
        stopper=found.get("stop") if kept.stopper is None else kept.stopper,
    )


_NEUTRAL: Mapping[str, Mapping[str, Any]] = {
    "scheduler": {"type": "fifo"},
    "search": {"type": "random"},
    "stop": {},
}
"""Replacements for parts that have mistakes, so that the other parts can be checked."""


def _resolved(spec: Spec, space: Space, parts: Parts, given: bool, errors: Errors) -> Mapping[str, Any]:
    """Return the JSON forms of the scheduler and the searcher, with "auto" and inherited options resolved.

    Set up the parts as a driver does. If they do not fit the space or each other, add to `errors`.

    given: whether a caller passed Python objects for some of the parts.
    """
    wrong = {field_of(pointer) for pointer, _ in errors}
    if wrong & {"space", "metric", "mode"}:
        return {}
    neutral: dict[str, Any] = {name: part for name, part in _NEUTRAL.items() if name in wrong}
    try:
        whole, scheduler, searcher, _, _ = set_up(replace(spec, **neutral) if neutral else spec, space, parts)
    except SpecError as error:
        errors += [one for one in error.errors if field_of(one[0]) not in neutral]
        return {}
    # Only new experiments are refused: a search of an earlier version continues with a part of the grid.
    if searcher.TYPE == "define_by_run" and (grids := [p.path for p in space.parameters if p.grid]):
        message = (
            f"define_by_run cannot run a grid ({', '.join(grids)}): use choice instead of grid_search; an objective that "
            "asks an Optuna trial for its values always uses define_by_run"
        )
        errors.append(("/search", message))
    resolved: dict[str, Any] = {
        "scheduler": resolved_json(scheduler, given=given),
        "search": None if scheduler.PROPOSES else resolved_json(searcher, given=given),
    }
    if space.has_grid and whole.num_samples != spec.num_samples:
        resolved["num_samples"] = whole.num_samples
    if found := searcher.metric_constraints():
        resolved["constraints"] = as_option(found)
        resolved["constraints_rank"] = True
    if (budget := scheduler.budget_words()) is not None:
        resolved["budget"] = budget
    return resolved


def _default_name(entrypoint: str | None) -> str:
    return entrypoint.replace(":", ".").split(".")[-1] if entrypoint else "experiment"


def _in_order(errors: Errors, plain: Mapping[str, Any]) -> Errors:
    """Return the errors without duplicates, in the order of the fields in the document."""
    place = {name: at for at, name in enumerate(plain)}
    unique = list(dict.fromkeys(errors))
    return sorted(unique, key=lambda error: place.get(field_of(error[0]), len(place)))
