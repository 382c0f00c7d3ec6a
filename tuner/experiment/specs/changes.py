"""Check a change to an experiment, and return the fields that it changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, Field, ValidationError

from tuner.domain.experiment import Spec
from tuner.driver.assemble import runs_grid, why_no_repeats
from tuner.errors import SpecError
from tuner.experiment.specs.checks import check_name, check_repeats, check_strings, plain_json
from tuner.experiment.specs.messages import Errors, errors_in_words, in_words, pointer_to
from tuner.experiment.specs.model import MOST_TAGS, OPTIONS, SECTION, STRICT, Name, TagKey, TagValue
from tuner.experiment.specs.respace import respaced
from tuner.names import option_meant
from tuner.schedulers import FIFOScheduler, class_of, has_one_trial
from tuner.space import Space


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


def parse_changes(spec: Spec, data: Any, *, begun: bool = True, has_default: bool = False) -> dict[str, Any]:
    """Return the fields whose values differ from those in the spec, in the form that `Spec.amended` takes.

    begun: True if the experiment has trials already.
    has_default: True if the search ends after the default number of trials, because it was created without num_samples and
        without a time budget.

    Raises:
        SpecError: the changes have mistakes. The error lists all of them.
    """
    plain = plain_json(data)
    model = _validated(plain)
    given = model.model_fields_set
    errors: Errors = []
    check_strings(plain, errors)
    found = _given(spec, model, errors)
    if not errors and ("space" in given or "assume" in given):
        try:
            found |= respaced(spec, model.space or {}, model.assume or {}, begun=begun)
        except SpecError as error:
            errors += error.errors
    if not errors:
        errors += _removed_ends(spec.amended(found), found, has_default)
    if errors:
        raise SpecError(errors)
    differing = {
        name: value
        for name, value in found.items()
        if ("space" in found and name in ("former_spaces", "assumed")) or (value != getattr(spec, name) and value != {})
    }
    return differing | ({"tags": {}} if found.get("tags") == {} and spec.tags else {})


def _validated(plain: Any) -> ExperimentPatchModel:
    """Return the changes as a model. Raise SpecError with every field that is unknown, has a wrong type, or must not be null."""
    try:
        model = ExperimentPatchModel.model_validate(plain)
    except ValidationError as problem:
        known = list(ExperimentPatchModel.model_fields)
        errors: Errors = []
        for error in problem.errors():
            unknown = error["type"] == "extra_forbidden" and len(error["loc"]) == 1
            message = _no_such_change(str(error["loc"][0]), known) if unknown else in_words(error)
            errors.append((pointer_to(error["loc"]), message))
        raise SpecError(errors) from problem
    needed = ("name", "notes", "tags", "priority", "weight", "limits", "space", "assume")
    nulls = [name for name in needed if name in model.model_fields_set and getattr(model, name) is None]
    if nulls:
        raise SpecError([(f"/{name}", "must not be null") for name in nulls])
    return model


def _given(spec: Spec, model: ExperimentPatchModel, errors: Errors) -> dict[str, Any]:
    """Return the new values of the given fields, except those of the search space. Add the mistakes to `errors`."""
    given = model.model_fields_set
    found: dict[str, Any] = {}
    if model.name is not None:
        found["name"] = model.name
        if model.name != spec.name:  # an experiment of an earlier version may have such a name
            check_name(model.name, errors)
    found |= {name: getattr(model, name) for name in ("notes", "priority", "weight") if name in given}
    if "tags" in given:
        merged = {**spec.tags, **(model.tags or {})}
        found["tags"] = {key: value for key, value in merged.items() if value is not None}
        if len(found["tags"]) > MOST_TAGS:
            errors.append(("/tags", f"an experiment has at most {MOST_TAGS} tags"))
    if "num_samples" in given:
        found["num_samples"] = model.num_samples
    if "limits" in given:
        found["limits"] = _changed_limits(spec, model.limits or {}, errors)
    return found


def _no_such_change(name: str, known: Sequence[str]) -> str:
    """Say that a field cannot be changed. If a spec has no such field, its name may be misspelled, or name a limit."""
    if name not in OPTIONS[""]:
        meant = f"; did you mean limits.{name}?" if name in OPTIONS["limits"] else option_meant(name, known)
        if meant:
            return f"unknown field{meant}"
    return f"cannot be changed; only these fields can: {', '.join(known)}"


def _removed_ends(changed: Spec, found: Mapping[str, Any], has_default: bool) -> Errors:
    """Return an error if the changes remove the limit without which the search would never end."""
    removed = [name for name in ("time_budget_s", "budget") if found.get("limits", {}).get(name, 0) is None]
    if "num_samples" in found and changed.num_samples is None and changed.limits.time_budget_s is None:
        place, needed = "/num_samples", "limits.time_budget_s"
    elif removed and not has_default and _is_endless(changed):
        place = f"/limits/{removed[0]}"
        needed = "num_samples" if "time_budget_s" in removed else "num_samples or limits.time_budget_s"
    else:
        return []
    return [(place, f"null needs {needed}, because the experiment would never end without it")]


def _is_endless(spec: Spec) -> bool:
    """Return whether a search that was created with a time budget would never end."""
    limits = (spec.num_samples, spec.limits.time_budget_s, spec.limits.budget)
    limited = any(limit is not None for limit in limits)
    return not limited and not has_one_trial(spec.resolved.get("scheduler", spec.scheduler)) and not runs_grid(spec)


def _changed_limits(spec: Spec, given: Mapping[str, Any], errors: Errors) -> dict[str, Any]:
    """Return the limits whose values differ from those in the spec."""
    present = dataclasses.asdict(spec.limits)
    plain = {"limits": {**present, **given}}
    try:
        checked = SECTION["limits"].model_validate({"only": plain["limits"]})
    except ValidationError as problem:
        wrong = [{**error, "loc": ("limits", *error["loc"][1:])} for error in problem.errors()]
        errors.extend(errors_in_words(wrong, plain))
        return {}
    counted = spec.resolved.get("scheduler", spec.scheduler).get("type") == "freeze_thaw"
    if given.get("budget") is not None and not counted:
        errors.append(("/limits/budget", "only the freeze_thaw scheduler uses a budget"))
    made = dataclasses.asdict(cast("Any", checked).only)
    if made["repeats"] not in (0, present["repeats"]):
        check_repeats(made["repeats"], errors)
        scheduler = class_of(spec.resolved.get("scheduler", spec.scheduler)) or FIFOScheduler
        if (why := why_no_repeats(spec, Space.from_json(spec.space, opaque=True), scheduler)) is not None:
            errors.append(("/limits/repeats", why))
    return {name: made[name] for name in given if made[name] != present[name]}
