"""`tuner.create_study`: ask and tell, for users who run the trials themselves. It needs neither Ray nor a service."""

from __future__ import annotations

import atexit
import json
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from typing import Any, Literal

from tuner.domain.experiment import Limits, Mode, Spec
from tuner.domain.segments import Failure, Outcome, SegmentRef
from tuner.domain.trial import Segment, Trial
from tuner.driver.asked import AskedDriver
from tuner.driver.assemble import assemble
from tuner.driver.part_arguments import parts_explained, parts_of
from tuner.driver.parts import dump_parts, load_parts, plain_json, plain_names, plain_points
from tuner.errors import Conflict, ErrorCollector, SpecError, WrongArgument, text_of
from tuner.experiment.code.by_value import needs_other_python
from tuner.experiment.operations.earlier import with_earlier
from tuner.experiment.operations.verbs import why_it_stays_ended
from tuner.experiment.specs.spec import parse_spec
from tuner.experiment.specs.stored import check_driven
from tuner.plurals import counted
from tuner.sdk.arguments import above_this_package
from tuner.sdk.result import Result
from tuner.sdk.trial_result import not_here
from tuner.settings import Settings
from tuner.space import Space
from tuner.store import CodeRecord, ExperimentRecord, Store
from tuner.trials.training.metrics import flatten, own_step
from tuner.usercode.trainable import by_value

__all__ = ["Study", "StudyTrial", "create_study"]

SOURCE = "study"
Answer = Literal["continue", "pause", "stop"]
Metrics = Mapping[str, Any] | float | Sequence[float]
"""Numbers by name, or only the value of the objective, or the values of several objectives in their order."""


@parts_explained
def create_study(
    space: Mapping[str, Any],
    *,
    metric: str | Sequence[str],
    mode: Mode | Sequence[Mode],
    name: str = "study",
    num_samples: int | None = None,
    scheduler: Any = None,
    search_alg: Any = None,
    max_t: int | None = None,
    stop: Any = None,
    points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
    warm_start: Literal["auto"] | Sequence[str] | None = None,
    max_concurrent_trials: int = 1,
    time_budget_s: float | None = None,
    budget: float | None = None,
    max_failed_trials: int | None = None,
    max_failures: int = 0,
    repeats: int | Literal["auto"] = 0,
    seed: int = 0,
    time_attr: str = "training_iteration",
    scope: Literal["all", "last"] = "all",
    project: str = "default",
    load_if_exists: bool = True,
) -> Study:
    """Return a study. It proposes configurations and decides which trials continue; you train them, wherever you like.

        study = tuner.create_study({"lr": tuner.loguniform(1e-4, 1e-1)}, metric="loss", mode="min", max_t=27, name="by-hand")
        while (trial := study.ask()) is not None:
            for epoch in range(trial.iteration, 27):
                loss = train_one_epoch(trial.config, epoch)
                if trial.report({"loss": loss}) != "continue":
                    break
            trial.tell()

    A study has the same schedulers, searchers, decision log and web UI as `tuner.run`, and does not need Ray. It is stored in
    this home's database: after a restart of the process, the same call continues the study.

    Args:
        space: as for `tuner.run`.
        metric: as for `tuner.run`.
        mode: as for `tuner.run`.
        name: the name of the study.
        num_samples: trials to start. None: as many as `time_budget_s` allows, or 100.
        scheduler: as for `tuner.run`. Some schedulers, such as the default with `max_t`, pause trials and hand them out
            again later. Save a checkpoint and pass it to `report`, or such a trial starts from the beginning.
        search_alg: as for `tuner.run`.
        max_t: value of `time_attr` at which a trial is complete.
        stop: as for `tuner.run`.
        points_to_evaluate: configurations to try first.
        warm_start: earlier experiments to learn from, as for `tuner.run`.
        max_concurrent_trials: how many trials may train at the same time.
        time_budget_s: running time in seconds after which the study ends.
        budget: training that all trials together may spend, as a number of full trainings.
        max_failed_trials: failed trials after which the study ends as failed, counted from its start or the last `continue`.
        max_failures: how many times a trial that failed is handed out again.
        repeats: how many times leading configurations may be handed out again at the end, as for `tuner.run`. Train these with
            different random numbers, for example with a seed derived from `trial.number`.
        seed: studies with the same seed draw the same configurations.
        time_attr: what `max_t` counts.
        scope: which value of a trial counts: "all", its best report, or "last", its last one.
        project: project of the experiment.
        load_if_exists: True to continue the existing study of this name. False: raise Conflict if there is one.

    Raises:
        SpecError: an argument is wrong, or another version of Python has pickled functions of the existing study.
        Conflict: another process, or another object of this one, drives a study of this name, or the existing study has a
            different space, objective or scheduler.
    """
    given = dict(locals())
    mistakes, built = ErrorCollector(), Space({})
    with mistakes:
        built = Space.from_python(space)
    parts = parts_of(scheduler, search_alg, stop, mistakes)
    mistakes.check()
    code = by_value(_not_here, space_blob=built.blob(), parts_blob=dump_parts(parts))
    data = {
        **{k: given[k] for k in ("name", "num_samples", "max_t", "seed", "time_attr", "scope", "project")},
        "space": built.to_json(),
        "metric": plain_names(metric),
        "mode": plain_names(mode),
        "scheduler": plain_json(parts.scheduler),
        "search": plain_json(parts.searcher),
        "stop": plain_json(parts.stopper) if parts.stopper else {},
        "points_to_evaluate": plain_points(points_to_evaluate),
        "warm_start": warm_start if warm_start is None or isinstance(warm_start, str) else list(warm_start),
        "limits": {limit.name: given[limit.name] for limit in fields(Limits) if limit.name in given},
        "checkpoint": {"keep_best": None, "keep_last": None, "interval_s": None},
    }
    spec = parse_spec(data, space_blob=code.space_blob, code=code.hash, parts=parts)
    settings = Settings.from_env()
    settings.make_home()
    store = Store.open(settings.database_url, synchronous=settings.durability)
    try:
        store.migrate(patient=True)
        record, is_new = _found_or_created(store, spec, code)
        if not (is_new or load_if_exists):
            raise Conflict(f"the study {name!r} already exists ({record.public_id}); load_if_exists=True continues it")
        if not is_new and (differs := _differing(record, spec)):
            raise Conflict(
                f"the study {name!r} ({record.public_id}) has a different {differs}; choose another name for this study"
            )
        if not is_new and (ignored := _ignored(record, spec)):
            warnings.warn(ignored, UserWarning, stacklevel=above_this_package())
        if _is_driven_here(record):
            raise Conflict(
                f"this process drives the study {name!r} ({record.public_id}) already: call close() on the object that "
                "tuner.create_study has returned before, such as study.close(), or continue with that object"
            )
        return Study(store, record)
    except BaseException:
        store.close()
        raise


