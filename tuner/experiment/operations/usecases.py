"""The operations on experiments, except the verbs. Routes, `tuner.run` and the command line call them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any, Literal

from tuner.domain.batch import Batch
from tuner.domain.experiment import SECTIONS, Spec
from tuner.domain.keys import trial_id
from tuner.domain.states import ExperimentState
from tuner.driver.assemble import Parts, runs_grid
from tuner.errors import Conflict, EntrypointError, ErrorCollector, NotFound, SpecError, Stale, WrongArgument
from tuner.experiment.analysis import lineage
from tuner.experiment.analysis.lineage import Link
from tuner.experiment.analysis.preview import Preview, preview
from tuner.experiment.code import bundles, by_value, scripts
from tuner.experiment.code.local_packages import Packages
from tuner.experiment.operations.earlier import ProjectFacts, with_earlier
from tuner.experiment.operations.verbs import check_verb
from tuner.experiment.specs.changes import parse_changes
from tuner.experiment.specs.spec import parse_spec
from tuner.experiment.specs.stored import check_changed
from tuner.names import did_you_mean, in_project
from tuner.plurals import counted
from tuner.schedulers.functions import functions_by_name
from tuner.space import Space
from tuner.space.revisions import in_words
from tuner.space.words import escape
from tuner.store import CodeRecord, Creation, ExperimentRecord, Store
from tuner.store.commands import Request
from tuner.trials.checkpoints import packages
from tuner.trials.groups.pools.local_pool import unfit
from tuner.usercode.entrypoints import Checker, EntrypointChecker, TakesLong
from tuner.usercode.folder import working_folder

#: if the runtime_env has any of these options, workers can have packages that this process does not have
_ELSEWHERE = ("pip", "uv", "conda", "container", "image_uri", "py_executable")

MOST_TRIES = 50
"""The number of attempts to make a change without If-Match while other requests change the same experiment."""


def create_experiment(
    store: Store,
    data: Mapping[str, Any],
    checker: EntrypointChecker,
    *,
    idempotency_key: str | None = None,
    storage: str | None = None,
) -> ExperimentRecord:
    """Check a spec, including its entrypoint, and store it as a new experiment, which a driver then starts.

    Take the same arguments and raise the same errors as `creation`.
    """
    found = creation(store, data, checker, idempotency_key=idempotency_key, storage=storage)
    if isinstance(found, ExperimentRecord):
        return found
    store.experiments.create_all([found])
    return store.experiments.created(found)


def creation(
    store: Store,
    data: Mapping[str, Any],
    checker: EntrypointChecker,
    *,
    idempotency_key: str | None = None,
    storage: str | None = None,
    facts: ProjectFacts | None = None,
) -> Creation | ExperimentRecord:
    """Check a spec, including its entrypoint, and return the `Creation` that stores it as a new experiment.

    A function by value in the spec is stored without unpickling it; only ranks unpickle it.

    If the `idempotency_key` was used before with the same spec, return the experiment that was created with it. The entrypoint
    is not checked again, because its file may have been changed or deleted.

    Local directories of the `runtime_env` are packed into the spec's storage, or `storage` if it has none.

    If `data` has no `warm_start`, the spec takes that of its project's settings. A `warm_start` of None means none.

    facts: what was already read for experiments that are created with this one. If given, raise TakesLong instead of importing a
        function or learning from the earlier experiments of the project.

    Raises:
        SpecError: the spec has mistakes. The error lists all of them.
        EntrypointError: the function cannot be imported.
        Conflict: the key was used before with another spec.
    """
    checks: Checker = checker if facts is None else checker.remembered()
    spec, names, sent = parsed(data, checker=checks)
    if idempotency_key is not None and (found := store.experiments.created_with(idempotency_key, spec)) is not None:
        return found
    code = checked_code(spec, names, sent, checks)
    settings = (store.projects if facts is None else facts).settings
    default = None if "warm_start" in data else settings(spec.project).warm_start
    if facts is not None and default is not None:
        raise TakesLong
    spec = packed(store, with_earlier(store, spec, default=default, facts=facts), storage)
    return store.experiments.creation(spec, code=code, source="api", idempotency_key=idempotency_key)


def packed(store: Store, spec: Spec, storage: str | None) -> Spec:
    """Pack the local directories and files of the spec's `runtime_env`, so that all workers of the experiment get the same code.

    Ray takes local directories only for a whole job, and a driver host drives many experiments in one job.

    Raises:
        SpecError: a path does not exist, or cannot be read or stored, or the spec names a package that is being deleted.
    """
    if not spec.runtime_env:
        return spec
    stored = Packages(store)
    stored.check(spec.runtime_env)
    if storage is None or spec.executor == "agents" or not packages.any_local(spec.runtime_env):
        return spec
    try:
        environment = stored.ship(spec.runtime_env, spec.checkpoint.storage or storage)
    except OSError as error:
        raise SpecError(f"the local directories cannot be packed: {error}", "/runtime_env") from error
    return dataclasses.replace(spec, resolved={**spec.resolved, "runtime_env": environment})


def dry_run(
    data: Mapping[str, Any],
    checker: Checker,
    configurations: int = 5,
    seconds_per_iteration: float | None = None,
    store: Store | None = None,
) -> Preview:
    """Check a spec as `create_experiment` does, and return what the experiment would do. Nothing is stored.

    store: the database with the earlier experiments. Without it, `warm_start` is neither checked nor used.
    """
    spec, names, sent = parsed(data, checker=checker)
    checked_code(spec, names, sent, checker)
    if store is not None:
        default = None if "warm_start" in data else store.projects.settings(spec.project).warm_start
        spec = with_earlier(store, spec, default=default)
    with functions_by_name():
        return preview(spec, configurations, seconds_per_iteration)


def parsed(
    data: Mapping[str, Any], kept: CodeRecord | None = None, checker: Checker | None = None
) -> tuple[Spec, Container[str], CodeRecord | None]:
    """Return the spec, the names of the functions in it, and its training function if the function is sent by value.

    For a valid spec, nothing is imported. If the spec has mistakes, `checker` checks its entrypoint as well, so that the error
    lists all mistakes. `kept` is a stored function by value, for a spec that contains no function.
    """
    mistakes, code = ErrorCollector(), kept
    with mistakes:
        data, script = scripts.taken(data)
        code = by_value.sent(data) or script or kept
    with functions_by_name() as names, mistakes:
        spec = parse_spec(data, code=code.hash if code is not None else ("" if mistakes.found else None))
        if spec.executor == "local" and (reason := unfit(spec, sys.maxsize)):
            mistakes.found.append(("/executor", f"the local executor cannot run this: {reason}"))
    if mistakes.found and checker is not None:
        with mistakes:
            _check_entrypoint(data, mistakes.found, checker)
    mistakes.check()
    return spec, names, code


def _check_entrypoint(data: Any, found: Sequence[tuple[str, str]], checker: Checker) -> None:
    """Check the entrypoint of a spec that has the mistakes `found`. Raise EntrypointError if it cannot be imported."""
    known = {pointer.split("/")[1] for pointer, _ in found if pointer}
    if (
        not isinstance(data, Mapping)
        or known & {"entrypoint", "runtime_env", "function"}
        or data.get("executor") == "agents"
    ):
        return
    entrypoint, environment = data.get("entrypoint"), data.get("runtime_env") or {}
    if isinstance(entrypoint, str) and isinstance(environment, Mapping) and not differs(environment):
        checker.check(entrypoint, search_path(environment), environment.get("env_vars"))


def checked_code(spec: Spec, names: Container[str], sent: CodeRecord | None, checker: Checker) -> CodeRecord | None:
    """Check the functions that the spec names by importing them in a helper process. No user code runs in this process.

    Return the code to store with the experiment, or None if agents bring the code.
    """
    code = None if spec.executor == "agents" else sent or entrypoint_code(spec, checker)
    mistakes = ErrorCollector()
    for section in ("scheduler", "search", "stop"):
        for pointer, text in _strings(getattr(spec, section), f"/{section}"):
            if text in names:
                with mistakes:
                    checker.check_function(
                        text, code.sys_path if code else [], spec.runtime_env.get("env_vars"), pointer
                    )
    mistakes.check()
    return code


def _strings(value: Any, pointer: str) -> Iterator[tuple[str, str]]:
    """Yield the pointer and the value of every string in a JSON value."""
    if isinstance(value, str):
        yield pointer, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(inner, f"{pointer}/{escape(key)}")
    elif isinstance(value, Sequence):
        for at, inner in enumerate(value):
            yield from _strings(inner, f"{pointer}/{at}")


def create_from_python(
    store: Store,
    data: Mapping[str, Any],
    code: CodeRecord,
    parts: Parts,
    check: Callable[[Spec], None] | None = None,
) -> ExperimentRecord:
    """Create an experiment for a script that drives it itself.

    `code` has the training function, pickled by value. `parts` are objects that JSON cannot express. An entrypoint in `data` is
    checked as in `create_experiment`.

    check: a function that raises SpecError if the script cannot drive the experiment. In that case, nothing is stored.
    """
    is_by_value = data.get("entrypoint") is None
    spec = parse_spec(data, space_blob=code.space_blob, code=code.hash if is_by_value else None, parts=parts)
    if check is not None:
        check(spec)
    spec = with_earlier(store, spec)
    Packages(store).check(spec.runtime_env)
    if is_by_value:
        return store.experiments.create(spec, code=code, source="python")
    checker = EntrypointChecker()
    try:
        found = entrypoint_code(spec, checker)
    finally:
        checker.close()
    both = f"{found.hash}-{code.hash}"
    whole = dataclasses.replace(found, hash=both, space_blob=code.space_blob, parts_blob=code.parts_blob)
    return store.experiments.create(spec, code=whole, source="python")


def entrypoint_code(spec: Spec, checker: Checker) -> CodeRecord:
    """Return the record of a function that workers import, with the folders to search and a hash of the function's files.

    Raise EntrypointError if the function cannot be imported here, unless the workers' environment is different.
    """
    assert spec.entrypoint is not None
    paths = search_path(spec.runtime_env)
    try:
        content = checker.check(spec.entrypoint, paths, spec.runtime_env.get("env_vars")).hash
    except EntrypointError:
        if not differs(spec.runtime_env):
            raise
        text = json.dumps([spec.entrypoint, spec.runtime_env], sort_keys=True)
        content = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return CodeRecord(
        hash=content, python=python_version(), packages=dict(_packages()), sys_path=paths, working_dir=working_folder()
    )


@functools.cache
def _packages() -> Mapping[str, str]:
    """Return the versions of packages that training code depends on.

    They are cached, because reading them takes a millisecond.
    """
    found = {}
    for name in ("torch", "ray"):
        with contextlib.suppress(metadata.PackageNotFoundError):  # torch is an extra
            found[name] = metadata.version(name)
    return found


def search_path(runtime_env: Mapping[str, Any]) -> list[str]:
    """Return the folders to search for an entrypoint before the installed packages. The folders of runtime_env come first."""
    own = [runtime_env.get("working_dir"), *_list(runtime_env.get("py_modules"))]
    places = [bundles.unpacked(place) for place in own if isinstance(place, str)]
    folders = [str(Path(place).absolute()) for place in places if Path(place).is_dir()]
    modules = [str(Path(folder).parent) for folder in folders if (Path(folder) / "__init__.py").is_file()]
    return list(dict.fromkeys([*folders, *modules, working_folder()]))


def differs(runtime_env: Mapping[str, Any]) -> bool:
    """Return True if workers may be able to import modules that this process cannot import."""
    places = [runtime_env.get("working_dir"), *_list(runtime_env.get("py_modules"))]
    remote = any(isinstance(place, str) and not Path(bundles.unpacked(place)).is_dir() for place in places)
    return remote or any(runtime_env.get(name) for name in _ELSEWHERE)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# -- changes -----------------------------------------------------------------------------------------------------------


def amend_experiment(
    store: Store, experiment: str, data: Mapping[str, Any], *, revision: int | None = None
) -> ExperimentRecord:
    """Change the name, the notes, the tags, num_samples, the limits or the search space of an experiment, whatever its state.

    The driver learns of the changes from an event in the log.

    Args:
        store: the database.
        experiment: the public id of the experiment.
        data: the changes; see `ExperimentPatchModel`.
        revision: if given, the change is made only if the experiment is at this revision.

    Raises:
        NotFound: there is no such experiment.
        SpecError: the changes have mistakes. The error lists all of them.
        Conflict: the changes have a new space, but the experiment cannot continue, or a script drives it by ask and tell.
        Stale: the experiment is at another revision.
    """

    def amend(record: ExperimentRecord) -> None:
        begun, read = record.driver_epoch > 0, record.revision if revision is None else revision
        changes = parse_changes(record.spec, data, begun=begun, has_default=_has_default_samples(record))
        check_changed(record, changes)
        if "space" in changes:
            if record.source == "study":
                raise Conflict(
                    f"{record.public_id} is driven by ask and tell; change the space in the script that calls ask"
                )
            check_verb("continue", record)
        store.experiments.change(record.id, changes, revision=read, commands=_amendment(record.spec, changes))

    return _changed(store, experiment, amend, 1 if revision is not None else MOST_TRIES)


def _changed(store: Store, experiment: str, change: Callable[[ExperimentRecord], None], tries: int) -> ExperimentRecord:
    """Read an experiment and change it. If another request changed it in between, read and change it again."""
    while True:
        tries -= 1
        try:
            change(store.experiments.get(experiment))
        except Stale:
            if not tries:
                raise
        else:
            return store.experiments.get(experiment)


def continue_experiment(
    store: Store,
    experiment: str,
    num_samples: int | None = None,
    *,
    adopt: bool = False,
    idempotency_key: str | None = None,
) -> ExperimentRecord:
    """Let an experiment start more trials. An experiment that has ended runs again.

    Args:
        store: the database.
        experiment: the public id of the experiment.
        num_samples: the number of trials to add; for a grid, how many more times to run the grid. None adds no trials, and only
            finishes an experiment that failed or was cancelled before its last trial.
        adopt: True to hand the experiment over to the service if it has ended and a script created it. False: the caller
            drives the experiment.
        idempotency_key: if this key was used before for the same request, do nothing.

    Raises:
        NotFound: there is no such experiment.
        Conflict: the experiment is being cancelled, or can never run again, or the key was used before for another request.
    """
    request = Request.of(idempotency_key, ["continue", num_samples])

    def change(record: ExperimentRecord) -> None:
        if store.commands.sent_with(record.id, request):
            return
        check_verb("continue", record)
        changes: dict[str, Any] = {}
        if num_samples is not None:
            changes["num_samples"] = _samples_so_far(store, record) + num_samples
        more = f" with {counted(num_samples, 'more sample')}" if num_samples is not None else ""
        # An experiment that has not ended gets the command too, because it may end before its driver reads the request.
        commands = [*_amendment(record.spec, changes), ("continue", f"by a user{more}", {})]
        store.experiments.change(
            record.id, changes, revision=record.revision, commands=commands, adopt=adopt, request=request
        )

    return _changed(store, experiment, change, MOST_TRIES)


def _samples_so_far(store: Store, record: ExperimentRecord) -> int:
    """Return the num_samples that is in effect for an experiment so far."""
    if record.spec.num_samples is not None:
        return record.spec.num_samples
    if runs_grid(record.spec):
        return 1
    return store.log.count_samples(record.id)


def _has_default_samples(record: ExperimentRecord) -> bool:
    """Return whether the driver has set num_samples, because the spec had neither num_samples nor a time budget."""
    first = record.first_spec
    return first.num_samples is None and first.limits.time_budget_s is None and "num_samples" not in record.changes


def _amendment(spec: Spec, changes: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return a list with the command that tells a driver about the changes; an empty list if none concerns the driver."""
    told = {name: value for name, value in changes.items() if name not in ("name", "notes", "tags")}
    if not told:
        return []
    words = []
    if "space" in told:
        new = spec.amended(told)
        before, after = (Space.from_json(each.space, opaque=True) for each in (spec, new))
        words.append(f"the search space (revision {new.space_revision}): {in_words(before, after, new.assumed)}")
    for name, value in told.items():
        if name in ("space", "former_spaces", "assumed"):
            continue
        old = getattr(spec, name)
        pairs = [(f"{name}.{key}", getattr(old, key), new) for key, new in value.items()] if name in SECTIONS else []
        words += [f"{what} from {before} to {after}" for what, before, after in pairs or [(name, old, value)]]
    return [("amend", f"a user changed {', '.join(words)}", told)]


