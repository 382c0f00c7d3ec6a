"""`tuner simulate`: a search in virtual time."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tuner.cli.parameters import space_of
from tuner.cli.targets import imported
from tuner.driver.virtual import Simulation, simulate
from tuner.plurals import counted

Row = dict[str, Any]


def simulated(target: str, params: Sequence[str], options: Mapping[str, Any]) -> tuple[Row, Iterator[str]]:
    """Run a search in virtual time. Return its outcome as a dict for JSON and as lines of text.

    Args:
        target: ``FILE.py:FUNCTION`` or ``module:function``; the function is passed to `tuner.simulate` as `evaluate`.
        params: the parameters of the search space, such as ``lr=loguniform(1e-4, 1e-1)``.
        options: further arguments of `tuner.simulate`.

    Raises:
        SpecError: an argument is wrong.
    """
    evaluate = imported(target)
    given = {name: value for name, value in options.items() if value is not None}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = simulate(evaluate, space_of(params), **given)
    warned = list(dict.fromkeys(str(one.message) for one in caught))  # a function may warn at every report
    row = _row(result, str(options["metric"]), warned)
    return row, _lines(row)


def _row(result: Simulation, metric: str, warned: list[str]) -> Row:
    best = None
    if result.best_trial is not None:
        best = {
            "trial": result.best_trial.number,
            "metric": metric,
            "value": result.best_value,
            "config": result.best_config,
        }
    return {
        "state": str(result.state),
        "seconds": result.seconds,
        "reports": len(result.history),
        "trials": dict(Counter(str(trial.state) for trial in result.trials)),
        "best": best,
        "error": result.error,
        "warnings": warned,
    }


def _lines(row: Row) -> Iterator[str]:
    for warning in row["warnings"]:
        yield f"warning: {warning}"
    counts = ", ".join(f"{count} {state}" for state, count in row["trials"].items())
    yield f"{row['state']} after {counted(row['seconds'], 'virtual second', '.0f')} with {counted(row['reports'], 'report', ',')}"
    yield f"trials: {counts or 'none'}"
    if row["error"]:
        yield f"error: {row['error']}"
    if (best := row["best"]) is not None:
        yield f"best {best['metric']} {best['value']:.6g} by trial {best['trial']}: {best['config']}"
