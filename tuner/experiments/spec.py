"""From the JSON of a spec to a checked `Spec`. The REST call and `tuner.run` both come this way.

Every mistake is found at once and comes with a JSON pointer, what was expected, and what is near.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.domain.experiment import CheckpointPolicy, Limits, Objective, Scaling, Spec
from tuner.errors import SpecError
from tuner.names import elsewhere, option_meant, resource_meant
from tuner.trials.checkpoints.storage import is_relative

if TYPE_CHECKING:
    from tuner.driver.assemble import Parts

Errors = list[tuple[str, str]]
Mode = Literal["min", "max"]
# Names are printed in terminals, which obey control characters.
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Whole = Annotated[int, Field(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

ENTRYPOINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
MAX_SEED = 2**63 - 1


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ScalingSection(Section):
    """What one trial's worker group is made of."""

    num_workers: Annotated[int, Field(ge=1, le=100_000)] = 1
    use_gpu: bool = False
    resources_per_worker: dict[Name, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default_factory=dict, description="CPU, GPU and custom resources of a rank; fractions are allowed"
    )
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    backend: Literal["auto", "gloo", "nccl", "none"] = Field(default="auto", description="of torch.distributed")
    reuse_workers: bool = Field(default=True, description="hand worker processes on to the next trial")
    working_dir: Literal["trial", "caller"] = Field(
        default="trial", description="of the ranks: one of each trial's own, or that of the process that created this"
    )


class LimitsSection(Section):
    """What the whole experiment may use, and for how long one waits."""

    max_concurrent_trials: Whole | None = Field(default=None, description="null: as many as the cluster holds")
    time_budget_s: Seconds | None = Field(
        default=None, description="running time from the start of the first trial; pauses do not count"
    )
    budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="full trainings' worth (max_t each) to spend, all trials together; the freeze_thaw scheduler counts it",
    )
    max_failures: Annotated[int, Field(ge=0)] = Field(
        default=0, description="retries of a trial after errors of its code"
    )
    max_system_failures: Annotated[int, Field(ge=0)] = Field(
        default=10, description="retries after lost nodes and preemptions"
    )
    placement_timeout_s: Seconds = 600.0
    hang_timeout_s: Seconds | None = 1800.0
    stop_grace_s: Seconds = 10.0


class CheckpointSection(Section):
    """Where checkpoints go, when they are asked for, and which are kept."""

    storage: Name | None = Field(
        default=None, description="an absolute path or any pyarrow.fs URI; null: under the home"
    )
    frequency: Whole | None = Field(
        default=None, description="ask for one every n reports; null: when something needs one"
    )
    interval_s: Seconds | None = Field(default=60.0, description="ask for one this long after the last; null: never")
    at_end: bool = True
    keep_best: Annotated[int, Field(ge=0)] | None = Field(default=1, description="null: all")
    keep_last: Annotated[int, Field(ge=0)] | None = Field(default=1, description="null: all")


class SpecModel(Section):
    """One experiment: what is tried, what counts as better, who decides, and what may be used."""

    name: Name | None = Field(default=None, description="null: the name of the entrypoint's function")
    entrypoint: str | None = Field(
        default=None, description="module:function", examples=["tuner.examples.digits:train"]
    )
    space: dict[str, Any] = Field(
        description='parameter -> {"type": "loguniform", "lower": 1e-4, "upper": 0.1} and the like'
    )
    metric: Name | list[Name] = Field(description="the objective, or a list of objectives")
    mode: Mode | list[Mode] = Field(description="whether it is minimised or maximised; one for all, or one for each")
    num_samples: Whole | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    max_t: Whole | None = Field(
        default=None, description="a trial that gets there, in units of time_attr, is completed"
    )
    time_attr: Name = "training_iteration"
    search: dict[str, Any] = Field(default_factory=lambda: {"type": "auto"})
    scheduler: dict[str, Any] = Field(default_factory=lambda: {"type": "auto"})
    stop: dict[str, Any] = Field(default_factory=dict, description='{metric: threshold} or {"type": ...}')
    points_to_evaluate: list[dict[str, Any]] = Field(default_factory=list)
    scaling: ScalingSection = Field(default_factory=ScalingSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection)
    scope: Literal["all", "last"] = Field(default="all", description="which of a trial's values counts")
    runtime_env: dict[str, Any] = Field(default_factory=dict, description="as Ray's")


_SECTIONS: Mapping[str, type[Section]] = {
    "": SpecModel,
    "scaling": ScalingSection,
    "limits": LimitsSection,
    "checkpoint": CheckpointSection,
}
_WORDED = {
    "metric": "expected the name of a metric, or a list of names",
    "mode": 'expected "min" or "max", or a list with one of them for each metric',
}