def archive_experiment(store: Store, experiment: str, archived: bool) -> ExperimentRecord:
    """Hide an ended experiment from lists, or show it in lists again. No data are deleted."""
    record = store.experiments.get(experiment)
    if archived and not record.state.ended:
        raise Conflict(f"{experiment} is {record.state} and cannot be archived before it has ended")
    if archived != (record.archived_at is not None):
        store.experiments.archive(record.id, archived)
    return store.experiments.get(experiment)


# -- ids and names ------------------------------------------------------------------------------------------------------


def id_of(store: Store, called: str) -> str:
    """Return the id of an experiment or a trial. `called` is ``exp_...``, ``trl_...`` or the name of an experiment.

    Raises:
        NotFound: there is no such experiment or trial. The message suggests the nearest name.
        Conflict: several experiments have the name. The message lists their ids.
        WrongArgument: `called` is no text.
    """
    if not isinstance(called, str):
        raise WrongArgument(f"expected an experiment's id or name, got {called!r}")
    with contextlib.suppress(NotFound):
        return (store.trials.get(called) if called.startswith("trl_") else store.experiments.get(called)).public_id
    found = store.experiments.named(called)
    if len(found) > 1:
        shown = [f"{record.public_id} ({record.state}, of {_day(record.created_at)})" for record in found[:MOST_SHOWN]]
        more = f" and {counted(len(found) - MOST_SHOWN, 'older one')}" if len(found) > MOST_SHOWN else ""
        raise Conflict(
            f"{len(found)} experiments have the name {called!r}; use an id (newest first): {', '.join(shown)}{more}"
        )
    if not found:
        names = store.experiments.newest_names(1000)
        what = "trial" if called.startswith("trl_") else "experiment"
        if names or store.project is not None:
            hint = in_project(store.project) + did_you_mean(called, names, chr(39))
        else:
            hint = "; the database has no experiments (see TUNER_HOME)"
        raise NotFound(f"no {what} {called!r}{hint}")
    return found[0].public_id