def _not_here(config: dict[str, Any]) -> None:
    raise SpecError("the trials of a study are run by the script that asks for them, with tuner.create_study")


def _found_or_created(store: Store, spec: Spec, code: CodeRecord) -> tuple[ExperimentRecord, bool]:
    """Return the study with the name and the project of this spec, and whether this call has created it."""
    if (found := _existing(store, spec.name, spec.project)) is not None:
        return found, False
    spec = with_earlier(store, spec)
    # Of several processes that create the study at the same time, only one can use the key. If the study that has used it was
    # renamed since, another one may have its former name.
    for key in (f"study {spec.name}", None):
        creation = store.experiments.creation(spec, code=code, source=SOURCE, idempotency_key=key)
        store.experiments.create_all([creation])
        if isinstance(creation.result, ExperimentRecord):
            return creation.result, True
        if creation.error is not None and not isinstance(creation.error, Conflict):
            raise creation.error
        if (found := _existing(store, spec.name, spec.project)) is not None:
            return found, False
    raise AssertionError("without a key, the study is created")


def _existing(store: Store, name: str, project: str) -> ExperimentRecord | None:
    found = [r for r in store.experiments.named(name) if r.source == SOURCE and r.spec.project == project]
    return found[0] if found else None


def _is_driven_here(record: ExperimentRecord) -> bool:
    """Return True if an object of this process drives the study. None does once the study is paused or has ended."""
    if record.state.ended or record.state == "paused":
        return False
    drivers = [study._driver for study in list(_OPEN) if study.id == record.public_id]
    return any(driver is not None and not driver.over for driver in drivers)


def _is_to_continue(store: Store, record: ExperimentRecord) -> bool:
    """Return True if a study has ended and a user has asked to continue it."""
    commands = store.commands.pending([record.id])
    return any(command.command == "continue" and command.trial is None for command in commands)


def _differing(record: ExperimentRecord, spec: Any) -> str | None:
    """Return the name of a part of the stored study that differs from the arguments, or None if none differs."""
    then, now = record.spec.to_json(), spec.to_json()
    words = {
        "space": "space",
        "objectives": "objective",
        "scheduler": "scheduler",
        "search": "searcher",
        "max_t": "max_t",
    }
    plain = spec.from_json(then).to_json()
    return next((word for part, word in words.items() if plain[part] != now[part]), None)


_FIXED = ("seed", "stop", "points_to_evaluate", "time_attr", "scope")
"""Arguments of `create_study` that nobody can change in an existing study. (Those of `_differing` are refused.)"""


