"""Decide which configuration to evaluate again once a search has used up its trials or budget, and when to stop repeating."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.domain import decisions as d
from tuner.domain.states import TrialState
from tuner.domain.trial import Trial
from tuner.driver.core.state.state import State
from tuner.plurals import counted
from tuner.schedulers.shared.repeats import Estimate, Ranking
from tuner.schedulers.shared.wording import shown

SHARE = 0.2
"""With `repeats="auto"`, repeats take at most this share of the training that preceded them in the search."""
TIME_SHARE, MOST_TIME = SHARE / (1 + SHARE), 1 / 3
"""The share of a time budget that is reserved for repeats, and the maximum share, used if the leading trial took long."""
TIME_FOR_ONE = 1.2
"""The time that a repeat may take, as a multiple of the leading trial's time."""
LEAST_GAIN = 0.005
"""Repeats end once another one is expected to improve the choice by less than this share of the noise."""

LEAST_PAIRS = 2
"""The number of repeated runs that are needed to see that the noise is small. The results of fewer may be alike by chance."""


@dataclass(frozen=True, slots=True)
class Over:
    """Says why no repeat follows: `why` is the reason, "" if there is none; `note` says what the repeats have shown."""

    why: str = ""
    note: d.Note | None = None


def wanted(experiment: State) -> bool:
    """Return whether the experiment repeats its leading configurations."""
    return experiment.spec.limits.repeats != 0


def time_is_for_repeats(experiment: State) -> bool:
    """Return whether the rest of the time budget is reserved for repeats.

    Nothing is reserved if the leading trial has taken so long that no repeat would end in time.
    """
    budget, best = experiment.spec.limits.time_budget_s, experiment.leaderboard.best
    if not wanted(experiment) or budget is None or best is None:
        return False
    for_one = TIME_FOR_ONE * experiment.trials[best[1]].running_s
    return for_one <= MOST_TIME * budget and experiment.running_s >= budget - max(TIME_SHARE * budget, for_one)


def needless(experiment: State) -> list[Trial]:
    """Return the repeats that are still running although results are known not to differ from run to run."""
    running = experiment.repeats.running
    return running if running and experiment.repeats.equal is not None else []


def full(experiment: State, trial: Trial) -> str | None:
    """Return why a repeat is complete; None if the trial is not a repeat, or has not yet trained as long as its original."""
    end = end_of(experiment, trial)
    return (
        f"trained as long as trial {trial.repeat_of}, which it repeats" if end is not None and trial.t >= end else None
    )


def end_of(experiment: State, trial: Trial) -> float | None:
    """Return the value of time_attr at which a repeat is complete; None if the trial is not a repeat."""
    return None if trial.repeat_of is None else experiment.trials[trial.repeat_of].t


def next_repeat(experiment: State) -> d.Start | Over | None:
    """Return the next repeat, or why none follows. Return None to wait for the running repeats.

    The leader is repeated until it has two runs. Otherwise a lucky result that no repeat has put to the test could win. The
    first repeat runs alone, since it may show that results do not differ, unless the time is limited.
    """
    repeats = experiment.repeats
    if not wanted(experiment) or repeats.ranking is None:
        return Over()
    ranking, running = repeats.ranking, repeats.running
    if (why := _why_enough(experiment, ranking)) is None:
        if not ranking.pairs and running and experiment.spec.limits.time_budget_s is None:
            return None
        if not ranking.pairs and not running:
            estimate, because = ranking.leader, "it leads, and how much results differ from run to run is not known yet"
        else:
            estimate, gain = ranking.next()
            if gain < LEAST_GAIN * ranking.noise:
                if running:
                    return None
                if len(ranking.leader.runs.scores) == 1:
                    estimate = ranking.leader
                elif ranking.pairs >= LEAST_PAIRS:
                    why = f"another one is expected to improve the choice by only {shown(_rounded(gain))}"
            because = _because(experiment, ranking, estimate, gain)
        why = why or _why_too_much(experiment, estimate)
        if why is None:
            first = experiment.trials[estimate.runs.number]
            return d.Start(
                params=dict(first.params),
                number=len(experiment.trials),
                repeat_of=first.number,
                space_revision=first.space_revision,
                reason=f"repeats trial {first.number}: {because}",
            )
    return None if running else _over(experiment, ranking, why)


