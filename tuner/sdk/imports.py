"""`tuner.import_optuna` and `tuner.import_ray`: import searches from other tools as experiments in this home."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.domain.experiment import Mode
from tuner.errors import NotFound, SpecError
from tuner.experiment.operations import imports
from tuner.experiment.operations.imports import ImportedTrial
from tuner.names import did_you_mean, keywords_explained
from tuner.plurals import counted
from tuner.sdk.result import Result
from tuner.sdk.run import read_result
from tuner.sdk.saved import database
from tuner.space import Space
from tuner.space import primitives as domains
from tuner.space.values import is_number, same
from tuner.space.words import escape, unescape

if TYPE_CHECKING:
    import optuna

__all__ = ["import_optuna", "import_ray"]

NOT_METRICS = frozenset(
    ("timestamp", "time_this_iter_s", "time_since_restore", "iterations_since_restore", "pid", "training_iteration")
)
"""Numbers that Ray Tune adds to each result and that are not training metrics."""
WIDE = 100.0
"""A guessed range is logarithmic if the ratio of the largest to the smallest value is at least this."""


@keywords_explained
def import_optuna(
    storage: str | os.PathLike[str] | optuna.Study,
    study_name: str | None = None,
    *,
    name: str | None = None,
    project: str = "default",
) -> Result:
    """Import an Optuna study into this home's database, as an experiment that has ended, and return its result.

    The experiment's page shows all trials and curves, and a new search over the same parameters can learn from it:
    ``tuner.run(..., warm_start=["NAME"])``. Trials that were pruned count as stopped. Trials that have not ended are left out.

    Args:
        storage: the URL of the storage, such as "sqlite:///optuna.db"; the path of a journal file; or a study.
        study_name: the name of the study. None: the only study in the storage.
        name: the name of the experiment. None: the name of the study.
        project: the project of the experiment.

    Raises:
        NotFound: there is no such study. The message lists the existing ones.
        SpecError: the study has no trial that has ended.
    """
    import optuna

    study = storage if isinstance(storage, optuna.Study) else _study(storage, study_name)
    metrics = study.metric_names or (
        ["value"] if len(study.directions) == 1 else [f"value_{i}" for i in range(len(study.directions))]
    )
    modes: list[Mode] = ["max" if d is optuna.study.StudyDirection.MAXIMIZE else "min" for d in study.directions]
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    space = Space.from_python(_optuna_space(done))
    trials = [_optuna_trial(trial, metrics, space) for trial in done]
    with database() as store:
        made = imports.write(
            store, name=name or study.study_name, project=project, space=space, metrics=metrics, modes=modes, trials=trials,
            origin=f"the Optuna study {study.study_name}", scope="last",
        )  # fmt: skip
        return read_result(store, made.public_id)


def _study(storage: str | os.PathLike[str], study_name: str | None) -> optuna.Study:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    where: Any = os.fspath(storage)
    if "://" not in where:
        if not os.path.exists(where):
            raise NotFound(
                f"expected the URL of a storage, such as sqlite:///optuna.db, or the path of a journal file, got {where!r}"
            )
        where = JournalStorage(JournalFileBackend(where))
    elif where.startswith("sqlite:///") and not os.path.exists(where.removeprefix("sqlite:///")):
        raise NotFound(f"there is no file {where.removeprefix('sqlite:///')}")  # Optuna would make an empty one
    names = optuna.get_all_study_names(where)
    if study_name is None:
        if len(names) != 1:
            raise SpecError(
                f"the storage has {len(names)} studies; expected the name of one: {', '.join(names)}", "/study_name"
            )
        study_name = names[0]
    if study_name not in names:
        raise NotFound(
            f"no study {study_name!r}{did_you_mean(study_name, names, chr(39))}; the storage has {', '.join(names)}"
        )
    return optuna.load_study(study_name=study_name, storage=where)


def _optuna_space(trials: Sequence[optuna.trial.FrozenTrial]) -> dict[str, Any]:
    """Return the parameters that all trials have. Each domain covers every value that any trial could have drawn.

    Parameters that only some trials have depend on the values of other parameters. They are left out of the space, but the
    trials keep their values.
    """
    import optuna

    found: dict[str, list[Any]] = {}
    for trial in trials:
        for name, distribution in trial.distributions.items():
            found.setdefault(name, []).append(distribution)
    space: dict[str, Any] = {}
    for name, several in found.items():
        if len(several) < len(trials) or len({type(distribution) for distribution in several}) > 1:
            continue
        first = several[0]
        if isinstance(first, optuna.distributions.CategoricalDistribution):
            choices = dict.fromkeys(_category(choice) for distribution in several for choice in distribution.choices)
            space[name] = domains.choice(list(choices))
            continue
        values = [trial.params[name] for trial in trials]  # users may have enqueued values outside the range
        low, high = min(*values, *(s.low for s in several)), max(*values, *(s.high for s in several))
        log = low > 0 and all(s.log for s in several)
        whole = isinstance(first, optuna.distributions.IntDistribution)
        if low == high:
            space[name] = low
        elif whole:
            space[name] = domains.lograndint(low, high + 1) if log else domains.randint(low, high + 1)
        else:
            space[name] = domains.loguniform(low, high) if log else domains.uniform(low, high)
    return space


def _category(value: Any) -> Any:
    """Return a category of Optuna. Every NaN becomes the same object, because no NaN equals another."""
    return math.nan if value != value else value


def _optuna_params(params: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Return the flat params of a trial, including those that the space does not have."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        path = escape(name)
        if path not in space:
            found[name] = value
            continue
        p = space[path]
        # A category that is not plain is stored as its index.
        by_index = p.kind == "choice" and not p.plain
        found[path] = next(i for i, c in enumerate(p.categories) if same(c, _category(value))) if by_index else value
    return found


def _optuna_trial(trial: optuna.trial.FrozenTrial, metrics: Sequence[str], space: Space) -> ImportedTrial:
    import optuna

    assert trial.datetime_start is not None
    began = trial.datetime_start.timestamp()
    ended = trial.datetime_complete.timestamp() if trial.datetime_complete is not None else began
    steps = sorted(trial.intermediate_values.items())
    reports: list[tuple[float, Mapping[str, float], int | None]] = [
        (began + (ended - began) * (at + 1) / (len(steps) + 1), {metrics[0]: float(value)}, step)
        for at, (step, value) in enumerate(steps)
    ]
    final = dict(zip(metrics, map(float, trial.values or ()), strict=False))
    if final and not (steps and len(metrics) == 1 and reports[-1][1] == final):
        reports.append((ended, final, None))
    states = optuna.trial.TrialState
    return ImportedTrial(
        params=_optuna_params(trial.params, space),
        began=began,
        ended=ended,
        reports=reports,
        outcome={states.PRUNED: "stopped", states.FAIL: "failed"}.get(trial.state, "completed"),  # type: ignore[arg-type]
        reason={states.PRUNED: "pruned by Optuna", states.FAIL: "failed in Optuna"}.get(
            trial.state, "complete in Optuna"
        ),
        notes=json.loads(json.dumps(trial.user_attrs, default=str), parse_constant=lambda name: str(float(name))),
    )


@keywords_explained
def import_ray(
    folder: str | os.PathLike[str],
    *,
    metric: str,
    mode: Mode,
    space: Mapping[str, Any] | None = None,
    name: str | None = None,
    project: str = "default",
) -> Result:
    """Import a folder of Ray Tune results into this home's database, as an experiment that has ended, and return its result.

    Only ``params.json``, ``result.json`` and ``error.txt`` of each trial are read; no pickles are loaded. A trial counts as
    failed if it has no result after its last error. Trials with neither a result nor an error are left out. Other trials count
    as stopped if they have not come as far as the longest trial.

    Args:
        folder: the folder of the experiment, such as ``~/ray_results/train_2026-01-31_12-00-00``.
        metric: the reported metric by which to compare trials.
        mode: "min" or "max".
        space: the search space. None: guess ranges that contain the values of all trials. Pass the space if a new search over a
            larger space should learn from this one.
        name: the name of the experiment. None: the name of the folder.
        project: the project of the experiment.

    Raises:
        NotFound: the folder has no Ray Tune results.
        SpecError: no trial has reported the metric (the message lists the reported metrics), or a trial's configuration
            is outside the space.
    """
    root = Path(folder).expanduser()
    found = [path.parent for path in sorted(root.glob("*/params.json")) if (path.parent / "result.json").exists()]
    if not found:
        raise NotFound(
            f"{root} has no folder with the files params.json and result.json that Ray Tune writes for a trial"
        )
    read = [
        (json.loads((at / "params.json").read_text(encoding="utf-8") or "{}"), _rows(at / "result.json"), at)
        for at in found
    ]
    read = [(params, rows, at) for params, rows, at in read if rows or (at / "error.txt").exists()]
    known = {key for _, rows, _ in read for row in rows for key in _metrics(row)}
    if not known:
        raise SpecError(f"no trial in {root} has reported a metric", "/metric")
    if metric not in known:
        raise SpecError(
            f"expected one of {', '.join(sorted(known))}, got {metric!r}{did_you_mean(metric, known)}", "/metric"
        )
    read.sort(key=lambda one: one[1][0].get("timestamp", 0.0) if one[1] else _failed_at(one[2]))
    longest = max(_length(rows) for _, rows, _ in read)
    configs = [_flat(params, escape) for params, _, _ in read]
    built = Space.from_python(space if space is not None else _guessed(configs))
    if space is None:  # a guessed space leaves out what only some trials have
        common = [_nested({k: v for k, v in config.items() if k in built}) for config in configs]
        read = [(params, rows, at) for params, (_, rows, at) in zip(common, read, strict=True)]
    trials = [
        _ray_trial(_ray_params(built, params, config, at), rows, at, longest)
        for config, (params, rows, at) in zip(configs, read, strict=True)
    ]
    with database() as store:
        made = imports.write(
            store, name=name or root.resolve().name, project=project, space=built, metrics=[metric], modes=[mode],
            trials=trials, origin=f"Ray Tune's folder {root.resolve().name}", scope="all",
        )  # fmt: skip
        return read_result(store, made.public_id)


def _ray_params(space: Space, nested: Mapping[str, Any], flat: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the flat params of a trial, including those that the space does not have.

    Raise SpecError if a parameter of the space has no value, or a value outside its domain.
    """
    found = {path: value for path, value in flat.items() if path in space}
    # A category that is not plain is stored as its index.
    if any(p.kind == "choice" and not p.plain for p in space.parameters):
        top = {p.path.partition("/")[0] for p in space.parameters}
        found = space.check({name: value for name, value in nested.items() if escape(name) in top}, f"/{folder.name}")
    for p in space.parameters:
        above = p.condition
        active = above is None or (above[0] in found and space[above[0]].index(found[above[0]]) == above[1])
        if active and not (p.path in found and p.contains(found[p.path])):
            value = repr(found[p.path]) if p.path in found else "no value"
            raise SpecError(f"trial {folder.name} has {value}, which is not in the space", f"/space/{p.path}")
    inside = {path.partition("/")[0] for path in found if path not in flat}
    fixed = _flat(space.constants(), escape)  # the configuration of every trial has them
    beside = {
        k: v
        for k, v in flat.items()
        if k.partition("/")[0] not in inside and _is_plain(v) and not (k in fixed and same(v, fixed[k]))
    }
    return beside | found


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the results of a trial. Leave out a last line that is incomplete because Ray was killed."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def _metrics(row: Mapping[str, Any]) -> dict[str, float]:
    flat = _flat({name: value for name, value in row.items() if name not in ("config", "hostname")})
    return {k: float(v) for k, v in flat.items() if imports.finite(v) and k not in NOT_METRICS}


