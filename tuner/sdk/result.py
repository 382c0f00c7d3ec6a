"""The result of `tuner.run`, read from the database or from a service."""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from tuner.domain.events import CheckpointInfo, Reported
from tuner.domain.segments import Failure
from tuner.domain.states import TrialState
from tuner.domain.thinned import why_thinned
from tuner.domain.trial import drawn_as
from tuner.errors import Conflict, SpecError, TrialError, TunerError
from tuner.experiment.analysis import lineage
from tuner.experiment.code.by_value import runnable_space
from tuner.names import printable
from tuner.plurals import counted
from tuner.schedulers.shared import pareto
from tuner.sdk import plots
from tuner.sdk.decision_result import DecisionResult
from tuner.sdk.live import notebook
from tuner.sdk.trial_result import (
    TrialResult,
    config_of,
    flat,
    history_row,
    not_here,
    opened,
    renamed,
    reported,
    revision_of,
    trial_of,
)
from tuner.search import constraints
from tuner.settings import Settings
from tuner.space.revisions import Revisions
from tuner.store import Store
from tuner.store.records import DecisionRecord, ExperimentRecord, SegmentRecord, TrialRecord
from tuner.trials.checkpoints.storage import join
from tuner.usercode.importing import refuse_while_importing

SHOWN = 10
"""The number of trials of a result that a notebook shows, the best first."""

LONG = 500
"""The number of characters above which the best configuration is shown with shortened values when a result is printed."""

PAGE = 1000
"""The number of rows that are read from the database at once."""

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

    from tuner.trials.checkpoints.checkpoints import Checkpoint


_OF_A_RESULT = {
    "best_logdir": "best_checkpoint.path; the logs are beside the database",
    "best_params": "best_config",
    "best_result": "best_trial",
    "best_trials": "pareto_front()",
    "checkpoint": "best_checkpoint",
    "config": "best_config",
    "experiment_path": "best_checkpoint.path, or the storage that you passed",
    "get_all_configs": "trials, each with its config",
    "get_best_checkpoint": "best_checkpoint",
    "get_best_config": "best_config",
    "get_best_result": "best_trial, best_config, best_value and best_checkpoint",
    "get_best_trial": "best_trial",
    "get_dataframe": "dataframe()",
    "get_trials": "trials",
    "metrics": "best_trial.metrics",
    "metrics_dataframe": "dataframe(history=True)",
    "num_terminated": "trials, each with its state",
    "optimize": "add(num_samples=...)",
    "results_df": "dataframe()",
    "study_name": "name",
    "trial_dataframes": "dataframe(history=True)",
    "trials_dataframe": "dataframe()",
}


