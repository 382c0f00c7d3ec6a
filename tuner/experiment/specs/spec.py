"""Check the JSON of a spec and return it as a `Spec`, for both REST and `tuner.run`.

All mistakes are reported at once, each with a JSON pointer, what was expected, and the nearest valid name.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError, WithJsonSchema, create_model
from pydantic_core import CoreSchema

from tuner import schedulers, search
from tuner.domain.experiment import PRINTABLE, SECTIONS, Mode, Objective, Scaling, Spec
from tuner.driver.assemble import Parts, assemble
from tuner.driver.parts import resolved_json
from tuner.errors import SpecError
from tuner.experiment.code.by_value import Function
from tuner.experiment.specs.respace import respaced
from tuner.names import elsewhere, option_meant, resource_meant
from tuner.schedulers import stoppers
from tuner.search.constraints import as_option
from tuner.space import Space
from tuner.trials.checkpoints.storage import is_relative

Errors = list[tuple[str, str]]
NAME_LENGTH = 200
Name = Annotated[str, Field(min_length=1, max_length=NAME_LENGTH, pattern=PRINTABLE)]

TagKey = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f-\x9f=]*$")]
TagValue = Annotated[str, Field(max_length=200, pattern=PRINTABLE)]
MOST_TAGS = 50

ENTRYPOINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
STRICT = ConfigDict(extra="forbid", strict=True)


class AsObject:
    """Annotates a dataclass that is an object in JSON. Without it, a strict model accepts only instances of the dataclass."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema: Any = handler(source)
        if schema["type"] == "definition-ref":
            schema = handler.resolve_ref_schema(schema)
        schema["strict"] = False
        return cast("CoreSchema", schema)


def _declared(kind: type) -> dict[str, Any]:
    """Return the options and sections that a domain dataclass declares, as fields of a pydantic model."""
    found: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for one in dataclasses.fields(kind):
        if one.name in SECTIONS:
            section = hints[one.name]
            found[one.name] = (
                Annotated[section, AsObject()],
                Field(default_factory=section, description=section.__doc__),
            )
        elif "description" in one.metadata:
            found[one.name] = (hints[one.name], Field(one.default, **one.metadata))
    return found


_COMMAND = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}, {"type": "null"}]}


class _Written(BaseModel):
    """The fields of a spec whose JSON form differs from that of `Spec`."""

    model_config = STRICT

    name: Name | None = Field(
        default=None, description="the name of the experiment; null: the name of the entrypoint's function"
    )
    entrypoint: str | None = Field(
        default=None, description="module:function", examples=["tuner.examples.digits:train"]
    )
    function: Function | None = Field(
        default=None,
        description="instead of an entrypoint: the function itself, as `tuner.run(..., address=...)` sends it",
    )
    command: Annotated[Any, WithJsonSchema(_COMMAND)] = Field(
        default=None,
        description="instead of an entrypoint: a script and its arguments, in which {lr} is the value of the parameter lr",
        examples=[["train.py", "--lr", "{lr}"]],
    )
    metric_pattern: str | None = Field(
        default=None,
        description="a regular expression that finds metrics in the output of a command",
        examples=["loss: (?P<loss>[0-9.]+)"],
    )
    bundle: str | None = Field(
        default=None,
        description="SHA-256 of a zip file of Python code that was uploaded to /bundles; the ranks can import its modules",
    )
    space: dict[str, Any] = Field(
        description='parameter -> {"type": "loguniform", "lower": 1e-4, "upper": 0.1} or another domain'
    )
    metric: Name | list[Name] = Field(description="the objective, or a list of objectives")
    mode: Mode | list[Mode] = Field(
        description="whether to minimise or maximise the metric; one for all metrics, or a list with one for each"
    )
    search: dict[str, Any] = Field(
        default_factory=lambda: {"type": "auto"}, description="the searcher, which chooses the configurations to try"
    )
    scheduler: dict[str, Any] = Field(
        default_factory=lambda: {"type": "auto"},
        description="the scheduler, which decides which trials continue and which stop early",
    )
    stop: dict[str, Any] = Field(
        default_factory=dict,
        description='when a trial is complete: {metric: threshold} or {"type": ..., option: value}',
        examples=[{"accuracy": 0.99}, {"type": "plateau", "metric": "loss"}],
    )
    points_to_evaluate: list[dict[str, Any]] = Field(
        default_factory=list,
        description="configurations to try first, each as a flat mapping",
        examples=[[{"lr": 0.1, "optimizer/momentum": 0.9}]],
    )
    runtime_env: dict[str, Any] = Field(default_factory=dict, description="Ray's runtime environment of the ranks")
    notes: str = Field(default="", max_length=100_000, description="notes in Markdown")
    tags: dict[TagKey, TagValue] = Field(
        default_factory=dict,
        max_length=MOST_TAGS,
        description="keys and values to find the experiment by",
        examples=[{"team": "vision"}],
    )