def parse_spec(
    data: Mapping[str, Any], *, space_blob: bytes | None = None, code: str | None = None, parts: Parts | None = None
) -> Spec:
    """The spec that this JSON describes, with all defaults filled in.

    `code` is the hash of a trainable that travels by value, in place of an entrypoint; `space_blob` holds the choices
    that are no JSON values; `parts` are the live objects that the type "python" stands for. SpecError lists everything
    that is wrong.
    """
    plain = _plain_json(data)
    errors: Errors = []
    model = _shape(plain, errors)
    spec = None
    if model is not None:
        objectives = _objectives(model, errors)
        spec = _spec(model, objectives, plain["space"], code) if objectives else None
        _check_entrypoint(model, code, errors)
        _check_strings(plain, errors)
    _check_sections(plain, errors)
    _check_parts(plain, space_blob, parts, errors)
    resolved: Mapping[str, Any] = {}
    if spec is not None:
        resolved = _resolved(spec, space_blob, parts, errors)
    if errors or spec is None:
        raise SpecError(_in_order(errors, plain))
    return replace(spec, resolved=resolved)


def mistakes_beside(found: Errors, data: Mapping[str, Any], parts: Parts) -> Errors:
    """What is wrong with the other fields of `data`, where `found` was wrong with some before they could become JSON."""
    wrong = {_field(pointer) for pointer, _ in found}
    left_out: dict[str, Any] = {name: {"type": "auto"} for name in ("scheduler", "search") if name in wrong}
    if "space" in wrong:
        left_out["space"] = {"?": {"type": "?"}}  # wrong as well, so that nobody asks what fits it
    try:
        parse_spec({**data, **left_out}, code="", parts=parts)
    except SpecError as error:
        return [one for one in error.errors if _field(one[0]) not in wrong]
    return []


def _check_sections(plain: Mapping[str, Any], errors: Errors) -> None:
    """What no type says, of each section that is of the right form, whatever the others are."""
    with contextlib.suppress(ValidationError):
        _check_resources(ScalingSection.model_validate(plain.get("scaling", {})), errors)
    with contextlib.suppress(ValidationError):
        _check_storage(CheckpointSection.model_validate(plain.get("checkpoint", {})).storage, errors)
    if isinstance(environment := plain.get("runtime_env", {}), dict):
        _check_environment(environment, errors)


def _spec(model: SpecModel, objectives: tuple[Objective, ...], space: Mapping[str, Any], code: str | None) -> Spec:
    return Spec(
        name=model.name or _default_name(model.entrypoint),
        space=space,
        objectives=objectives,
        entrypoint=model.entrypoint,
        code=code,
        num_samples=model.num_samples,
        seed=model.seed,
        max_t=model.max_t,
        time_attr=model.time_attr,
        search=model.search,
        scheduler=model.scheduler,
        stop=model.stop,
        points_to_evaluate=tuple(model.points_to_evaluate),
        scaling=Scaling(**model.scaling.model_dump()),
        limits=Limits(**model.limits.model_dump()),
        checkpoint=CheckpointPolicy(**model.checkpoint.model_dump()),
        scope=model.scope,
        runtime_env=model.runtime_env,
    )


def _plain_json(data: Any) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise SpecError(f"expected an object, got {_shown(data)}")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(data, default=_mapping))
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"not JSON: {error}") from error
    return plain


def _mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{_shown(value)} is no JSON value")


def _shape(plain: Mapping[str, Any], errors: Errors) -> SpecModel | None:
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
        case "extra_forbidden":
            return f"unknown field{_near(str(where[-1]), '.'.join(str(part) for part in where[:-1]))}"
        case "int_type" | "int_from_float" | "int_parsing" | "int_parsing_size":
            return f"expected an integer, got {_shown(given)}"
        case "float_type" | "finite_number":
            return f"expected a number, got {_shown(given)}"
        case "bool_type":
            return f"expected true or false, got {_shown(given)}"
        case "string_type":
            return f"expected a string, got {_shown(given)}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"expected an object, got {_shown(given)}"
        case "list_type":
            return f"expected a list, got {_shown(given)}"
        case "string_pattern_mismatch":
            return "has control characters"
        case "string_unicode":
            return "has characters that are no text"
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
    known = list(_SECTIONS[section].model_fields) if section in _SECTIONS else []
    if section == "":
        inner = [f"{other}.{field}" for other, model in _SECTIONS.items() if other for field in model.model_fields]
        if found := next((path for path in inner if path.endswith(f".{name}")), None) or elsewhere(
            name, [*known, *inner]
        ):
            return f"; did you mean {found}?"
    if meant := option_meant(name, known):
        return meant
    if name in SpecModel.model_fields:
        return "; it belongs to the top level"
    return f"; there are {', '.join(known)}" if known else ""