def _ignored(record: ExperimentRecord, spec: Spec) -> str:
    """Return a warning about arguments that have no effect, because the study exists; "" if there are none.

    An argument has an effect if the study was created with it, or if a user has changed the study to it since.
    """
    first, present, now = (
        {**plain, **{f"limits.{limit}": value for limit, value in plain["limits"].items()}}
        for plain in (Spec.from_json(one.to_json()).to_json() for one in (record.first_spec, record.spec, spec))
    )
    ignored = [name for name in now if now[name] not in (first[name], present[name])]
    changed = [name for name in ignored if name == "num_samples" or name.startswith("limits.")]
    fixed = [name for name in ignored if name in _FIXED]
    if not changed and not fixed:
        return ""
    kept = [f"{name.removeprefix('limits.')} {json.dumps(present[name])}" for name in changed] + fixed
    said = f"the study {record.name!r} ({record.public_id}) continues with its own {', '.join(kept)}"
    if changed and (why := why_it_stays_ended(record)) is not None:
        said += f"; it cannot be continued: {why}"
    elif changed:
        sets = " ".join(f"--set {name}={json.dumps(now[name])}" for name in changed)
        then = f", and then `tuner continue {record.public_id}`" if record.state.ended else ""
        said += f"; use `tuner change {record.public_id} {sets}`{then}"
    if fixed:
        said += f"; for another {' or '.join(fixed)}, choose another name"
    return said


_OPEN: weakref.WeakSet[Study] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for study in list(_OPEN):
        study.close()


class Study:
    """A search whose trials you run yourself. `tuner.create_study` returns it. Its methods may be called from any thread.

    Attributes:
        id: ``exp_...``, as `tuner list`, the page and the API show it.
        name: the name of the study.
    """

    def __init__(self, store: Store, record: ExperimentRecord) -> None:
        self._store = store
        self.id, self.name = record.public_id, record.name
        code = store.code.get(record.spec.code) if record.spec.code else None
        self._space = Space.from_json(record.spec.space, code.space_blob if code else None)
        self._seed = record.spec.seed
        self._driver: AskedDriver | None = None
        if not record.state.ended or _is_to_continue(store, record):
            check_driven(record)
            if (why := needs_other_python(record.spec, code)) is not None:
                raise SpecError(f"{self.id} cannot be continued: {why}")
            if record.state == "paused":
                store.commands.add(record.id, "resume", reason="the script continues the study")
            # The log contains the changes that users have made since the study was created.
            core = assemble(record.first_spec, self._space, load_parts(code.parts_blob if code else None))
            self._driver = AskedDriver(store, record, core)
        _OPEN.add(self)

    def ask(self, timeout_s: float | None = 1.0) -> StudyTrial | None:
        """Return the next trial to train, or None once the study has ended or is paused.

        The trial may have been paused before. Then continue it from its `iteration` and `checkpoint`.

        Args:
            timeout_s: how long to wait, in seconds, if no trial can start until other trials have reported; None: without
                limit. This helps only if several threads call `ask`.

        Raises:
            Conflict: `max_concurrent_trials` trials are training already, or no trial could start in time.
            TunerError: the study was closed before it ended, or another process drives it.
        """
        found = self._driver.ask(timeout_s) if self._driver is not None else None
        if found is None or self._driver is None:
            return None
        trial, segment, ref = found
        return StudyTrial(
            self._driver, self._space.config(segment.params, self._seed, trial.drawn_as), trial, segment, ref
        )

    def tell(self, trial: StudyTrial, metrics: Metrics | None = None, error: str | BaseException | None = None) -> None:
        """End a trial, as `trial.tell` does: with its last metrics, or as failed if `error` is given."""
        if not isinstance(trial, StudyTrial):
            raise WrongArgument(f"expected a trial that ask() has returned, got {trial!r}")
        trial.tell(metrics, error)

    @property
    def state(self) -> str:
        """Return "running", "paused", "completed", ..."""
        return str(self._store.experiments.get(self.id).state)

    def result(self) -> Result:
        """Return the result of the study so far, of the same type as `tuner.run` returns."""
        return Result.load(self._store, self.id)

    def close(self) -> None:
        """Release the study, so that another process can continue it. Its `ask` then returns the trials that have not ended.

        After that, this study and its trials raise TunerError if they are asked or told anything.
        """
        _OPEN.discard(self)
        if self._driver is not None:
            self._driver.close()
        self._store.close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(not_here("study", name, _OF_A_STUDY))

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Study({self.name!r}, {self.id})"