_DECLARED = _declared(Spec)
SpecModel = create_model(
    "SpecModel",
    __base__=_Written,
    __doc__="One experiment: the space, the objective, the scheduler and searcher, and the limits.",
    **_DECLARED,
)
"""A spec in its JSON form. The fields that it shares with `Spec` are declared in `Spec`."""

OPTIONS: Mapping[str, Sequence[str]] = {
    "": list(SpecModel.model_fields),
    **{name: [option.name for option in dataclasses.fields(kind)] for name, kind in SECTIONS.items()},
}
"""The names of the options of each section. "" is the top level."""

_SECTION: Mapping[str, type[BaseModel]] = {
    name: create_model(name, __config__=STRICT, only=cast("Any", (Annotated[kind, AsObject()], ...)))
    for name, kind in SECTIONS.items()
}
_WORDED = {
    "metric": "expected the name of a metric, or a list of names",
    "mode": 'expected "min" or "max", or a list with one of them for each metric',
}


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
    plain = _with_range(_with_types(_plain_json(data)), errors)
    model = _shape(plain, errors)
    spec = None
    if model is not None:
        objectives = _objectives(model, errors)
        spec = _spec(model, objectives, plain["space"], code) if objectives else None
        _check_entrypoint(model, code, errors)
        _check_strings(plain, errors)
        if spec is not None:
            _check_elastic(spec, errors)
    _check_sections(plain, errors)
    _check_parts(plain, space_blob, parts, errors)
    resolved: Mapping[str, Any] = {}
    if spec is not None:
        resolved = _resolved(spec, space_blob, parts, errors)
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


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7396) to a JSON value: merge objects, remove what is null, and replace any other value."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


class ExperimentPatchModel(BaseModel):
    """The fields of an experiment that may be changed at any time. Fields that are left out keep their values."""

    model_config = STRICT

    name: Name | None = Field(default=None, description="the new name", examples=["digits, wider"])
    notes: str | None = Field(default=None, max_length=100_000, description="notes in Markdown")
    tags: dict[TagKey, TagValue | None] | None = Field(
        default=None,
        description="tags to set; a tag with the value null is removed",
        examples=[{"team": "vision", "old": None}],
    )
    num_samples: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="trials to start in total, including those that have started; null: as many as the time budget allows",
    )
    priority: int | None = Field(default=None, ge=-1000, le=1000, description="the new priority", examples=[10])
    weight: float | None = Field(default=None, ge=0.001, le=1000, description="the new weight", examples=[2.0])
    limits: dict[str, Any] | None = Field(
        default=None,
        description="limits to replace; other limits keep their values; running ranks keep the old limits until they restart",
        examples=[{"max_concurrent_trials": 4, "time_budget_s": 7200}],
    )
    space: dict[str, Any] | None = Field(
        default=None,
        description="a JSON merge patch (RFC 7396) of the search space: null removes a parameter, and a domain replaces the "
        "parameter's old one. New trials are proposed in the new space; existing trials keep their configurations",
        examples=[{"lr": {"type": "loguniform", "lower": 0.001, "upper": 0.1}, "momentum": None}],
    )
    assume: dict[str, Any] | None = Field(
        default=None,
        description="path of a new parameter -> the value that it had in the trials so far; null excludes the results of "
        "those trials from the search",
        examples=[{"dropout": 0.0}],
    )