def _objectives(model: SpecModel, errors: Errors) -> tuple[Objective, ...]:
    metrics = [model.metric] if isinstance(model.metric, str) else model.metric
    modes = [model.mode] * len(metrics) if isinstance(model.mode, str) else model.mode
    if not metrics:
        errors.append(("/metric", "must not be empty"))
    elif len(modes) != len(metrics):
        errors.append(("/mode", f"expected one mode for each of the {len(metrics)} metrics, got {len(modes)}"))
    if len(set(metrics)) != len(metrics):
        errors.append(("/metric", "the same metric twice"))
    return tuple(Objective(metric, mode) for metric, mode in zip(metrics, modes, strict=False))


def _check_entrypoint(model: SpecModel, code: str | None, errors: Errors) -> None:
    if model.entrypoint is None:
        if code is None:
            errors.append(("/entrypoint", 'is required; expected "module:function"'))
    elif not ENTRYPOINT.fullmatch(model.entrypoint):
        errors.append(("/entrypoint", f'expected "module:function", got {_shown(model.entrypoint)}'))


def _check_resources(scaling: ScalingSection, errors: Errors) -> None:
    amounts = scaling.resources_per_worker
    for name, amount in amounts.items():
        if (meant := resource_meant(name)) is not None:
            errors.append((f"/scaling/resources_per_worker/{escape(name)}", f"unknown resource; did you mean {meant}?"))
        elif amount > 1 and amount != int(amount):
            errors.append(
                (
                    f"/scaling/resources_per_worker/{escape(name)}",
                    f"amounts above 1 must be whole numbers, as Ray wants it, got {amount:g}",
                )
            )
    if scaling.use_gpu and amounts.get("GPU") == 0:
        errors.append(("/scaling/resources_per_worker/GPU", "use_gpu is true, so a rank needs some of a GPU"))
    if scaling.backend == "nccl" and not scaling.use_gpu and not amounts.get("GPU"):
        errors.append(("/scaling/backend", "nccl needs GPUs; set use_gpu"))


def _check_storage(storage: str | None, errors: Errors) -> None:
    if storage is not None and is_relative(storage):
        errors.append(
            (
                "/checkpoint/storage",
                "expected an absolute path, a URI such as s3://bucket/folder, or a path that begins with ~ or $NAME, got "
                f"{_shown(storage)}, which would be another directory in each process",
            )
        )


def _check_environment(runtime_env: Mapping[str, Any], errors: Errors) -> None:
    variables = runtime_env.get("env_vars", {})
    if not isinstance(variables, dict):
        errors.append(("/runtime_env/env_vars", f"expected an object of strings, got {_shown(variables)}"))
        return
    for name, value in variables.items():
        if not isinstance(value, str):
            errors.append((f"/runtime_env/env_vars/{escape(name)}", f"expected a string, got {_shown(value)}"))


def _check_strings(plain: Mapping[str, Any], errors: Errors) -> None:
    """No NUL and no half surrogates: no database and no file system keeps them."""
    stack: list[tuple[str, Any]] = [("", plain)]
    while stack:
        pointer, value = stack.pop()
        if isinstance(value, str):
            if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
                errors.append((pointer, "has characters that are no text"))
        elif isinstance(value, dict):
            stack.extend((f"{pointer}/{escape(key)}", item) for key, item in value.items())
            stack.extend((f"{pointer}/{escape(key)}", key) for key in value)
        elif isinstance(value, list):
            stack.extend((f"{pointer}/{at}", item) for at, item in enumerate(value))


def _check_parts(plain: Mapping[str, Any], space_blob: bytes | None, parts: Parts | None, errors: Errors) -> None:
    """The space, scheduler, searcher and stopper, each by whoever knows it, even where others are wrong."""
    from tuner import schedulers, search
    from tuner.schedulers import stoppers
    from tuner.space import Space

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
            errors.extend((f"/{name}/{escape(key)}", 'unknown option; "auto" takes none') for key in extra)
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
"""What stands in for a part that is wrong by itself, so that it can be told whether the others fit."""


def _resolved(spec: Spec, space_blob: bytes | None, parts: Parts | None, errors: Errors) -> Mapping[str, Any]:
    """What scheduler and search mean here; adds to `errors` where the parts do not fit the space or each other, which shows
    when they are put together as the driver will.
    """
    from tuner.driver.assemble import assemble
    from tuner.driver.parts import resolved_json
    from tuner.search.constraints import as_option
    from tuner.space import Space

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
    """Without repeats, in the order of the fields in the document."""
    place = {name: at for at, name in enumerate(plain)}
    unique = list(dict.fromkeys(errors))
    return sorted(unique, key=lambda error: place.get(_field(error[0]), len(place)))


def _field(pointer: str) -> str:
    """The top-level field that a pointer leads into; empty for the whole."""
    return pointer.split("/")[1] if pointer else ""


def _pointer(parts: Iterable[Any]) -> str:
    return "".join(f"/{escape(part)}" for part in parts if part != "[key]")


def escape(key: Any) -> str:
    """One part of a JSON pointer (RFC 6901)."""
    return str(key).replace("~", "~0").replace("/", "~1")


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
