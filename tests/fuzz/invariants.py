"""Check what must hold after every step of any search, whatever the cluster and its users do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tuner.domain import events as e
from tuner.domain.states import TrialState
from tuner.driver.core import Core
from tuner.driver.core.state.retention import superfluous
from tuner.schedulers.freeze_thaw.scheduler import FreezeThawScheduler
from tuner.schedulers.hyperband import HyperBandScheduler
from tuner.schedulers.successive_halving import SuccessiveHalving
from tuner.store.writing.rows import CHANGING, trial_row

if TYPE_CHECKING:
    from tests.fuzz.world import World

_TRIAL_FIELDS = (
    "state", "iteration", "t", "checkpoint", "checkpoints", "inherited", "line_begins", "held", "paused_by_scheduler",
    "best_value", "best_iteration", "last", "last_value", "params", "reports", "failures", "system_failures", "reason", "values",
    "next", "tags", "searcher_state", "running_s", "space_revision",
)  # fmt: skip
_LEDGER_FIELDS = (
    "deleting",
    "_kept",
    "_by_users",
    "_owner",
    "_early",
    "_gone",
    "_unfinished",
    "late",
    "_borrowers",
    "_sources",
    "_started_from",
    "_best",
)
_CORE_FIELDS = (
    "state", "finishing", "error", "running_s", "now", "seq", "waiting_exploits", "exhausted", "failing", "unseen", "missed",
    "spec", "queue", "asked", "capped", "begun", "epoch", "slots",
)  # fmt: skip
_SEGMENT_FIELDS = (
    "ordinal", "cause", "params", "start_iteration", "source", "state", "leaving", "report_no", "iteration",
    "commanded", "outcome", "space_revision", "workers",
)  # fmt: skip
_of_trial, _of_segment = attrgetter(*_TRIAL_FIELDS), attrgetter(*_SEGMENT_FIELDS)


def counts(core: Core) -> tuple[int, int]:
    """Return how many segments are open, and how many trials were started that users did not ask for."""
    experiment = core.experiment
    opened = sum(trial.holds_resources for trial in core.trials)
    return opened, len(core.trials.searched) - (experiment.asked - len(experiment.queue))


def of_state(
    core: Core, scored: Mapping[int, Set[float]], meddled: Collection[int], before: tuple[int, int]
) -> Iterator[str]:
    """Yield what is wrong with the state of a search, in words.

    meddled: trials that a user has resumed. before: the counts of the last check, which a user may have forbidden since.
    """
    spec = core.spec
    opened, proposed = counts(core)
    if opened != core.experiment.segments.open:
        yield f"{opened} segments are open, and {core.experiment.segments.open} are counted"
    if opened > max(core.experiment.slots, before[0]):
        yield f"{opened} segments are open with {core.experiment.slots} slots"
    if spec.num_samples is not None and proposed > max(spec.num_samples, core.searcher.total() or 0, before[1]):
        yield f"{proposed} trials that nobody asked for, num_samples is {spec.num_samples}"
    for trial in core.trials:
        who = f"trial {trial.number}"
        if [segment.ordinal for segment in trial.segments] != list(range(1, len(trial.segments) + 1)):
            yield f"{who} has the segments {[segment.ordinal for segment in trial.segments]}"
        for segment in trial.segments[-1:]:
            if segment.start_iteration != (segment.source.step if segment.source is not None else 0):
                yield f"{who} began at {segment.start_iteration}, its checkpoint is {segment.source}"
            if trial.iteration != segment.iteration or segment.iteration != segment.start_iteration + segment.report_no:
                yield f"{who} is at {trial.iteration}, its segment at {segment.iteration} after {segment.report_no}"
        if any(segment.open for segment in trial.segments[:-1]):
            yield f"{who} has two open segments"
        if trial.state.ended and trial.next is not None:
            yield f"{who} has ended and has a planned segment"
        if trial.state is TrialState.RUNNING and not trial.holds_resources:
            yield f"{who} is running without a segment"
        if trial.reports != sum(segment.report_no for segment in trial.segments):
            yield f"{who} has {trial.reports} reports, its segments {[s.report_no for s in trial.segments]}"
        if trial.checkpoint is not None and not core.experiment.checkpoints.exists(trial.checkpoint.id):
            yield f"{who} would start from {trial.checkpoint.id}, which does not exist"
    segments = [trial.segments[-1] for trial in core.trials if trial.holds_resources]
    segments += [trial.next for trial in core.trials if trial.next is not None]
    sources = dict(Counter(segment.source.id for segment in segments if segment.source is not None))
    if sources != (kept := core.experiment.checkpoints._started_from):
        yield f"open and planned segments start from {sources}, and {kept} are kept for them"
    yield from _of_sizes(core)
    waiting = set(core.experiment.waiting_exploits)
    if odd := [n for n in waiting if not (core.trials[n].state is TrialState.PAUSED and core.trials[n].held)]:
        yield f"trials {odd} wait for a donor without being held"
    yield from _of_scheduler(core, scored, meddled)


def _of_sizes(core: Core) -> Iterator[str]:
    """Check the number of ranks of each segment, and that all together are never more than the cluster holds."""
    scaling, segments = core.spec.scaling, core.experiment.segments
    for trial in core.trials:
        for segment in trial.segments:
            if not scaling.num_workers <= segment.workers <= scaling.most_workers:
                yield f"segment {trial.number}.{segment.ordinal} has {segment.workers} ranks"
    ranks = {trial.number: trial.segments[-1].workers for trial in core.trials if trial.holds_resources}
    if ranks != segments.holding:
        yield f"the open segments have {ranks} ranks, and {segments.holding} are counted"
    if planned := {trial.number for trial in core.trials if trial.next is not None} ^ segments.planned.keys():
        yield f"planned are {list(segments.planned)}, which is wrong about {planned}"
    held = core.experiment.sizes.held
    if scaling.elastic and held is not None and sum(ranks.values()) > held and len(ranks) > 1:
        yield f"{sum(ranks.values())} ranks are in use on a cluster of {held}"


def _of_scheduler(core: Core, scored: Mapping[int, Set[float]], meddled: Collection[int]) -> Iterator[str]:
    scheduler: Any = core.scheduler
    by_iteration = core.spec.time_attr == "training_iteration"
    if core.searcher.metric_constraints():
        return  # `Trial.values` leaves out reports beyond the constraints, which count for the scheduler
    if isinstance(scheduler, SuccessiveHalving):
        for trial in core.trials.searched:
            if trial.state.ended or not trial.values or trial.diverged:
                continue
            passed = scheduler._levels[scheduler.bracket(trial.number)].passed(max(scored.get(trial.number, (0.0,))))
            if passed != scheduler.state.passed.get(trial.number, 0):
                yield f"trial {trial.number} was judged at {scheduler.state.passed.get(trial.number, 0)} of {passed} rungs"
    elif isinstance(scheduler, FreezeThawScheduler):
        for number in scheduler.state.running:
            if core.trials[number].state not in (TrialState.RUNNING, TrialState.PENDING):
                yield f"freeze-thaw takes trial {number} for running, it is {core.trials[number].state}"
        reports = sum(trial.reports for trial in core.trials.searched)
        if by_iteration and scheduler.state.spent > reports:
            yield f"freeze-thaw counts {scheduler.state.spent} iterations, {reports} were reported"
    elif isinstance(scheduler, HyperBandScheduler):
        for home, bracket in enumerate(scheduler.state.brackets):
            level = (
                scheduler._level(bracket) if bracket.round < len(scheduler._shapes[bracket.shape].levels) else math.inf
            )
            for number in bracket.arrived:
                levels = scheduler._shapes[bracket.shape].levels[: bracket.round + 1]
                judged = scored[number] >= set(levels)  # else a report at a level had no objective
                if by_iteration and judged and number not in meddled and max(scored[number]) > level:
                    yield f"trial {number} is at {max(scored[number])} in a round of bracket {home} at {level}"


def of_fold(live: Core, folded: Core) -> Iterator[str]:
    """Yield the differences between a core that folded the log and the one that wrote it."""
    if live.seq % 8 == 0 and live.scheduler.state != folded.scheduler.state:  # slow; a difference does not go away
        yield "fold: the scheduler's state differs"
    for name in _CORE_FIELDS:
        if getattr(live.experiment, name) != getattr(folded.experiment, name):
            yield f"fold: {name} is {getattr(folded.experiment, name)!r}, not {getattr(live.experiment, name)!r}"
    if live.experiment.revisions.newest != folded.experiment.revisions.newest:
        yield "fold: the search space is of another revision"
    for name in ("held", "granted", "restart_s", "exponent"):
        if getattr(live.experiment.sizes, name) != getattr(folded.experiment.sizes, name):
            yield f"fold: sizes.{name} differs"
    if live.experiment.saving.seconds() != folded.experiment.saving.seconds():
        yield "fold: the interval between checkpoints differs"
    for name in ("ended_s", "since", "sizes"):
        if getattr(live.experiment.usage, name) != getattr(folded.experiment.usage, name):
            yield f"fold: usage.{name} differs"
    if live.experiment.segments.open != folded.experiment.segments.open:
        yield f"fold: {folded.experiment.segments.open} segments are open, not {live.experiment.segments.open}"
    for name in _LEDGER_FIELDS:
        if getattr(live.experiment.checkpoints, name) != getattr(folded.experiment.checkpoints, name):
            found, wanted = getattr(folded.experiment.checkpoints, name), getattr(live.experiment.checkpoints, name)
            yield f"fold: checkpoints.{name} is {found}, not {wanted}"
    for name in ("ready", "awaiting"):
        if list(getattr(live.experiment.segments, name)) != list(getattr(folded.experiment.segments, name)):
            yield f"fold: segments.{name} differs"
    if live.summary() != folded.summary():
        yield f"fold: the summary is {folded.summary()}, not {live.summary()}"
    for a, b in zip(live.trials, folded.trials, strict=True):
        if _of_trial(a) != _of_trial(b):
            yield from _differences(f"trial {a.number}", _TRIAL_FIELDS, a, b)
        for s, u in zip(a.segments, b.segments, strict=True):
            if _of_segment(s) != _of_segment(u):
                yield from _differences(f"segment {a.number}.{s.ordinal}", _SEGMENT_FIELDS, s, u)


def _differences(who: str, names: Collection[str], live: Any, folded: Any) -> Iterator[str]:
    for name in names:
        if not _same(getattr(live, name), getattr(folded, name)):
            yield f"fold: {who}.{name} is {getattr(folded, name)!r}, not {getattr(live, name)!r}"


def of_rows(core: Core, touched: Collection[int], rows: dict[int, tuple[Any, ...]]) -> Iterator[str]:
    """Write the rows of the touched trials, and yield the differences between the trials and the rows of all of them."""
    rows |= {number: trial_row(core.trials[number], core.spec.scope, 0.0) for number in touched}
    if core.seq % 16:  # slow; most differences do not go away
        return
    for trial in core.trials:
        present = trial_row(trial, core.spec.scope, 0.0)
        for name, stored, value in zip(CHANGING, rows[trial.number], present, strict=True):
            # An ended trial forgets some of these when a driver folds the log, and its row keeps them.
            if name not in ("tags", "searcher") and not _same(stored, value):
                yield f"row: {name} of trial {trial.number} is {stored!r}, not {value!r}"


def _same(a: Any, b: Any) -> bool:
    if a == b:
        return True
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)


def of_end(world: World) -> Iterator[str]:
    """Yield what is wrong with a search that has ended."""
    core = world.core
    for trial in core.trials:
        if not trial.state.ended:
            yield f"the experiment is {core.state} and trial {trial.number} is {trial.state}"
        if trial.holds_resources:
            yield f"the experiment is {core.state} and trial {trial.number} has an open segment"
        ready = [kept for kept in trial.checkpoints.values() if kept.info.ready]
        wanted = {trial.checkpoint.id} if trial.checkpoint is not None else set()
        if (kept := trial.best_checkpoint(core.spec.objective)) is not None:
            wanted.add(kept.id)
        wanted |= core.experiment.checkpoints._kept.keys()
        ready.sort(key=lambda kept: (kept.segment, kept.info.step))
        if left := superfluous(ready, world.policy, core.spec.objective, wanted):
            yield f"trial {trial.number} has ended with {[k.info.id for k in left]}, which the policy does not keep"
    yield from _of_best(core, world.log)
    yield from _of_repeats(core)
    best = core.best_trial()
    if best is not None and world.policy.keep_best and not world.policy_lost:
        values = [v for v in best.values.values() if math.isfinite(v)]
        if values and best.best_value is None:
            yield "the best trial has no best value"


def _of_repeats(core: Core) -> Iterator[str]:
    """Yield what is wrong with the repeats of a search that has ended."""
    most = core.spec.limits.repeats
    repeats = [trial for trial in core.trials if trial.repeat_of is not None]
    if most != "auto" and len(repeats) > most:
        yield f"{len(repeats)} repeats were started, and {most} are allowed"
    for trial in repeats:
        first = core.trials[trial.repeat_of or 0]
        if first.repeat_of is not None or not trial.params.items() >= first.params.items():
            yield f"trial {trial.number} has not the configuration of trial {first.number}, which it repeats"
        if trial.state is TrialState.COMPLETED and core.spec.time_attr == "training_iteration" and trial.t > first.t:
            yield f"trial {trial.number} was trained to {trial.t}, and trial {first.number} to {first.t}"
    best = core.best_trial()
    if best is not None and best.repeat_of is not None:
        yield f"the best trial, {best.number}, is a repeat"


def _of_best(core: Core, log: list[Any]) -> Iterator[str]:
    """Compare the best value with that of all reports in the log, judged one by one."""
    objective, constraints = core.spec.objective, core.searcher.metric_constraints()
    last: dict[int, dict[str, float]] = {}
    newest: dict[int, float] = {}  # trial -> its newest finite objective
    scores: list[tuple[float, int]] = []
    for _, entry in log:
        if not isinstance(entry, e.Reported) or core.trials[entry.trial].repeat_of is not None:
            continue
        metrics = last.setdefault(entry.trial, {})
        metrics.update(entry.metrics)
        value = entry.metrics.get(objective.metric)
        if value is not None and not math.isfinite(value):
            continue
        if value is not None:
            newest[entry.trial] = value
        if entry.trial in newest and all(one.excess(metrics) <= 0 for one in constraints):
            scores.append((objective.score(newest[entry.trial]), entry.trial))
    if core.experiment.spec.scope == "last":
        scores = [
            (objective.score(value), number)
            for number, value in newest.items()
            if all(one.excess(last[number]) <= 0 for one in constraints)
        ]
    core.summary()  # also if the best trial's newest report is not finite
    expected = max((score for score, _ in scores), default=None)
    found = core.experiment.leaderboard.best
    if (found[0] if found is not None else None) != expected or (found is not None and found not in scores):
        yield f"the best is {found}, the reports say {expected}"
