"""Calling a training function: those that return or yield their result instead of reporting it are understood too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import GeneratorType
from typing import Any

from tuner.trials.directories import explain_missing
from tuner.trials.forms import with_metrics
from tuner.trials.launch import Launch
from tuner.trials.metrics import flatten
from tuner.trials.ray_compat import Finished
from tuner.trials.session import Session


def call(function: Callable[[Any], Any], config: dict[str, Any], session: Session, launch: Launch) -> None:
    """Run it to its end.

    A generator's values are reports. What a function returns that has not reported anything is its only report; a bare
    number stands for the objective. Anything else that is returned means nothing.
    """
    metric = launch.metric
    try:
        result = with_metrics(function, [metric or "value"])(config)
        if isinstance(result, GeneratorType):
            for value in result:
                session.report(_metrics(value, metric))
        elif session.count == 0 and result is not None:
            try:
                metrics = _metrics(result, metric)
            except TypeError:
                return
            session.report(metrics)
    except Finished:
        return
    except FileNotFoundError as error:
        explain_missing(error, launch.code.working_dir)
        raise


def _metrics(value: Any, metric: str | None) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, bool):
        raise TypeError("a boolean is not a result")
    return flatten({metric or "value": value})