def parse_changes(spec: Spec, data: Any, *, begun: bool = True) -> dict[str, Any]:
    """Return the fields whose values differ from those in the spec, in the form that `Spec.amended` takes.

    begun: True if the experiment has trials already.

    Raises:
        SpecError: the changes have mistakes. The error lists all of them.
    """
    plain = _plain_json(data)
    errors: Errors = []
    found: dict[str, Any] = {}
    try:
        model = ExperimentPatchModel.model_validate(plain)
    except ValidationError as problem:
        known = list(ExperimentPatchModel.model_fields)
        for error in problem.errors():
            unknown = error["type"] == "extra_forbidden" and len(error["loc"]) == 1
            message = f"cannot be changed; only these fields can: {', '.join(known)}" if unknown else _message(error)
            errors.append((_pointer(error["loc"]), message))
        raise SpecError(errors) from problem
    given = model.model_fields_set
    for name in ("name", "notes", "tags", "priority", "weight", "limits", "space", "assume"):
        if name in given and getattr(model, name) is None:
            errors.append((f"/{name}", "must not be null"))
    if errors:
        raise SpecError(errors)
    if "name" in given:
        found["name"] = model.name
    for name in ("notes", "priority", "weight"):
        if name in given:
            found[name] = getattr(model, name)
    if "tags" in given:
        merged = {**spec.tags, **(model.tags or {})}
        found["tags"] = {key: value for key, value in merged.items() if value is not None}
        if len(found["tags"]) > MOST_TAGS:
            errors.append(("/tags", f"an experiment has at most {MOST_TAGS} tags"))
    if "num_samples" in given:
        found["num_samples"] = model.num_samples
    if "limits" in given:
        found["limits"] = _changed_limits(spec, model.limits or {}, errors)
    if "space" in given or "assume" in given:
        try:
            _check_strings({"space": model.space, "assume": model.assume}, errors)
            found |= respaced(spec, model.space or {}, model.assume or {}, begun=begun) if not errors else {}
        except SpecError as error:
            errors += error.errors
    whole = spec.amended(found) if not errors else spec
    if not errors and "num_samples" in found and whole.num_samples is None and whole.limits.time_budget_s is None:
        errors.append(
            ("/num_samples", "null needs limits.time_budget_s, because the experiment would never end without it")
        )
    if errors:
        raise SpecError(errors)
    return {
        name: value
        for name, value in found.items()
        if ("space" in found and name in ("former_spaces", "assumed")) or (value != getattr(spec, name) and value != {})
    } | ({"tags": {}} if found.get("tags") == {} and spec.tags else {})


def _changed_limits(spec: Spec, given: Mapping[str, Any], errors: Errors) -> dict[str, Any]:
    """Return the limits whose values differ from those in the spec."""
    present = dataclasses.asdict(spec.limits)
    plain = {"limits": {**present, **given}}
    try:
        checked = _SECTION["limits"].model_validate({"only": plain["limits"]})
    except ValidationError as problem:
        errors.extend((f"/limits{_pointer(error['loc'][1:])}", _limit_message(error)) for error in problem.errors())
        return {}
    counted = spec.resolved.get("scheduler", spec.scheduler).get("type") == "freeze_thaw"
    if given.get("budget") is not None and not counted:
        errors.append(("/limits/budget", "only the freeze_thaw scheduler counts full trainings"))
    made = dataclasses.asdict(cast("Any", checked).only)
    return {name: made[name] for name in given if made[name] != present[name]}


def _limit_message(error: Any) -> str:
    return _message({**error, "loc": ("limits", *error["loc"][1:])})


def mistakes_beside(found: Errors, data: Mapping[str, Any], parts: Parts) -> Errors:
    """Check `data`, and return the mistakes in fields that have no mistake in `found`."""
    wrong = {_field(pointer) for pointer, _ in found}
    left_out: dict[str, Any] = {name: {"type": "auto"} for name in ("scheduler", "search") if name in wrong}
    if "space" in wrong:
        left_out["space"] = {"?": {"type": "?"}}  # an invalid space, so that nothing is checked against the space
    try:
        parse_spec({**data, **left_out}, code="", parts=parts)
    except SpecError as error:
        return [one for one in error.errors if _field(one[0]) not in wrong]
    return []


def _check_sections(plain: Mapping[str, Any], errors: Errors) -> None:
    """Check each well-formed section for mistakes that types cannot express, even if other sections are malformed."""
    if (scaling := _section(plain, "scaling")) is not None:
        _check_resources(scaling, errors)
    if (checkpoint := _section(plain, "checkpoint")) is not None:
        _check_storage(checkpoint.storage, errors)
        _check_interval(checkpoint.interval_s, errors)
    if isinstance(environment := plain.get("runtime_env", {}), dict):
        _check_environment(environment, errors)


