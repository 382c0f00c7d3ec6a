"""Call a training function, including one that returns or yields metrics instead of reporting them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from numbers import Real
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from tuner.errors import WrongArgument, text_of
from tuner.trials.compat.forms import with_metrics
from tuner.trials.compat.ray_compat import Finished
from tuner.trials.messages.launch import Launch
from tuner.trials.runtime.function.directories import explain_missing
from tuner.trials.training.metrics import describe, flatten, numbers
from tuner.trials.training.session import Session


def call(function: Callable[[Any], Any], config: dict[str, Any], session: Session, launch: Launch) -> None:
    """Run the training function until it returns, and report the values that it yields or returns.

    Each value that a generator yields is reported. If the trial has no reports, including those of earlier segments, the
    function's return value is reported: a number is the value of the objective, and the numbers in a dict are metrics. If
    there are reports, the return value is ignored.

    Raises:
        WrongArgument: a value cannot be reported, or the only result of the trial is not a metric.
    """
    metric = launch.metric
    named: set[str] = set()
    reported_before = session.context.start_iteration > 0
    try:
        result = with_metrics(function, [metric or "value"])(config)
        if inspect.iscoroutine(result) or isinstance(result, AsyncGeneratorType):
            raise WrongArgument(
                f"the training function returned {describe(result)}, which nobody awaits: call asyncio.run in the function"
            )
        if isinstance(result, GeneratorType):
            with contextlib.closing(result):  # runs its `finally` blocks now, while the trial still lasts
                for value in result:
                    session.report(_metrics(value, metric, named))
        elif session.count == 0 and not reported_before and _is_result(result):
            session.as_value = True
            session.report_last(_metrics(result, metric, named))
        elif session.count == 0 and not reported_before and result is not None:
            raise WrongArgument(
                f"the training function made no report and returned {describe(result)}; expected a number, which is the "
                "objective, or a dict of numbers, or calls to tuner.report"
            )
        elif session.count and isinstance(result, Mapping):
            session.ignore_result(result)
    except Finished:
        return
    except FileNotFoundError as error:
        explain_missing(error)
        raise
    except TypeError as error:
        if text_of(error).startswith("report() got an unexpected keyword argument"):
            error.add_note("tuner.report takes the metrics as one dict: tuner.report({'loss': loss})")
        raise
    except AttributeError as error:
        if isinstance(error.obj, dict) and str(error.name).startswith("suggest_"):
            error.add_note("an Optuna objective is recognized by the name of its first argument, which must be trial")
        raise


def _is_result(value: Any) -> bool:
    if isinstance(value, Mapping | Real):
        return not isinstance(value, bool)
    try:
        return bool(flatten({"value": value}))
    except TypeError:
        return False


def _metrics(value: Any, metric: str | None, named: set[str]) -> dict[str, float]:
    return numbers(value if isinstance(value, Mapping) else {metric or "value": value}, named, metric)