def _why_enough(experiment: State, ranking: Ranking) -> str | None:
    repeats, most = experiment.repeats, experiment.spec.limits.repeats
    if repeats.equal is not None:
        one, other = repeats.equal
        return f"results do not differ from run to run: trials {one} and {other} have the same configuration and the same results"
    if len(ranking.estimates) == 1:
        return "there is no other configuration that could be better"
    if most != "auto" and repeats.made >= most:
        return f"repeats is {most}"
    return None


def _why_too_much(experiment: State, estimate: Estimate) -> str | None:
    """Return why the limits on repeats and on time do not allow another repeat; None if they do."""
    budget, first = experiment.spec.limits.time_budget_s, experiment.trials[estimate.runs.number]
    if budget is not None and experiment.running_s + first.running_s > budget:
        return f"the rest of the time budget is too short for another one, which takes about {shown(_rounded(first.running_s))} s"
    if experiment.spec.limits.repeats != "auto":
        return None
    again = sum(end_of(experiment, trial) or 0.0 for trial in experiment.repeats.all)
    before = sum(trial.t for trial in experiment.trials.searched)
    if again + estimate.runs.length <= SHARE * before * (1 + 1e-9):
        return None
    return "they would take more than a fifth of the training before them"


def _because(experiment: State, ranking: Ranking, estimate: Estimate, gain: float) -> str:
    objective = experiment.spec.objective
    other = next((one for one in ranking.estimates if one is not estimate), None)
    said = (
        f"{objective.metric} {_value(experiment, estimate)} expected after {counted(len(estimate.runs.scores), 'run')}"
    )
    if other is not None:
        said += f", against {_value(experiment, other)} of trial {other.runs.number}"
    return f"{said}; another run is expected to improve the choice by {shown(_rounded(gain))}"


def _value(experiment: State, estimate: Estimate) -> str:
    return f"{shown(_rounded(experiment.spec.objective.score(estimate.mean), estimate.sd))} ± {shown(_rounded(estimate.sd))}"


def _over(experiment: State, ranking: Ranking, why: str | None) -> Over:
    """Return the end of the repeats, with a note on what they have shown."""
    repeats, objective = experiment.repeats, experiment.spec.objective
    if not repeats.made:
        return Over(f"no configuration is repeated: {why}" if why else "")
    leader, name = ranking.leader, objective.metric
    said = f"{counted(repeats.made, 'repeat')} of leading configurations"
    if repeats.equal is None and ranking.pairs:
        noise, pairs = shown(_rounded(ranking.noise)), counted(ranking.pairs, "repeated run")
        said += (
            f": {name} of the same configuration differs by about {noise} from run to run (standard deviation, {pairs})"
        )
        mean = shown(_rounded(objective.score(leader.runs.mean), leader.sd))
        runs = counted(len(leader.runs.scores), "run")
        said += f"; trial {leader.runs.number} leads with a mean of {mean} ± {shown(_rounded(leader.sd))} over {runs}"
    for number, bad in list(repeats.dropped.items())[:3]:
        failed = bad.state is TrialState.FAILED  # a trial that was retried keeps its failure
        how = "failed" if failed else "diverged" if bad.diverged else "violates the constraints"
        said += f"; trial {number} does not count, because its repeat, trial {bad.number}, {how}"
    said += f"; no more are made: {why}"
    return Over(counted(repeats.made, "repeat") + " made", d.Note(reason=said, trial=leader.runs.number))


def _rounded(value: float, step: float | None = None) -> float:
    """Round to two significant digits, or to the second digit of `step`."""
    size = abs(value if step is None else step)
    if size == 0 or size == float("inf"):
        return value
    digits = 1 - int(f"{size:e}".partition("e")[2])
    return round(value, digits)