def _section(plain: Mapping[str, Any], name: str) -> Any:
    """Return a section as its dataclass, or None if it is malformed."""
    try:
        return cast("Any", _SECTION[name].model_validate({"only": plain.get(name, {})})).only
    except ValidationError:
        return None


def _spec(model: _Written, objectives: tuple[Objective, ...], space: Mapping[str, Any], code: str | None) -> Spec:
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
        **{name: getattr(model, name) for name in _DECLARED},
    )


def _plain_json(data: Any) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise SpecError(f"expected an object, got {_shown(data)}")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(data, default=_mapping))
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"not JSON: {error}") from error
    return plain


def _with_types(plain: dict[str, Any]) -> dict[str, Any]:
    """Replace a scheduler or searcher that is a name, such as "asha", with an object of this type."""
    named = {name: {"type": plain[name]} for name in ("scheduler", "search") if isinstance(plain.get(name), str)}
    return {**plain, **named}


def _with_range(plain: dict[str, Any], errors: Errors) -> dict[str, Any]:
    """Replace scaling.num_workers that is a range, such as {"min": 1, "max": 8}, with num_workers and max_workers."""
    scaling = plain.get("scaling")
    given = scaling.get("num_workers") if isinstance(scaling, dict) else None
    if not isinstance(scaling, dict) or not isinstance(given, dict):
        return plain
    if given.keys() != {"min", "max"}:
        errors.append(("/scaling/num_workers", f'expected an integer or {{"min": 1, "max": 8}}, got {_shown(given)}'))
        return {**plain, "scaling": {**scaling, "num_workers": 1}}
    if scaling.get("max_workers") is not None:
        errors.append(("/scaling/max_workers", "num_workers is a range, which has the largest number already"))
    return {**plain, "scaling": {**scaling, "num_workers": given["min"], "max_workers": given["max"]}}


def _mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{_shown(value)} is not a JSON value")


def _shape(plain: Mapping[str, Any], errors: Errors) -> _Written | None:
    try:
        return SpecModel.model_validate(plain)
    except ValidationError as problem:
        worded: set[str] = set()
        for error in problem.errors():
            where = error["loc"]
            first = str(where[0]) if where else ""
            if first in _WORDED and error["type"] != "missing":
                if first not in worded:
                    errors.append((f"/{first}", f"{_WORDED[first]}, got {_shown(plain[first])}"))
                worded.add(first)
            else:
                errors.append((_pointer(where), _message(error)))
        return None


def _message(error: Any) -> str:
    where, given, context = error["loc"], error.get("input"), error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "is required"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"unknown field{_near(str(where[-1]), '.'.join(str(part) for part in where[:-1]))}"
        case "int_type" | "int_from_float" | "int_parsing" | "int_parsing_size":
            return f"expected an integer, got {_shown(given)}"
        case "float_type" | "finite_number":
            return f"expected a number, got {_shown(given)}"
        case "bool_type":
            return f"expected true or false, got {_shown(given)}"
        case "string_type":
            return f"expected a string, got {_shown(given)}"
        case "dict_type" | "mapping_type" | "model_type" | "dataclass_type":
            return f"expected an object, got {_shown(given)}"
        case "list_type":
            return f"expected a list, got {_shown(given)}"
        case "string_pattern_mismatch":
            return "has control characters" if context["pattern"] == PRINTABLE else 'has control characters or "="'
        case "string_unicode":
            return "has characters that cannot be stored"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"is longer than {context['max_length']} characters"
        case "greater_than":
            return f"expected a number above {context['gt']:g}, got {_shown(given)}"
        case "greater_than_equal":
            return f"expected at least {context['ge']:g}, got {_shown(given)}"
        case "less_than_equal":
            return f"expected at most {context['le']}, got {_shown(given)}"
        case "literal_error":
            return f"expected {context['expected']}, got {_shown(given)}"
        case _:
            return f"{error['msg'][:1].lower()}{error['msg'][1:]}, got {_shown(given)}"


