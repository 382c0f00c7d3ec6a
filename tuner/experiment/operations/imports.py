"""Import a search that another tool has run, as an experiment that has ended.

The log of an imported experiment has the same form as any other log. The same core folds it, and the page, `tuner.load`,
`warm_start` and `tuner.replay` can read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.batch import Batch, Entry
from tuner.domain.experiment import Mode, Spec
from tuner.domain.segments import Failure
from tuner.domain.states import ExperimentState
from tuner.driver.assemble import assemble
from tuner.errors import SpecError
from tuner.experiment.specs.spec import parse_spec
from tuner.space import Space
from tuner.store import ExperimentRecord, Store
from tuner.store.records import IMPORTED
from tuner.usercode.trainable import by_value

CHUNK = 2_000
"""The number of log entries that are committed at once."""
EPOCH = 0
"""The epoch of an experiment that no driver has claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTrial:
    """A trial that another tool has run."""

    params: Mapping[str, Any]  # flat, with the names of the search space
    began: float  # seconds since the epoch
    ended: float
    reports: Sequence[tuple[float, Mapping[str, float], int | None]]  # time, metrics, step
    outcome: Literal["completed", "stopped", "failed"]
    reason: str
    notes: Mapping[str, Any] = field(default_factory=dict)


def write(
    store: Store,
    *,
    name: str,
    project: str,
    space: Space,
    metrics: Sequence[str],
    modes: Sequence[Mode],
    trials: Sequence[ImportedTrial],
    origin: str,
    scope: Literal["all", "last"],
) -> ExperimentRecord:
    """Create the experiment with its whole log, and return it.

    Until the last commit, the experiment is "failed", and its error says that the import is incomplete. If this process is
    killed, the experiment stays in this state, until the next import from the same origin under the same name and project
    replaces it.

    Args:
        store: the database.
        name: the name of the experiment.
        project: the project of the experiment.
        space: the search space. A trial may have additional parameters, or lack some.
        metrics: the metrics that are the objectives.
        modes: "min" or "max" for each objective.
        trials: the trials, in the order of their numbers.
        origin: the source of the trials, in words.
        scope: "all" if a trial's best value counts, "last" if its last value counts.

    Raises:
        SpecError: there are no trials, the name or the space is not valid in tuner, or a trial has a value outside the space.
    """
    if not trials:
        raise SpecError(f"{origin} has no trial that has ended, so there is nothing to import")
    for count, trial in enumerate(trials):
        for path, value in trial.params.items():
            if path in space and not space[path].contains(value):
                raise SpecError(f"trial {count} has {value!r}, which is not in the space", f"/space/{path}")
    code = by_value(_not_here, space_blob=space.blob(), parts_blob=None)
    data = {
        "name": name, "project": project, "space": space.to_json(), "metric": list(metrics), "mode": list(modes),
        "num_samples": len(trials), "scheduler": {"type": "fifo"}, "search": {"type": "random"}, "scope": scope,
        "checkpoint": {"keep_best": None, "keep_last": None, "interval_s": None},
    }  # fmt: skip
    spec = parse_spec(data, space_blob=code.space_blob, code=code.hash)
    begun = min(trial.began for trial in trials)
    over = max(trial.ended for trial in trials)
    core = assemble(replace(spec, limits=replace(spec.limits, max_concurrent_trials=len(trials))), space)
    log = list(_log(trials, origin))
    why = (
        f"the import from {origin} is not complete: it is still running or was interrupted. "
        "To replace this experiment, run the same import again"
    )
    _remove_incomplete(store, spec, origin)
    made = store.experiments.create(spec, code=code, source=IMPORTED, incomplete=why, now=begun)
    for at in range(0, len(log), CHUNK):
        chunk: list[Entry] = []
        touched: dict[int, None] = {}
        for seq, entry in enumerate(log[at : at + CHUNK], start=at + 1):
            core.fold(seq, entry)
            chunk.append((seq, entry))
            number = getattr(entry, "number", None) if isinstance(entry, d.Start) else getattr(entry, "trial", None)
            if number is not None:
                touched[number] = None
        last = at + CHUNK >= len(log)
        batch = Batch(
            log=chunk,
            trials=[core.trials[number] for number in touched],
            state=ExperimentState.COMPLETED if last else None,
            summary=core.summary() if last else {**core.summary(), "reason": why},
            carried_out=[seq for seq, entry in chunk if isinstance(entry, d.Decision)],
        )
        store.drivers.commit(made.id, EPOCH, batch, over if last else begun)
    store.drivers.release(made.id, EPOCH)
    return store.experiments.get(made.public_id)


def _remove_incomplete(store: Store, spec: Spec, origin: str) -> None:
    """Delete the experiments of incomplete imports from this origin. An import that still runs fails at its next commit."""
    for record in store.experiments.named(spec.name):
        if record.incomplete and record.project == spec.project and (record.error is None or origin in record.error):
            store.experiments.seize(record.id)
            store.experiments.remove(record.id)


def _not_here(config: dict[str, Any]) -> None:
    raise SpecError("this experiment was imported from another tool, so its training function is not known")


def _log(trials: Sequence[ImportedTrial], origin: str) -> Iterator[e.Event | d.Decision]:
    """Yield the log entries that a driver would have written, ordered by time."""
    found: list[tuple[float, int, int, e.Event | d.Decision]] = []
    for number, trial in enumerate(trials):
        entries = list(_of_trial(number, trial, origin))
        found += [(time, number, at, entry) for at, (time, entry) in enumerate(entries)]
    found.sort(key=lambda item: item[:3])
    yield e.DriverStarted(time=found[0][0], epoch=EPOCH, slots=len(trials), executor=f"imported from {origin}")
    for *_, entry in found:
        yield entry
    ended = "the only trial has" if len(trials) == 1 else f"all {len(trials)} trials have"
    yield d.Finish(reason=f"imported from {origin}: {ended} ended")


def _of_trial(number: int, trial: ImportedTrial, origin: str) -> Iterator[tuple[float, e.Event | d.Decision]]:
    time = trial.began
    yield time, d.Start(reason=f"imported from {origin}", params=dict(trial.params), number=number)
    yield time, e.SegmentStarted(time=time, trial=number, segment=1)
    if trial.notes:
        yield time, e.Noted(time=time, trial=number, segment=1, notes=dict(trial.notes))
    for count, (made, metrics, step) in enumerate(trial.reports, start=1):
        time = max(time, made)  # the clock of the other tool may have jumped
        yield (
            time,
            e.Reported(
                time=time, trial=number, segment=1, report_no=count, iteration=count, metrics=dict(metrics), step=step
            ),
        )  # fmt: skip
    time = max(time, trial.ended)
    match trial.outcome:
        case "stopped":
            yield time, d.Stop(reason=trial.reason, trial=number)
            yield time, e.SegmentEnded(time=time, trial=number, segment=1, outcome="left")
        case "completed":
            yield time, e.SegmentEnded(time=time, trial=number, segment=1, outcome="returned")
            yield time, d.Complete(reason=trial.reason, trial=number)
        case "failed":
            failure = Failure(kind="user", cause="exception", message=trial.reason)
            yield time, e.SegmentEnded(time=time, trial=number, segment=1, outcome="failed", failure=failure)
            yield time, d.Fail(reason=trial.reason, trial=number)


def finite(value: Any) -> bool:
    """Return True if a metric can have this value, that is, if the value is a finite number or NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isinf(value)