class More(Protocol):
    """Runs more trials of a result's experiment. See `Result.add`."""

    def __call__(self, num_samples: int | None, verbose: int) -> Result: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The data of a `Result`, from a database or from a service."""

    record: ExperimentRecord
    revisions: Revisions  # the search spaces of the experiment
    trials: Sequence[TrialRecord]  # all trials, by number
    segments: Mapping[int, Sequence[SegmentRecord]]  # the segments of each trial, by its number
    histories: Mapping[int, list[dict[str, float]]]  # trial number -> reports; see `TrialResult.history`
    decisions: Sequence[DecisionResult]  # all decisions, oldest first
    best_place: lineage.Place | None
    best_checkpoint: CheckpointInfo | None
    folder: str | None = None  # where the checkpoints of the experiment are, if this process may know it
    draws: Sequence[Mapping[str, Any]] = ()  # see `Trials.draws`
    more: More | None = None  # runs more trials of the experiment


class Result:
    """The result of a search.

    Attributes:
        trials: all trials, by number.
        decisions: all decisions with their reasons, oldest first.
        best_trial: the trial with the best report that satisfies the constraints; with scope="last", the best last report. None
            if there is no such trial; `error` says why. After repeats, this is the first run of the configuration with the best
            expected value over its runs.
        best_value: the objective's value in that report. After repeats, the mean over `best_runs`.
        best_runs: the trials that ran the best configuration: the best trial, and its repeats.
        noise: after repeats, the estimated run-to-run standard deviation of a configuration's results; else None.
        best_config: the configuration at the report of `best_value`. If the search changed configurations during training, as PBT
            does, earlier iterations were trained with others, and training with this one alone may not reach the value; see
            `schedule`.
        best_checkpoint: the checkpoint that belongs to the best report.
        best_finished: the trial that was trained to its end (to max_t, or until its function returned) that has the
            best last value. None if no trial reached its end.
        best_finished_value: the last value of `best_finished`.
        errors: a TrialError for each failed trial, by trial number, with the traceback of its rank as a note, as in
            Ray Tune's ResultGrid.
        num_errors: the number of failed trials.
        error: why the search failed or has no best trial. None otherwise, even if individual trials failed; see `errors`.
        notes: the notes that users have written about the experiment, in Markdown.
    """

    #: for the pickles of earlier versions, which do not have it
    notes: str = ""
    _draws: Sequence[Mapping[str, Any]] = ()
    _drawn_as: Mapping[int, int] = MappingProxyType({})
    _params: Mapping[int, Mapping[str, Any]] = MappingProxyType({})

    def __init__(self, found: Found) -> None:
        record, space = found.record, found.revisions
        spec = record.spec
        self.experiment_id = record.public_id
        self.name = record.name
        self.state = str(record.state)
        self.reason = record.reason
        self.metric, self.mode = spec.objective.metric, spec.objective.mode
        self.trials = notebook.Rows(
            trial_of(row, space, spec.seed, found.histories.get(row.number, []), found.folder) for row in found.trials
        )
        self.decisions = notebook.Rows(found.decisions)
        self._drawn_as = {row.number: drawn_as(row.tags, row.number) for row in found.trials}
        self._params = {row.number: row.params for row in found.trials}
        best = record.best
        self.best_trial: TrialResult | None = self.trials[best["trial_number"]] if best else None
        self.best_value: float | None = best["value"] if best else None
        self.best_config: dict[str, Any] | None = None
        if best:
            row, params = found.trials[best["trial_number"]], best["params"]
            self.best_config = config_of(space, spec.seed, params, self._drawn_as[row.number], revision_of(row, params))
        runs = best.get("runs") if best else None
        alone = [self.best_trial] if self.best_trial is not None else []
        self.best_runs: list[TrialResult] = [self.trials[number] for number in runs["trials"]] if runs else alone
        self.noise: float | None = runs["noise"] if runs else None
        finished = best.get("finished") if best else None
        self.best_finished: TrialResult | None = self.trials[finished["trial_number"]] if finished else None
        self.best_finished_value: float | None = finished["value"] if finished else None
        failures = {row.number: row.failure or {} for row in found.trials}
        self.errors = [
            _error(trial, failures[trial.number]) for trial in self.trials if trial.state is TrialState.FAILED
        ]
        self.num_errors = len(self.errors)
        self.error = record.error or (record.no_best if record.state.ended else None)
        self.notes = spec.notes
        self._thinned_at = record.thinned_at
        self._objectives = spec.objectives
        self._constraints = constraints.read(spec.resolved.get("constraints"))
        self._space, self._seed = space, spec.seed
        self._segments, self._draws = found.segments, found.draws
        self._best_place = found.best_place
        self._more = found.more
        self.best_checkpoint: Checkpoint | None = (
            opened(found.best_checkpoint, found.folder) if found.best_checkpoint else None
        )

    @classmethod
    def load(cls, store: Store, experiment_id: str, more: More | None = None, *, log: bool = True) -> Result:
        """Read the result of an experiment from a database. Raise NotFound if there is no such experiment.

        Args:
            store: the database.
            experiment_id: ``exp_...``.
            more: a function that runs more trials of the experiment, for `Result.add`.
            log: False to leave out the decisions and the histories of the trials, which take most of the time.
        """
        record = store.experiments.get(experiment_id)
        code = store.code.get(record.spec.code) if record.spec.code else None
        best = record.best or {}
        return cls(
            Found(
                record=record,
                revisions=Revisions.of(record.spec, runnable_space(code)),
                trials=_all_trials(store, record.id),
                segments=store.trials.segments(record.id),
                histories=_histories(store, record.id) if log else {},
                decisions=_decisions(store, record.id) if log else (),
                best_place=lineage.best(store, record),
                best_checkpoint=_checkpoint(store, best.get("checkpoint_id")),
                folder=join(record.spec.checkpoint.storage or Settings.from_env().storage, record.public_id),
                draws=store.trials.draws(record.id) if record.spec.search.get("type") == "define_by_run" else (),
                more=more,
            )
        )

    @property
    def best(self) -> TrialResult:
        """The best trial, like `best_trial`, but never None.

        Raises:
            TrialError: there is no best trial. The message says why; the cause is the error of the first trial that failed.
        """
        if self.best_trial is None:
            why = self.error or "no trial has reported yet"
            raise TrialError(f"{self.experiment_id} has no best trial: {why}") from next(iter(self.errors), None)
        return self.best_trial

    def with_more(self, more: More) -> Result:
        """Return this result with `more`, a function that runs more trials of the experiment."""
        self._more = more
        return self

    def add(self, num_samples: int | None = None, *, verbose: int = 1) -> Result:
        """Run more trials of this search, wait until they have ended, and return the whole result. This object does not change.

        The searcher and the scheduler continue with all results so far. The training function is the one that was passed to
        `tuner.run`. A search that is paused is resumed. If the search is a study, this only asks for the trials, and the next
        `tuner.create_study` hands them out.

        Args:
            num_samples: how many trials to add; for a grid, how many more times to run it. None adds no trials, and
                only finishes a search that failed or was cancelled before its last trial.
            verbose: as for `tuner.run`.

        Raises:
            Conflict: the experiment is being cancelled.
        """
        refuse_while_importing("Result.add")
        if self._more is None:
            raise TunerError(
                f"this result cannot start trials: continue {self.experiment_id} with a client's handle or with tuner.load"
            )
        return self._more(num_samples, verbose)

    def pareto_front(self) -> list[TrialResult]:
        """Return the trials on the Pareto front, by number.

        A trial is on the front if no other one is at least as good in all objectives and better in one. A trial is compared by
        its newest value of each objective, as in the searchers. Trials that lack a value or violate the constraints are left
        out. With one objective, the front is the best trial, or several that are equally good.
        """
        known = [(trial, self._scores(trial.metrics)) for trial in self.trials if self._keeps(trial.metrics)]
        complete = [(trial, scores) for trial, scores in known if scores is not None]
        first = pareto.fronts([scores for _, scores in complete])[:1]
        return [complete[i][0] for front in first for i in front]

    def hypervolume(self, reference: Mapping[str, float]) -> list[tuple[float, float]]:
        """Return (seconds since the first report, hypervolume) for each report that increased the hypervolume.

        The hypervolume is the volume of the region between the reference and the Pareto front of all reports so far.
        All reports that satisfy the constraints count.

        Args:
            reference: a value for each objective that is worse than any value of interest, such as ``{"loss": 1.0, "size": 10}``.

        Raises:
            SpecError: `reference` lacks an objective.
            Conflict: most points of the search were deleted (``TUNER_POINT_DAYS``).
        """
        if self._thinned_at is not None:
            raise Conflict(f"{self.experiment_id}: {why_thinned(self._thinned_at, 'the hypervolume')}")
        if missing := [o.metric for o in self._objectives if o.metric not in reference]:
            raise SpecError(f"a value is needed for {', '.join(missing)}", "/reference")
        worst = [o.score(float(reference[o.metric])) for o in self._objectives]
        made: list[tuple[float, Sequence[float]]] = []
        for trial in self.trials:
            newest: dict[str, float] = {}
            for report in trial.history:
                newest |= reported(report)
                if self._keeps(newest) and (scores := self._scores(newest)) is not None:
                    made.append((report["time"], scores))
        begin = min((report["time"] for trial in self.trials for report in trial.history[:1]), default=0.0)
        front: list[Sequence[float]] = []
        grown: list[tuple[float, float]] = []
        for time, scores in sorted(made):
            if any(pareto.dominates(other, scores) or other == scores for other in front):
                continue
            front = [other for other in front if not pareto.dominates(scores, other)] + [scores]
            volume = pareto.hypervolume(front, worst)
            if volume > (grown[-1][1] if grown else 0.0):
                grown.append((time - begin, volume))
        return grown

    def _scores(self, metrics: Mapping[str, float]) -> Sequence[float] | None:
        """Return the objectives as scores, or None if one is missing or not finite."""
        values = [metrics.get(o.metric, math.nan) for o in self._objectives]
        if not all(math.isfinite(value) for value in values):
            return None
        return tuple(o.score(value) for o, value in zip(self._objectives, values, strict=True))

    def _keeps(self, metrics: Mapping[str, float]) -> bool:
        """Return True if these metrics satisfy the constraints."""
        return all(constraint.excess(metrics) <= 0 for constraint in self._constraints)

    def schedule(self, trial: int | None = None) -> list[dict[str, Any]]:
        """Return the schedule of configurations that led to the best checkpoint, or to the end of a trial, oldest first.

        The list has one item, unless the search changed configurations during training, as PBT does. To reproduce
        the best training, switch to each item's configuration at its iteration. The list is empty if nothing was trained.

        Args:
            trial: the number of a trial. None for the best checkpoint.

        Returns:
            Items ``{"iteration": the iteration after which the configuration applies, "config": {...}, "params": the same as a
            flat mapping, "trial": the number of the trial that used it}``.

        Raises:
            IndexError: there is no such trial.
        """
        place = self._best_place
        if trial is not None:
            count = len(self._segments.get(trial, ()))
            ended = self.trials[trial].iterations
            place = lineage.Place(trial, count, ended) if count else None
        if place is None:
            return []
        found = lineage.schedule(lineage.lineage(place, lambda number: self._segments.get(number, ())))
        return [
            {
                **entry,
                "config": config_of(
                    self._space, self._seed, entry["params"], self._drawn_as.get(entry["trial"], entry["trial"])
                ),
            }
            for entry in found
        ]

    def dataframe(self, history: bool = False) -> pd.DataFrame:
        """Return a data frame with a row for each trial, or for each report if `history` is true.

        Configurations are in columns such as ``config/lr``: the trial's last one, or the one with which the report was trained
        if `history` is true. PBT changes it during training. A metric with the name of another column, such as ``state``, is in
        the column ``metrics/state``. If the search has constraints, the column `feasible` tells whether the trial or report
        satisfies them. If most points of the search were deleted (``TUNER_POINT_DAYS``), `history` returns the remaining
        points, and warns.
        """
        import pandas as pd  # takes a second to load

        if history and self._thinned_at is not None:
            why = why_thinned(self._thinned_at, "a data frame of every report")
            warnings.warn(f"{self.experiment_id}: {why}; this data frame has the points that are left", stacklevel=2)

        rows: list[dict[str, Any]] = []
        has_repeats = any(trial.repeat_of is not None for trial in self.trials)
        for trial in self.trials:
            fixed = {"trial": trial.number, "state": str(trial.state)}
            config = _columns(trial.config)
            if history:
                trained_with = self._trained_with(trial, config)
                taken = {*fixed, *config}.union(*trained_with.values())
                rows += [
                    {**fixed, **renamed(report, taken), **trained_with.get(int(report["segment"]), config)}
                    for report in self._judged(trial.history)
                ]
            else:
                more = {"iterations": trial.iterations, "best_value": trial.best_value, "reason": trial.reason}
                if self._constraints:
                    more["feasible"] = trial.feasible
                if has_repeats:
                    more["repeat_of"] = trial.repeat_of
                own = {**fixed, **more}
                rows.append({**own, **renamed(trial.metrics, {*own, *config}), **config})
        return pd.DataFrame(rows)

    def _trained_with(self, trial: TrialResult, config: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Return the configuration of each segment of a trial, as columns. config: those of the trial's last configuration."""
        number, params = self._drawn_as.get(trial.number, trial.number), self._params.get(trial.number)
        return {
            segment.ordinal: config
            if segment.params == params
            else _columns(config_of(self._space, self._seed, segment.params, number))
            for segment in self._segments.get(trial.number, ())
        }

    def _judged(self, history: list[dict[str, float]]) -> list[dict[str, Any]]:
        """Add the field `feasible` to each report, judged by the newest value of each metric at that point."""
        if not self._constraints:
            return list(history)
        newest: dict[str, float] = {}
        found: list[dict[str, Any]] = []
        for report in history:
            newest |= reported(report)
            found.append(
                {**renamed(report, ("feasible",)), "feasible": all(c.excess(newest) <= 0 for c in self._constraints)}
            )
        return found

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(not_here("Result", name, _OF_A_RESULT))

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("a Result is not a list; its trials are in result.trials")

    def __repr__(self) -> str:
        best = "no result"
        if self.best_value is not None and self.best_config is not None:
            config = str(self.best_config)
            if len(config) > LONG:
                config = notebook.short(dict(flat(self.best_config)))
            best = f"{self.metric}={self.best_value:.6g} with {config}{self._changed()}"
        failed = f" ({self.num_errors} failed)" if self.num_errors else ""
        return f"Result({self.experiment_id}: {self.state}, {counted(len(self.trials), 'trial')}{failed}, {best})"

    def _changed(self) -> str:
        """Return what to add to `best_config` if the training that led to it used other configurations before."""
        count = len(self.schedule())
        return f", the last of {count} configurations: see schedule()" if count > 1 else ""

    def _repr_html_(self) -> str:
        """Return the summary that a notebook shows: the best configurations, and how the search ended."""
        ranked = sorted(self.trials, key=self._rank)[:SHOWN]
        failed = f", {self.num_errors} failed" if self.num_errors else ""
        head = f"{self.name} {self.experiment_id}: {self.state}, {counted(len(self.trials), 'trial')}{failed}"
        best = finished = ""
        if self.best_trial is not None and self.best_config is not None:
            config = notebook.short(dict(flat(self.best_config)))
            runs = f" (the mean of {len(self.best_runs)} runs)" if len(self.best_runs) > 1 else ""
            best = f"{self.best_value:.6g} by trial {self.best_trial.number}{runs}: {config}{self._changed()}"
        if self.best_finished is not None:
            finished = f"{self.best_finished_value:.6g} by trial {self.best_finished.number}"
        return notebook.box(
            f"<b>{html.escape(printable(head))}</b>",
            notebook.facts(
                [
                    (f"best {self.metric}", best),
                    (f"best finished {self.metric}", finished),
                    ("ended", self.reason),
                    ("error", self.error if self.error != self.reason else ""),
                ]
            ),
            notebook.table(TrialResult.COLUMNS, (trial.cells() for trial in ranked)) if ranked else "",
            notebook.left_out(len(ranked), len(self.trials), "result.trials, result.dataframe()"),
        )

    def _rank(self, trial: TrialResult) -> tuple[bool, float]:
        """Return a key that sorts the best trial first, and those without a value last."""
        if trial is self.best_trial:
            return False, -math.inf
        value = trial.best_value
        if value is None or not math.isfinite(value) or trial.feasible is False:
            return True, 0.0
        return False, -self._objectives[0].score(value)

    def plot(self, kind: str | None = None, **options: Any) -> Figure:
        """Draw the search with plotly, and return the figure. A notebook shows it; ``figure.write_html(file)`` saves it.

            result.plot()                        # learning curves, or the history of trials that report once
            result.plot("parallel")              # every trial as a line through its parameters and its value
            result.plot("curves", metric="loss", most=50)

        Args:
            kind: "curves": a metric over the reports; "history": each trial's value, and the best so far; "importance": how much
                each parameter mattered; "parallel": parallel coordinates; "slices": the value over each parameter; "lineage":
                who copied whom in population-based training; "pareto": two objectives, with the front.
            options: ``metric`` (for curves, history, parallel and slices): the name of a reported metric, by default the
                objective; ``most`` (for curves): the maximum number of trials to draw, best first; ``param`` (for lineage):
                the parameter by which to color.

        Raises:
            SpecError: there is no such kind, option, metric or parameter, or nothing to draw.
            TunerError: plotly is not installed. ``pip install plotly``, or the extra ``plot``, installs it.
        """
        search = plots.Search(
            name=self.name,
            trials=self.trials,
            segments=self._segments,
            objectives=self._objectives,
            space=self._space.present,
            keeps=self._keeps,
            draws=self._draws,
        )
        return plots.plot(search, kind, options)