def _near(name: str, section: str) -> str:
    known = list(OPTIONS.get(section, []))
    if section == "":
        inner = [f"{other}.{option}" for other, options in OPTIONS.items() if other for option in options]
        if found := next((path for path in inner if path.endswith(f".{name}")), None) or elsewhere(
            name, [*known, *inner]
        ):
            return f"; did you mean {found}?"
    if meant := option_meant(name, known):
        return meant
    if name in OPTIONS[""]:
        return "; it belongs to the top level"
    return f"; there are {', '.join(known)}" if known else ""


def _objectives(model: _Written, errors: Errors) -> tuple[Objective, ...]:
    metrics = [model.metric] if isinstance(model.metric, str) else model.metric
    modes = [model.mode] * len(metrics) if isinstance(model.mode, str) else model.mode
    if not metrics:
        errors.append(("/metric", "must not be empty"))
    elif len(modes) != len(metrics):
        errors.append(("/mode", f"expected one mode for each of the {len(metrics)} metrics, got {len(modes)}"))
    if len(set(metrics)) != len(metrics):
        errors.append(("/metric", "the same metric twice"))
    return tuple(Objective(metric, mode) for metric, mode in zip(metrics, modes, strict=False))


def _check_entrypoint(model: _Written, code: str | None, errors: Errors) -> None:
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
        errors.append(("/entrypoint", f'expected "module:function", got {_shown(model.entrypoint)}'))


def _check_for_agents(model: _Written, code: str | None, errors: Errors) -> None:
    """Check a spec for agents, which bring their own code. The entrypoint in such a spec is a name that the agents know."""
    given = [name for name in ("function", "command", "runtime_env") if getattr(model, name)]
    if given or code:
        what = given[0] if given else "command"
        errors.append(("/executor", f"agents bring their own code: leave {what} out, or use another executor"))
    if model.entrypoint is not None and not re.match(PRINTABLE, model.entrypoint):
        errors.append(("/entrypoint", "must not have control characters"))


def _check_resources(scaling: Scaling, errors: Errors) -> None:
    amounts = scaling.resources_per_worker
    for name, amount in amounts.items():
        pointer = f"/scaling/resources_per_worker/{escape(name)}"
        if not name or not re.match(PRINTABLE, name):
            errors.append((pointer, "the name of a resource must not be empty or have control characters"))
        elif not math.isfinite(amount):
            errors.append((pointer, f"expected a number, got {_shown(amount)}"))
        elif amount < 0:
            errors.append((pointer, f"expected at least 0, got {amount:g}"))
        elif (meant := resource_meant(name)) is not None:
            errors.append((pointer, f"unknown resource; did you mean {meant}?"))
        elif amount > 1 and amount != int(amount):
            errors.append((pointer, f"above 1, Ray accepts only whole numbers, got {amount:g}"))
    if scaling.use_gpu and amounts.get("GPU") == 0:
        errors.append(
            ("/scaling/resources_per_worker/GPU", "use_gpu is true, so each rank needs a GPU or a fraction of one")
        )
    if scaling.backend == "nccl" and not scaling.use_gpu and not amounts.get("GPU"):
        errors.append(("/scaling/backend", "nccl needs GPUs; set use_gpu"))


def _check_elastic(spec: Spec, errors: Errors) -> None:
    """Check a range of ranks, and that everything else works with trials that change their number of ranks."""
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
    if storage is not None and is_relative(storage):
        errors.append(
            (
                "/checkpoint/storage",
                "expected an absolute path, a URI such as s3://bucket/folder, or a path that begins with ~ or $NAME, got "
                f"{_shown(storage)}, which would be a different directory in each process",
            )
        )


def _check_interval(interval_s: float | Literal["auto"] | None, errors: Errors) -> None:
    if isinstance(interval_s, float | int) and not 0 < interval_s < math.inf:
        errors.append(("/checkpoint/interval_s", f"expected a number of seconds above 0, got {interval_s:g}"))


def _check_environment(runtime_env: Mapping[str, Any], errors: Errors) -> None:
    variables = runtime_env.get("env_vars", {})
    if not isinstance(variables, dict):
        errors.append(("/runtime_env/env_vars", f"expected an object of strings, got {_shown(variables)}"))
        return
    for name, value in variables.items():
        if not isinstance(value, str):
            errors.append((f"/runtime_env/env_vars/{escape(name)}", f"expected a string, got {_shown(value)}"))