def found_for_agents(store: Store, called: str) -> ExperimentRecord:
    """Return the experiment with this id or name. If several have this name, return the only one that has not ended.

    Raises:
        NotFound: there is no such experiment.
        Conflict: the name does not say which of several experiments is meant.
    """
    try:
        return store.experiments.get(called)
    except NotFound:
        open_ones = [record for record in store.experiments.named(called) if not record.state.ended]
        return open_ones[0] if len(open_ones) == 1 else store.experiments.get(id_of(store, called))


def numbered(store: Store, experiment: str, number: int) -> str:
    """Return the id of the trial with this number. `experiment` is the public id of an experiment.

    Raise NotFound if there is no such trial. The message names the numbers that exist.
    """
    record = store.experiments.get(experiment)
    if not store.trials.numbered(record.id, [number]):
        check_number(record.name, number, sum(record.counts.values()))
    return trial_id(experiment, number)


def check_number(name: str, number: int, count: int) -> None:
    """Raise NotFound if an experiment with `count` trials has no trial with this number."""
    if not 0 <= number < count:
        present = (
            "it has only trial 0" if count == 1 else f"its trials are 0 to {count - 1}" if count else "it has no trials"
        )
        raise NotFound(f"the experiment {name!r} has no trial {number}; {present}")


MOST_SHOWN = 10