def _columns(config: Mapping[str, Any]) -> dict[str, Any]:
    return {f"config/{name}": value for name, value in flat(config)}


def _all_trials(store: Store, experiment: int) -> list[TrialRecord]:
    rows: list[TrialRecord] = []
    token: Any = None
    while True:
        page = store.trials.page(experiment, page_size=PAGE, page_token=token)
        rows += page.items
        token = page.next_token
        if token is None:
            return rows


def _error(trial: TrialResult, failure: Mapping[str, Any]) -> TrialError:
    """Return the failure of a trial as a TrialError."""
    known = {one.name for one in fields(Failure)}
    found = Failure(**{name: value for name, value in failure.items() if name in known}) if failure else None
    error = TrialError(f"trial {trial.number}: {trial.error}" if found is None else found.headline(trial.number), found)
    if trial.traceback:
        error.add_note(trial.traceback.rstrip())
    return error


def _histories(store: Store, experiment: int) -> dict[int, list[dict[str, float]]]:
    found: dict[int, list[dict[str, float]]] = {}
    for _, entry in store.drivers.load(experiment, thinned=True):
        if isinstance(entry, Reported) and entry.metrics:
            row = history_row(entry.iteration, entry.segment, entry.time, entry.metrics, entry.step)
            found.setdefault(entry.trial, []).append(row)
    return found


def _decisions(store: Store, experiment: int) -> list[DecisionResult]:
    newest_first: list[DecisionRecord] = []
    token: Any = None
    while True:
        page = store.log.decisions(experiment, page_size=PAGE, page_token=token)
        newest_first += page.items
        token = page.next_token
        if token is None:
            break
    return [
        DecisionResult(
            seq=row.seq, time=row.time, kind=row.kind, trial=row.trial, reason=row.reason, payload=row.payload
        )
        for row in reversed(newest_first)
    ]


def _checkpoint(store: Store, public_id: str | None) -> CheckpointInfo | None:
    if public_id is None:
        return None
    row = store.trials.checkpoint(public_id)
    return CheckpointInfo(id=row.public_id, uri=row.uri, step=row.step, bytes=row.bytes, node=row.node)


def without_result(result: Result) -> str | None:
    """Return the warning that a search without output ends with. None if it found something or was paused."""
    if result.error is None:
        return None
    if result.state == "failed":
        return f"warning: the search failed: {printable(str(result.error))}; result.errors has each failed trial"
    return f"warning: the search has no best trial: {printable(str(result.error))}"
