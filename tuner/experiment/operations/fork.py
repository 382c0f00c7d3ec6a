"""Create an experiment from the spec of another experiment, with changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tuner.errors import SpecError
from tuner.experiment.code.by_value import needs_other_python
from tuner.experiment.operations.earlier import with_earlier
from tuner.experiment.operations.usecases import checked_code, packed, parsed
from tuner.experiment.specs.changes import merge_patch
from tuner.experiment.specs.model import NAME_LENGTH
from tuner.experiment.specs.respace import points_inside
from tuner.experiment.specs.spec import written
from tuner.experiment.specs.stored import check_copied
from tuner.store import CodeRecord, ExperimentRecord, Store
from tuner.usercode.entrypoints import Checker

SUFFIX = "-fork"
"""The suffix of a fork's name, unless the changes set a name."""


def fork_experiment(
    store: Store,
    experiment: str,
    changes: Mapping[str, Any],
    checker: Checker,
    *,
    learn: bool = False,
    idempotency_key: str | None = None,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    storage: str | None = None,
) -> ExperimentRecord:
    """Create an experiment from the current spec of another experiment. A driver then starts it.

    The spec is checked as in `create_experiment`. If the original experiment has a function by value, the fork uses it too,
    unless the changes contain another function, an entrypoint or a command.

    Args:
        store: the database.
        experiment: the public id of the experiment to fork.
        changes: a JSON merge patch (RFC 7396) of the spec.
        checker: the checker that imports the entrypoint in a helper process.
        learn: True to add the original experiment to `warm_start`, so that the fork learns from its trials.
        idempotency_key: if this key was used before with the same arguments, return the experiment that was created with it,
            even if the original experiment has changed since then.
        prepare: a function that is applied to the changed spec before the check.
        storage: where local directories of the `runtime_env` are packed if the spec has no storage.

    Raises:
        NotFound: there is no such experiment.
        SpecError: the changed spec has mistakes. The error lists all of them.
        EntrypointError: the function cannot be imported.
        Conflict: the key was used before with other arguments, or the spec of the original has options of a newer version.
    """
    source = store.experiments.get(experiment)
    check_copied(source)
    request = _hash(source.public_id, changes, learn)
    asked = _changed(source, changes, learn)
    if idempotency_key is not None and isinstance(project := asked["project"], str):
        found = store.experiments.forked_with(idempotency_key, project, request)
        if found is not None:
            return found
    data = prepare(asked)
    spec, names, sent = parsed(data, _kept_function(store, source, data))
    spec = replace(spec, forked_from=source.public_id, fork_request=request)
    if idempotency_key is not None and (found := store.experiments.created_with(idempotency_key, spec)) is not None:
        return found
    code = checked_code(spec, names, sent, checker)
    if (why := needs_other_python(spec, code, "fork")) is not None:
        raise SpecError(f"{source.public_id} cannot be forked: {why}, or change the entrypoint", "/entrypoint")
    inherited = source.spec.warm_start if isinstance(source.spec.warm_start, list | tuple) else ()
    spec = packed(store, with_earlier(store, spec, inherited if "warm_start" not in changes else ()), storage)
    return store.experiments.create(spec, code=code, source="api", idempotency_key=idempotency_key)


def _hash(source: str, changes: Mapping[str, Any], learn: bool) -> str:
    """Return a hash of a request for a fork. source: the public id of the original experiment."""
    return hashlib.sha256(json.dumps([source, changes, learn], sort_keys=True).encode()).hexdigest()


def _changed(source: ExperimentRecord, changes: Mapping[str, Any], learn: bool) -> dict[str, Any]:
    base = {**written(source.spec), "points_to_evaluate": points_inside(source.spec)}
    if changes.get("function") is not None or changes.get("command") is not None:
        base.pop("entrypoint", None)
    data: dict[str, Any] = merge_patch(base, changes)
    data.setdefault("project", source.spec.project)
    if "name" not in changes:
        data["name"] = source.name[: NAME_LENGTH - len(SUFFIX)] + SUFFIX
    if learn:
        named = data.get("warm_start")
        others = named if isinstance(named, list) else []
        data["warm_start"] = list(dict.fromkeys([*others, source.public_id]))
    return data


def _kept_function(store: Store, source: ExperimentRecord, data: Mapping[str, Any]) -> CodeRecord | None:
    """Return the original experiment's function by value, or None if it has none or the changed spec has other code."""
    if source.code_hash is None or any(data.get(name) is not None for name in ("entrypoint", "function", "command")):
        return None
    code = store.code.get(source.code_hash)
    return None if code.blob is None else code