_OF_A_STUDY = {  # attributes of Optuna's studies that have other names here
    "best_params": "result().best_config",
    "best_trial": "result().best_trial",
    "best_trials": "result().pareto_front()",
    "best_value": "result().best_value",
    "enqueue_trial": "the points_to_evaluate that tuner.create_study takes",
    "get_trials": "result().trials",
    "optimize": "ask() and tell(); tuner.run(objective, ...) runs an objective",
    "study_name": "name",
    "trials": "result().trials",
    "trials_dataframe": "result().dataframe()",
}
_OF_A_TRIAL = {  # attributes of Optuna's trials that have other names here
    "should_prune": "answer, which report() also returns",
    "suggest_categorical": "config, with the values that the space of the study declares",
    "suggest_float": "config, with the values that the space of the study declares",
    "suggest_int": "config, with the values that the space of the study declares",
}


class StudyTrial:
    """A trial to train.

    Attributes:
        number: the number of the trial in the study, from 0.
        config: the configuration of the trial.
        iteration: the number of reports to continue from: 0, or the iteration of `checkpoint`.
        checkpoint: the checkpoint to continue from, as it was passed to `report`; None to start from the beginning.
        answer: the answer to the newest report: "continue", "pause" or "stop".
        reason: the reason for that answer, in words.
    """

    def __init__(
        self, driver: AskedDriver, config: dict[str, Any], trial: Trial, segment: Segment, ref: SegmentRef
    ) -> None:
        self._driver, self._ref = driver, ref
        self.number = trial.number
        self.config = config
        self.params = dict(segment.params)
        self.iteration = segment.start_iteration
        self.checkpoint = segment.source.uri if segment.source is not None else None
        self.answer: Answer = "continue"
        self.reason = trial.reason

    def report(self, metrics: Metrics, checkpoint: object = None, step: int | None = None) -> Answer:
        """Report metrics, and return "continue", "pause" or "stop".

        After "pause" or "stop", do not train this trial any further, and ask for the next one. `ask` may return a
        paused trial again later. The report is in the database when this method returns.

        Args:
            metrics: numbers by name, among them the objective. Or, as in Optuna, only the value of the objective, or a list
                with the value of each objective; an int that follows such a value is the step: ``report(0.25, epoch)``.
            checkpoint: a path, or any other text that tells you where to continue the trial. Only the text is stored;
                the file is never opened or deleted.
            step: your own step count, if it differs from the number of reports.

        Raises:
            SpecError: the objective is missing and probably misspelled, or this is the last report and no report had it.
            WrongArgument: a metric is not a number, its name is too long, the list has not one value for each objective, or the
                step is not a whole number.

        After an error, nothing was reported, and the trial can continue.
        """
        if not isinstance(metrics, Mapping) and isinstance(checkpoint, Integral) and step is None:
            step, checkpoint = int(checkpoint), None
        return self._report(metrics, None if checkpoint is None else str(checkpoint), step, last=False)

    def _report(self, metrics: Metrics, checkpoint: str | None, step: int | None, last: bool) -> Answer:
        verdict = self._driver.report(self._ref, flatten(self._by_name(metrics)), checkpoint, own_step(step), last)
        self.answer = verdict.action if verdict.action in ("continue", "stop") else "pause"
        self.reason = verdict.reason or self.reason
        return self.answer

    def _by_name(self, metrics: Metrics) -> Mapping[str, Any]:
        """Return metrics by name, even if only the values of the objectives are given."""
        if isinstance(metrics, Mapping) or metrics is None:
            return metrics
        names = [objective.metric for objective in self._driver.core.spec.objectives]
        values = list(metrics) if isinstance(metrics, list | tuple) else [metrics]
        if len(values) != len(names):
            raise WrongArgument(
                f"got {counted(len(values), 'value')} for the {counted(len(names), 'objective')} {', '.join(names)}"
            )
        return dict(zip(names, values, strict=True))

    def tell(self, metrics: Metrics | None = None, error: str | BaseException | None = None) -> None:
        """End the trial. Do nothing if a report was answered with "pause" or "stop".

        Args:
            metrics: the metrics of a last report, as for `report`.
            error: what went wrong, if the trial failed, in words or as an exception.

        Raises:
            SpecError: none of the trial's reports has the objective. In this case, the trial does not end.
        """
        if metrics is not None and self.answer == "continue":
            self._report(metrics, None, None, last=error is None)
        if self.answer != "continue":
            return
        said = f"{type(error).__name__}: {text_of(error)}" if isinstance(error, BaseException) else error
        failure = None if said is None else Failure(kind="user", cause="exception", message=text_of(said))
        self._driver.end(self._ref, Outcome(kind="returned" if failure is None else "failed", failure=failure))
        self.answer = "stop"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(not_here("trial of a study", name, _OF_A_TRIAL))

    def __repr__(self) -> str:
        return f"StudyTrial({self.number}, {self.config})"
