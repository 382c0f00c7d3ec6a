"""Results of earlier experiments, for a model-based searcher to learn from before its first trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.domain.experiment import Objective
from tuner.errors import SpecError
from tuner.plurals import counted
from tuner.space import Space
from tuner.space.values import is_number
from tuner.space.words import show


@dataclass(frozen=True, slots=True)
class Record:
    """One result of an earlier experiment."""

    params: Mapping[str, Any]  # flat
    values: tuple[float, ...]  # one per objective


def plain(option: Any) -> list[dict[str, Any]]:
    """Return the option `warm_start` as JSON: ``[{"params": {...}, "value": 0.9}, ...]``.

    Args:
        option: a list in the JSON form, a list of pairs (params, value), or an `optuna.Study`. With several objectives,
            each value is a list in the order of the objectives.

    Raises:
        SpecError: the option is wrong. The error's pointer begins with ``/warm_start``.
    """
    if hasattr(option, "get_trials") and hasattr(option, "directions"):
        option = _of_study(option)
    if not isinstance(option, list | tuple):
        raise SpecError(f"expected a list of (params, value), got {show(option)}", "/warm_start")
    out = []
    for i, item in enumerate(option):
        where = f"/warm_start/{i}"
        if isinstance(item, Mapping):
            if set(item) != {"params", "value"}:
                raise SpecError('expected {"params": {...}, "value": ...}', where)
            params, value = item["params"], item["value"]
        elif isinstance(item, list | tuple) and len(item) == 2:
            params, value = item
        else:
            raise SpecError(f"expected params and a value, got {show(item)}", where)
        if not isinstance(params, Mapping):
            raise SpecError(f"expected a dict of params, got {show(params)}", f"{where}/params")
        values = list(value) if isinstance(value, list | tuple) else [value]
        if not values or not all(is_number(v) for v in values):
            raise SpecError(f"expected a finite number, got {show(value)}", f"{where}/value")
        numbers = [float(v) for v in values]
        out.append({"params": dict(params), "value": numbers[0] if len(numbers) == 1 else numbers})
    return out


def modes_of(option: Any) -> tuple[str, ...]:
    """Return "min" or "max" for each objective of an `optuna.Study`; () for any other form of the option."""
    if not (hasattr(option, "get_trials") and hasattr(option, "directions")):
        return ()
    return tuple("max" if direction.name == "MAXIMIZE" else "min" for direction in option.directions)


def check_modes(modes: Sequence[str], objectives: Sequence[Objective]) -> None:
    """Raise SpecError if results from a study with these modes would be read the wrong way round. No modes fit any search."""
    for mode, objective in zip(modes, objectives, strict=False):
        if mode != objective.mode:
            words = {"min": "minimizes", "max": "maximizes"}
            message = (
                f"the study {words[mode]} its values, and this search {words[objective.mode]} {objective.metric}; pass a list of "
                f"(params, value) with values of {objective.metric} instead"
            )
            raise SpecError(message, "/search/warm_start")


def _of_study(study: Any) -> list[tuple[dict[str, Any], list[float]]]:
    """Return the finished trials of an `optuna.Study`, without those with an infinite value."""
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
    return [(dict(trial.params), list(trial.values)) for trial in done if all(map(is_number, trial.values))]


def fit(option: Sequence[Mapping[str, Any]], space: Space, objectives: int) -> list[Record]:
    """Return the records that fit this space. Records that do not fit are left out.

    A record does not fit if a value is outside its domain or an active parameter is missing.

    Raises:
        SpecError: no record fits, or a record has the wrong number of values.
    """
    records, reason = [], ""
    for i, item in enumerate(option):
        values = item["value"] if isinstance(item["value"], list) else [item["value"]]
        if len(values) != objectives:
            raise SpecError(
                f"expected {counted(objectives, 'value')}, got {len(values)}", f"/search/warm_start/{i}/value"
            )
        try:
            params = space.check(item["params"])
            missing = [p.path for p, on in zip(space.parameters, space.active(params), strict=True) if on]
            missing = [path for path in missing if path not in params]
            if missing:
                reason = reason or f"{', '.join(missing)} is missing"
                continue
        except SpecError as error:
            reason = reason or str(error)
            continue
        records.append(Record(params, tuple(values)))
    if option and not records:
        raise SpecError(f"no record fits this search space: {reason}", "/search/warm_start")
    return records