def _ray_trial(params: Mapping[str, Any], rows: Sequence[dict[str, Any]], folder: Path, longest: int) -> ImportedTrial:
    if rows:
        first = float(rows[0].get("timestamp", 0.0)) - float(rows[0].get("time_total_s", 0.0))
    else:
        first = _failed_at(folder)
    latest = [row for _, row in sorted(_by_iteration(rows).items())]
    reports = [(float(row.get("timestamp", first)), _metrics(row), None) for row in latest]
    errors = folder / "error.txt"
    told = errors.read_text(encoding="utf-8", errors="replace") if errors.exists() else None
    failed, early = told is not None and _has_failed(told, rows), _length(rows) < longest
    reason = told.strip().splitlines()[-1:] if told is not None else []
    return ImportedTrial(
        params=params,
        began=first,
        ended=reports[-1][0] if reports else first,
        reports=reports,
        outcome="failed" if failed else "stopped" if early else "completed",
        reason=(reason or ["failed"])[0]
        if failed
        else f"{'stopped' if early else 'done'} after {counted(len(reports), 'result')} in Ray Tune",
    )


def _by_iteration(rows: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the last result of each iteration. A trial that was retried may have several results of one iteration."""
    return {int(row.get("training_iteration", number)): row for number, row in enumerate(rows, 1)}


def _length(rows: Sequence[dict[str, Any]]) -> int:
    """Return how far a trial has come."""
    return max(_by_iteration(rows), default=0)


def _failures(errors: str) -> list[str]:
    """Return when a trial has failed, in the words of Ray, such as 2026-01-31_12-00-00. errors: the content of error.txt."""
    return re.findall(r"^Failure # \d+ \(occurred at ([-\d_]+)\)", errors, re.MULTILINE)


def _failed_at(folder: Path) -> float:
    """Return the time at which a trial without results has failed, in seconds since 1970."""
    errors = folder / "error.txt"
    for time in _failures(errors.read_text(encoding="utf-8", errors="replace"))[-1:]:
        with contextlib.suppress(ValueError):
            return datetime.datetime.strptime(time, "%Y-%m-%d_%H-%M-%S").astimezone().timestamp()
    return errors.stat().st_mtime


def _has_failed(errors: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if a trial has no result after its last error. If Ray has retried it with success, its errors remain."""
    times = _failures(errors)
    return not times or not rows or str(rows[-1].get("date", "")) <= times[-1]


def _guessed(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a space with guessed ranges that contains all configurations."""
    space: dict[str, Any] = {}
    for name in dict.fromkeys(name for config in configs for name in config):
        values = [config[name] for config in configs if name in config]
        if len(values) < len(configs):
            continue
        plain = all(map(_is_plain, values))
        several = list(dict.fromkeys(values) if plain else {json.dumps(value): value for value in values}.values())
        if len(several) == 1:
            space[name] = values[0]
        elif not plain or not all(is_number(v) and (isinstance(v, float) or abs(v) < 2**53) for v in values):
            space[name] = domains.choice(several)
        else:
            low, high = min(values), max(values)
            log = low > 0 and high / low >= WIDE
            if all(isinstance(value, int) for value in values):
                space[name] = domains.lograndint(low, high + 1) if log else domains.randint(low, high + 1)
            else:
                space[name] = domains.loguniform(low, high) if log else domains.uniform(low, high)
    return _nested(space)


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *folders, name = map(unescape, path.split("/"))
        at = nested
        for one in folders:
            at = at.setdefault(one, {})
        at[name] = value
    return nested


def _flat(config: Mapping[str, Any], written: Callable[[str], str] = str, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        path = f"{prefix}{written(name)}"
        found |= _flat(value, written, f"{path}/") if isinstance(value, dict) else {path: value}
    return found


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
