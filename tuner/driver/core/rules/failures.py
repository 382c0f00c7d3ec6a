"""Decide about failures that the other trials of the experiment would have too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tuner.domain import decisions as d
from tuner.domain.decisions import Decision
from tuner.domain.segments import Failure
from tuner.domain.trial import Trial
from tuner.driver.core.rules.words import names
from tuner.driver.core.state.state import State
from tuner.names import did_you_mean


def all_fail(experiment: State, trial: Trial, failure: Failure, since: str) -> list[Decision]:
    """Fail this trial and the experiment, because all other trials would fail in the same way.

    since: why the other trials would fail too. The reasons of the decisions begin with it.
    """
    why, seen = failure.headline(trial.number), f"the failure of trial {trial.number} would repeat here"
    others = [t.number for t in experiment.trials if not t.state.ended and t is not trial]
    return [
        d.Fail(trial=trial.number, reason=why, failure=failure),
        *(d.Stop(trial=number, reason=f"{since}; {seen}") for number in others),
        d.Finish(reason=f"{since}; {why}", failed=True, fatal=trial.number),
    ]


def missing_metrics_message(what: str, missing: Sequence[str], metrics: Iterable[str]) -> str:
    """Return a message that says which metrics were expected but not reported. `what` says what they are for."""
    reported = sorted(metrics)
    meant = "".join(did_you_mean(name, reported, "'") for name in missing)
    return f"{what} {names(missing)} is not among the reported metrics: {names(reported)}{meant}"


def missing_metric(
    experiment: State, trial: Trial, what: str, missing: Sequence[str], metrics: Mapping[str, float]
) -> list[Decision]:
    """Fail a trial that lacks a required metric; also fail the experiment if no trial has ever reported it."""
    failure = Failure(kind="spec", cause="metric", message=missing_metrics_message(what, missing, metrics), rank=0)
    if any(name in t.last for name in missing for t in experiment.trials):
        return [d.Fail(trial=trial.number, reason=failure.headline(trial.number), failure=failure)]
    return all_fail(experiment, trial, failure, "every trial runs the same function")
