"""Decide about a trial after its report: the report may be unusable, or show that the trial has diverged or is done."""

from __future__ import annotations

import difflib
import math
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.decisions import Decision
from tuner.domain.experiment import Spec
from tuner.domain.segments import Failure
from tuner.domain.trial import Trial
from tuner.driver.core.rules.failures import all_fail, missing_metric, missing_metrics_message
from tuner.driver.core.rules.repeats import full
from tuner.driver.core.rules.words import names
from tuner.driver.core.state.state import State
from tuner.errors import text_of
from tuner.names import did_you_mean
from tuner.schedulers.shared.wording import reached_max_t


def after_report(experiment: State, event: e.Reported) -> list[Decision]:
    """Decide whether the trial that has just reported must fail, stop or complete."""
    trial = experiment.trials[event.trial]
    number, spec = trial.number, experiment.spec
    # A resize may be decided before its segment starts, and the segment then still makes a report.
    resizes = trial.next is not None and trial.next.cause == "resize"
    if trial.segments[-1].leaving and not resizes:
        return []
    if missing := [objective.metric for objective in spec.objectives if objective.metric not in trial.last]:
        return _without_objective(experiment, trial, missing, event)
    if trial.diverged:
        metric = spec.objective.metric
        why = f"stopped at iteration {trial.iteration}: {metric} is {event.metrics[metric]}"
        return [d.Stop(trial=number, reason=why)]
    if spec.time_attr in event.metrics and not math.isfinite(trial.t):
        message = f"the time attribute {spec.time_attr!r} must be a finite number, and this report has {trial.t}"
        failure = Failure(kind="spec", cause="metric", message=message, rank=0)
        return [d.Fail(trial=number, reason=failure.headline(number), failure=failure)]
    if math.isnan(trial.t):
        return missing_metric(experiment, trial, "the time attribute", [spec.time_attr], event.metrics)
    if (done := full(experiment, trial)) is not None:
        return [d.Complete(trial=number, reason=done)]
    if spec.max_t is not None and _is_full(spec, trial.t):
        return [d.Complete(trial=number, reason=reached_max_t(spec.time_attr, trial.t, spec.max_t))]
    return _ask_stopper(experiment, trial)


def unusable(
    experiment: State, trial: Trial, metrics: Mapping[str, float], last: bool, before: Collection[str] = ()
) -> str | None:
    """Return why a report of these metrics would fail the trial; None if it would not.

    Ask-and-tell searches raise an error with this reason.

    last: True if the trial ends with this report.
    before: the metrics of the reports that come before it and are not committed yet.
    """
    spec, known = experiment.spec, {*trial.last, *before, *metrics}
    if missing := [objective.metric for objective in spec.objectives if objective.metric not in known]:
        t = metrics.get(spec.time_attr, trial.iteration + 1 if spec.time_attr == "training_iteration" else trial.t)
        if last or _is_full(spec, t) or any(_resembles(name, other) for name in missing for other in metrics):
            return missing_metrics_message("the objective", missing, known)
    by_metric = spec.time_attr not in ("training_iteration", "time_total_s", *metrics)
    if by_metric and all(objective.metric in metrics for objective in spec.objectives):
        return missing_metrics_message("the time attribute", [spec.time_attr], metrics)
    return None


def missed_metrics(experiment: State, missed: Sequence[str], reported: Iterable[str]) -> Iterator[d.Note]:
    """Warn about metrics that `stop` or constraints use but no report has had yet: they may be misspelled, or come later."""
    known = sorted(reported)
    uses = {
        "stop uses": "the criterion has no effect until the metric is reported",
        "a constraint is about": "no trial counts as the best one until the metric is reported",
    }
    for (who, effect), by_stop in zip(uses.items(), (True, False), strict=True):
        if own := [name for name in missed if (name in experiment.used_by_stop) == by_stop]:
            meant = "".join(did_you_mean(name, known, "'") for name in own)
            if params := [name for name in own if name in experiment.spec.space]:
                meant = f"; {names(params)} is a parameter: report it as a metric too"
            what = f"{who} {names(own)}, which is not among the reported metrics: {names(known)}"
            yield d.Note(reason=f"{what} ({effect}){meant}", warning=True)


def _ask_stopper(experiment: State, trial: Trial) -> list[Decision]:
    """Complete the trial if `stop` ends it. Fail the experiment if `stop` is a user's function and raises.

    The function would raise again for every other trial, and under every other driver.
    """
    if experiment.stopper is None or trial.repeat_of is not None:
        return []
    try:
        reason = experiment.stopper.decide(trial.number, experiment.trials)
    except (Exception, SystemExit) as error:
        meant = did_you_mean(error.args[0], trial.last, "'") if isinstance(error, KeyError) and error.args else ""
        what = (
            f"stop raised {type(error).__name__}: {text_of(error)}; the metrics were {names(sorted(trial.last))}{meant}"
        )
        failure = Failure(kind="spec", cause="stop", message=what, traceback=traceback.format_exc())
        return all_fail(experiment, trial, failure, "every trial is judged by the same function")
    return [d.Complete(trial=trial.number, reason=reason)] if reason else []


def _is_full(spec: Spec, t: float) -> bool:
    """Return whether a trial whose time_attr is `t` has had a full training."""
    return spec.max_t is not None and t >= spec.max_t


def _would_stop(experiment: State, trial: Trial) -> bool:
    """Return whether `stop` ends the trial now. Return False if `stop` needs a metric that has not been reported yet."""
    try:
        judge = experiment.stopper if trial.repeat_of is None else None
        return judge is not None and judge.decide(trial.number, experiment.trials) is not None
    except (Exception, SystemExit):
        return False


def _without_objective(experiment: State, trial: Trial, missing: Sequence[str], event: e.Reported) -> list[Decision]:
    """Decide about a trial that has not reported the objective yet. It continues unless it ends now or has misspelled the name.

    The objective may still come in a later report, for example if the training code validates only now and then.
    """
    misspelt = any(_resembles(name, other) for name in missing for other in event.metrics)
    ends = full(experiment, trial) is not None or _is_full(experiment.spec, trial.t)
    if ends or _would_stop(experiment, trial) or misspelt:
        return missing_metric(experiment, trial, "the objective", missing, event.metrics)
    if trial.reports > 1 or any(t.reports for t in experiment.trials if t is not trial):
        return []
    reported = f"the first report has {names(sorted(event.metrics))}"
    return [d.Note(reason=f"the objective {names(missing)} has not been reported yet: {reported}", warning=True)]


def _resembles(name: str, reported: str) -> bool:
    """Return whether `reported` is likely the metric that the user meant by `name`.

    If the objective is "loss", reports of "los" or "train_loss" look like a mistake. If the objective is "val_loss",
    reports of "loss" do not, because "val_loss" may well follow.
    """
    return name in reported or difflib.SequenceMatcher(None, name, reported).ratio() > 0.85
