"""A stopper that calls a user's function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.schedulers.base import Fact, TrialEnded
from tuner.schedulers.functions import function_name, import_function, name_of, sealed
from tuner.schedulers.stoppers.base import ITERATION, TIME, CallsFunction, Stopper, next_report


class FunctionStopper(Stopper):
    """Ends a trial as soon as ``function(number, metrics)`` returns true.

    The function must depend on its arguments alone. `metrics` contains the metrics that the trial reported, and
    "training_iteration" and "time_total_s". JSON names the function as ``"module:name"``, so it must be at the top level of
    a module.

    If `outside` is true, the driver host calls the function in another process and passes the answers to `answered`.
    `decide` then only looks up the answers.
    """

    TYPE = "function"
    outside: bool = False

    def __init__(self, function: Callable[[int, dict[str, float]], bool] | str) -> None:
        self.function = import_function("function", function) if isinstance(function, str) else function
        if not callable(self.function):
            raise SpecError(f"expected a function, got {function!r}", "/function")
        _check_arguments(self.function)
        # trial -> (the segment and the iteration of the newest answered report, the answer)
        self._answers: dict[int, tuple[tuple[int, int], Mapping[str, Any]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the function separately, so that unpickling the stopper does not load it."""
        return {**self.__dict__, "function": sealed(self.function)}

    def functions(self) -> list[CallsFunction]:
        return [self]

    def arguments(self, trial: Trial) -> dict[str, float]:
        """Return the metrics with which the function is called for this trial."""
        return {ITERATION: float(trial.iteration), TIME: trial.running_s, **trial.last}

    def answered(self, number: int, segment: int, iteration: int, answer: Mapping[str, Any]) -> None:
        """Store the function's answer to one report of a trial.

        `answer` is ``{"stop": bool}``, or ``{"error", "args", "text", "traceback"}`` if the function raised an
        exception.
        """
        self._answers[number] = (segment, iteration), answer

    def record(self, fact: Fact, trials: Population) -> None:
        if isinstance(fact, TrialEnded):
            self._answers.pop(fact.trial, None)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, "function": function_name("function", self.function)}

    def milestone(self, trial: Trial) -> float | None:
        return next_report(trial)

    def decide(self, number: int, trials: Population) -> str | None:
        trial = trials[number]
        if not (self._answer(trial) if self.outside else self.function(number, self.arguments(trial))):
            return None
        return f"completed at iteration {trial.iteration}: the stop function {name_of(self.function)} returned true"

    def _answer(self, trial: Trial) -> bool:
        """Return the function's answer to the trial's newest report.

        The driver passes an answer to `answered` only if the answer ends the trial or is an error. An answer to a report that
        was never committed must not count for a later segment's report of the same iteration.
        """
        place, answer = self._answers.get(trial.number, ((0, 0), {}))
        if place != (len(trial.segments), trial.iteration):
            return False
        if "error" in answer:
            raise _error_of(answer)
        return bool(answer["stop"])


def _check_arguments(function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function that is written in C
        return
    try:
        signature.bind(0, {})
    except TypeError as error:
        wanted = "expected a function of two arguments, the number of a trial and the metrics of its report"
        raise SpecError(f"{wanted}; {name_of(function)}: {error}", "/function") from error


class _Elsewhere(Exception):
    """The traceback that an exception had in another process, shown as the cause of the exception in this process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _error_of(answer: Mapping[str, Any]) -> Exception:
    if answer["error"] == "KeyError":
        error: Exception = KeyError(*answer["args"])
    else:
        error = type(answer["error"], (Exception,), {})(answer["text"])
    if answer["traceback"]:
        error.__cause__ = _Elsewhere(answer["traceback"])
    return error
