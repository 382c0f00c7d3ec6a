"""Calling a training function: those that return or yield their result instead of reporting it are understood too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import GeneratorType
from typing import Any

from tuner.trials.compat.forms import with_metrics
from tuner.trials.compat.ray_compat import Finished
from tuner.trials.messages.launch import Launch
from tuner.trials.runtime.directories import explain_missing
from tuner.trials.training.metrics import flatten, numbers
from tuner.trials.training.session import Session


def call(function: Callable[[Any], Any], config: dict[str, Any], session: Session, launch: Launch) -> None:
    """Run it to its end.

    A generator's values are reports. What a function returns that has not reported anything is its only report; a bare
    number stands for the objective. Of a dict the numbers count. Anything else that is returned means nothing.
    """
    metric = launch.metric
    named: set[str] = set()
    try:
        result = with_metrics(function, [metric or "value"])(config)
        if isinstance(result, GeneratorType):
            for value in result:
                session.report(_metrics(value, metric, named))
        elif session.count == 0 and _is_result(result):
            session.as_value = True
            session.report(_metrics(result, metric, named))
    except Finished:
        return
    except FileNotFoundError as error:
        explain_missing(error, launch.code.working_dir)
        raise
    except AttributeError as error:
        if isinstance(error.obj, dict) and str(error.name).startswith("suggest_"):
            error.add_note("an objective of Optuna is told by its first argument: name it trial")
        raise


def _is_result(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    try:
        return not isinstance(value, bool) and bool(flatten({"value": value}))
    except TypeError:
        return False


def _metrics(value: Any, metric: str | None, named: set[str]) -> dict[str, float]:
    return numbers(value if isinstance(value, Mapping) else {metric or "value": value}, named, metric)