def _day(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")


def never_driven(store: Store, experiment: str, why: str) -> None:
    """Mark an experiment as failed if it never had a driver, so that no service runs it later."""
    record = store.experiments.get(experiment)
    if record.driver_epoch or record.state.ended:
        return
    now = time.time()
    epoch = store.drivers.claim(record.id, "nobody", 1.0, now)
    batch = Batch(log=[], state=ExperimentState.FAILED, summary={"error": why, "reason": "Ray could not be started"})
    store.drivers.commit(record.id, epoch, batch, now)
    store.drivers.release(record.id, epoch)


def next_step(record: ExperimentRecord) -> str:
    """Return what a user can do about an experiment whose script has ended."""
    what = "has not started: the script that created it" if not record.driver_epoch else "has no driver: its script"
    return (
        f"{record.public_id} ({record.name}) {what} has ended. `tuner resume {record.public_id}` continues it, and so does "
        "the resume button of the page; `tuner serve --adopt` continues all such experiments automatically"
    )


# -- lineage -----------------------------------------------------------------------------------------------------------


def trial_lineage(store: Store, trial: str, at: Literal["newest", "best"] = "newest") -> list[Link]:
    """Return the segments that led to a trial's weights, oldest first, or an empty list before its first segment.

    at: "newest" for its newest weights, "best" for those with which it reported its best value.
    """
    place = lineage.newest(store, trial) if at == "newest" else lineage.best_of_trial(store, trial)
    return lineage.lineage(place, lineage.stored(store, store.trials.get(trial).experiment)) if place else []


def schedule(store: Store, public_id: str, number: int | None = None) -> list[dict[str, Any]]:
    """Return the configurations that led to the weights of a trial, or to the best checkpoint of an experiment.

    `lineage.schedule` describes the items.

    Args:
        store: the database.
        public_id: ``trl_...``, ``exp_...``, or the name of an experiment.
        number: the number of a trial of that experiment. None for the best checkpoint.

    Raises:
        NotFound: there is no such trial or experiment.
    """
    public_id = id_of(store, public_id)
    if not public_id.startswith("exp_"):
        return lineage.schedule(trial_lineage(store, public_id))
    record = store.experiments.get(public_id)
    place = lineage.best(store, record) if number is None else lineage.newest(store, numbered(store, public_id, number))
    return lineage.schedule(lineage.lineage(place, lineage.stored(store, public_id))) if place else []
