"""Change the search space of an experiment: check the new space, and the values of new parameters in earlier trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner import schedulers, search
from tuner.domain.experiment import Spec
from tuner.driver.assemble import Parts, assemble
from tuner.errors import SpecError
from tuner.names import did_you_mean
from tuner.search.base import Searcher
from tuner.space import Space
from tuner.space.revisions import added, constants, objects
from tuner.space.words import escape

Errors = list[tuple[str, str]]

MOST_REVISIONS = 100
"""The maximum number of times that an experiment's space can be changed. The spec keeps all earlier spaces."""

_FORK = "fork the experiment instead (`tuner fork --set`, POST .../fork)"


def merged(space: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7396) to a space. A domain, which is an object with a type, replaces the whole old value."""
    if not isinstance(patch, Mapping) or isinstance(patch.get("type"), str) or patch.keys() == {"grid_search"}:
        return patch
    found = dict(space) if isinstance(space, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def respaced(spec: Spec, patch: Mapping[str, Any], assume: Mapping[str, Any], *, begun: bool) -> dict[str, Any]:
    """Return the changes, for `Spec.amended`, that give a spec a new search space; {} if the space stays the same.

    Args:
        spec: the current spec.
        patch: a merge patch of the spec's space, see `merged`.
        assume: path of a new parameter -> the value that it had in the trials so far. If the value is None, models do not use
            the results of these trials.
        begun: True if there are already trials. Then `assume` must contain every new parameter.

    Raises:
        SpecError: the space is wrong, or the scheduler or the searcher cannot use it. The error lists all mistakes.
    """
    data = merged(spec.space, patch)
    if data == spec.space:
        if assume:
            raise SpecError("is only allowed with a change of the space", "/assume")
        return {}
    before = Space.from_json(spec.space, opaque=True)
    if objects(data) - objects(spec.space):
        raise SpecError(
            "a Python object cannot be sent as JSON; only the objects of the present space may be used", "/space"
        )
    after = Space.from_json(data, opaque=True)
    errors = _mistakes(spec, before, after)
    assumed, more = _assumed(before, after, assume, begun)
    if errors or more:
        raise SpecError([*errors, *more])
    kept = {path: value for path, value in spec.assumed.items() if path in after and after[path].contains(value)}
    return {"space": data, "former_spaces": [*spec.former_spaces, spec.space], "assumed": {**kept, **assumed}}


def points_inside(spec: Spec) -> list[Mapping[str, Any]]:
    """Return the `points_to_evaluate` that lie in the current space. A change of the space may have excluded some."""
    if not spec.former_spaces:
        return list(spec.points_to_evaluate)
    space = Space.from_json(spec.space, opaque=True)
    return [point for point in spec.points_to_evaluate if _lies_in(space, point)]


def _lies_in(space: Space, point: Mapping[str, Any]) -> bool:
    try:
        space.check(point)
    except SpecError:
        return False
    return True


def _assumed(before: Space, after: Space, assume: Mapping[str, Any], begun: bool) -> tuple[dict[str, Any], Errors]:
    """Return a dict from the path of each new parameter to its assumed value, and the errors in `assume`."""
    new = {p.path: p for p in added(before, after)}
    found: dict[str, Any] = {}
    errors: Errors = []
    for path, value in assume.items():
        pointer = f"/assume/{escape(path)}"
        if path not in new:
            known = did_you_mean(path, new) or f"; the new parameters are: {', '.join(new) or 'none'}"
            errors.append((pointer, f"not a new parameter{known}"))
        elif value is not None:
            try:
                found[path] = _value(after, path, value)
            except (SpecError, ValueError):
                errors.append((pointer, f"{value!r} lies outside the domain of {path}"))
    fixed = constants(before)
    for path in new if begun else ():
        if path not in assume:
            message = f"{path} is new; pass the value that it had in the trials so far"
            message += ", or null to exclude their results from the search"
            if path in fixed:
                message = (
                    f"{path} was {fixed[path]!r} so far, which lies outside its domain; pass null to exclude the results of "
                    "those trials from the search"
                )
            errors.append((f"/assume/{escape(path)}", message))
    return found, errors


def _value(space: Space, path: str, value: Any) -> Any:
    """Return a user's value in the form of flat params. A category may be given by its label or its index."""
    p = space[path]
    if p.kind == "choice" and not p.plain and value in p.labels:
        return p.labels.index(value)
    if not p.contains(value):
        raise SpecError("is outside its domain", path)
    return p.normal_form(value)


def _mistakes(spec: Spec, before: Space, after: Space) -> Errors:
    """Return the reasons why the experiment cannot use the new space."""
    if len(spec.former_spaces) >= MOST_REVISIONS:
        return [("/space", f"has already been changed {MOST_REVISIONS} times, which is the maximum; {_FORK}")]
    if not len(after):
        return [("/space", "the new space has no parameters, so there is nothing to search")]
    if before.has_grid or after.has_grid:
        return [("/space", f"a grid is a list of trials that is fixed when the experiment is created; {_FORK}")]
    wanted: dict[str, Mapping[str, Any]] = {
        "scheduler": spec.resolved.get("scheduler") or spec.scheduler,
        "search": {"type": "random"}
        if "search" in spec.resolved and spec.resolved["search"] is None
        else spec.resolved.get("search") or spec.search,
    }
    for name, part in wanted.items():
        if part.get("type") == "python":
            what = "scheduler" if name == "scheduler" else "searcher"
            return [
                ("/space", f"the {what} is a Python object, so it is not known whether it can use a new space; {_FORK}")
            ]
    try:
        options = {key: value for key, value in wanted["search"].items() if key != "warm_start"}
        searcher = None if options["type"] == "auto" else search.from_json(options)
        if searcher is not None and not searcher.REVISES:
            return [("/space", f"{_why_not(searcher)}; {_FORK}")]
        scheduler = None if wanted["scheduler"]["type"] == "auto" else schedulers.from_json(wanted["scheduler"])
        if scheduler is not None and not scheduler.REVISES:
            return [("/space", f"the model of {scheduler.TYPE} knows only the first space; {_FORK}")]
        checked = replace(spec, stop={}, points_to_evaluate=(), earlier={}, limits=replace(spec.limits, budget=None))
        assemble(checked, after, Parts(scheduler=scheduler, searcher=searcher))
    except SpecError as error:
        return [("/space", f"{pointer.strip('/').replace('/', '.')}: {message}") for pointer, message in error.errors]
    return []


def _why_not(searcher: Searcher) -> str:
    match searcher.TYPE:
        case "grid":
            return "a grid is a list of trials that is fixed when the experiment is created"
        case "define_by_run":
            return "with define_by_run, the training code asks for parameters that the space does not list"
        case "ray":
            return "a searcher of Ray Tune cannot use a changed search space"
        case other:
            return f"the searcher {other} cannot use a changed search space"