def _check_strings(plain: Mapping[str, Any], errors: Errors) -> None:
    """Check that no string contains NUL or unpaired surrogates, which cannot be stored."""
    stack: list[tuple[str, Any]] = [("", plain)]
    while stack:
        pointer, value = stack.pop()
        if isinstance(value, str):
            if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
                errors.append((pointer, "has characters that cannot be stored"))
        elif isinstance(value, dict):
            stack.extend((f"{pointer}/{escape(key)}", item) for key, item in value.items())
            stack.extend((f"{pointer}/{escape(key)}", key) for key in value)
        elif isinstance(value, list):
            stack.extend((f"{pointer}/{at}", item) for at, item in enumerate(value))


def _check_parts(plain: Mapping[str, Any], space_blob: bytes | None, parts: Parts | None, errors: Errors) -> None:
    """Check the space, the scheduler, the searcher and the stopper, each separately."""
    space = plain.get("space")
    if isinstance(space, dict):
        try:
            Space.from_json(space, space_blob)
        except SpecError as error:
            errors.extend(error.errors)
    for name, build in (("scheduler", schedulers.from_json), ("search", search.from_json)):
        part = plain.get(name)
        if parts is not None and isinstance(part, dict) and part.get("type") == "python":
            continue
        if not isinstance(part, dict) or part.get("type") == "auto":
            extra = [key for key in part if key != "type"] if isinstance(part, dict) else []
            for key in extra:
                beside = f"; {key} stands beside {name}, not in it" if key in _DECLARED else ""
                errors.append((f"/{name}/{escape(key)}", f'unknown option; "auto" takes none{beside}'))
            continue
        try:
            build(part, f"/{name}")
        except SpecError as error:
            errors.extend(error.errors)
    stop = plain.get("stop")
    if isinstance(stop, dict) and stop and not (parts is not None and stop.get("type") == "python"):
        try:
            stoppers.from_json(stop, "/stop")
        except SpecError as error:
            errors.extend(error.errors)


_NEUTRAL: Mapping[str, Mapping[str, Any]] = {
    "scheduler": {"type": "fifo"},
    "search": {"type": "random"},
    "stop": {},
}
"""Replacements for parts that have mistakes, so that the other parts can be checked."""


def _resolved(spec: Spec, space_blob: bytes | None, parts: Parts | None, errors: Errors) -> Mapping[str, Any]:
    """Return the JSON forms of the scheduler and the searcher, with "auto" and inherited options resolved.

    Assemble the parts as a driver does. If they do not fit the space or each other, add to `errors`.
    """
    wrong = {_field(pointer) for pointer, _ in errors}
    if wrong & {"space", "metric", "mode"}:
        return {}
    neutral: dict[str, Any] = {name: part for name, part in _NEUTRAL.items() if name in wrong}
    try:
        core = assemble(replace(spec, **neutral), Space.from_json(spec.space, space_blob), parts)
    except SpecError as error:
        errors += [one for one in error.errors if _field(one[0]) not in neutral]
        return {}
    resolved: dict[str, Any] = {
        "scheduler": resolved_json(core.scheduler),
        "search": None if core.scheduler.PROPOSES else resolved_json(core.searcher),
    }
    if found := core.searcher.metric_constraints():
        resolved["constraints"] = as_option(found)
    if (budget := core.scheduler.budget_words()) is not None:
        resolved["budget"] = budget
    return resolved


def _default_name(entrypoint: str | None) -> str:
    return entrypoint.replace(":", ".").split(".")[-1] if entrypoint else "experiment"


def _in_order(errors: Errors, plain: Mapping[str, Any]) -> Errors:
    """Return the errors without duplicates, in the order of the fields in the document."""
    place = {name: at for at, name in enumerate(plain)}
    unique = list(dict.fromkeys(errors))
    return sorted(unique, key=lambda error: place.get(_field(error[0]), len(place)))


def _field(pointer: str) -> str:
    """Return the top-level field that a pointer is in, or "" for a pointer to the whole document."""
    return pointer.split("/")[1] if pointer else ""


def _pointer(parts: Iterable[Any]) -> str:
    return "".join(f"/{escape(part)}" for part in parts if part != "[key]")


def escape(key: Any) -> str:
    """Return one part of a JSON pointer (RFC 6901)."""
    return str(key).replace("~", "~0").replace("/", "~1")


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
