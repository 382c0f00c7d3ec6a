"""Experiments, dry runs and parameter importances."""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError

from tuner.api.schemas.forms import Body, Json, Model, Number, PageOf, Timestamp, shown, values
from tuner.domain import experiment as domain
from tuner.domain.experiment import Limits, Scaling, Scope, Spec
from tuner.domain.keys import trial_id
from tuner.errors import SpecError
from tuner.experiment.analysis.forecast import samples_of
from tuner.experiment.analysis.preview import Importance, Preview
from tuner.experiment.code.bundles import bundle_in
from tuner.experiment.operations.copying import Copy
from tuner.experiment.operations.usecases import next_step
from tuner.experiment.operations.verbs import Action, actions
from tuner.experiment.specs.messages import in_words
from tuner.space import Space
from tuner.store import (
    ExperimentRecord,
)

log = logging.getLogger(__name__)


class Counts(Model):
    pending: Annotated[int, Field(description="number of pending trials")] = 0
    running: Annotated[int, Field(description="number of running trials")] = 0
    paused: Annotated[int, Field(description="number of paused trials")] = 0
    completed: Annotated[int, Field(description="number of completed trials")] = 0
    stopped: Annotated[int, Field(description="number of stopped trials")] = 0
    failed: Annotated[int, Field(description="number of failed trials")] = 0
    cancelled: Annotated[int, Field(description="number of cancelled trials")] = 0


class Finished(Model):
    """The trial with the best last value among the trials that were trained to their end."""

    trial_id: str
    trial_number: int
    value: Annotated[Number, Field(description="the last value that the trial reported for the first objective")]
    iteration: int | None
    params: Json
    checkpoint_id: str | None


class BestOf(Model):
    """The best value of one objective."""

    metric: str
    value: Number
    trial_id: str
    trial_number: int


class Repeated(Model):
    """A configuration with several runs."""

    trials: Annotated[list[int], Field(description="the numbers of the trials, the first run first")]
    mean: Annotated[Number, Field(description="the mean of their values")]
    expected: Annotated[Number, Field(description="the expected value of the configuration, given its runs")]


class Single(Model):
    """The expected value of a configuration with a single run: middle + weight * (value - middle)."""

    middle: Annotated[Number, Field(description="the expected value of a configuration without a run")]
    weight: Annotated[Number, Field(description="how much a single run counts, from 0 to 1")]


class Runs(Model):
    """The runs of the best configuration, after repeats (`limits.repeats`), and the expected values of the others."""

    trials: Annotated[list[int], Field(description="the numbers of the trials, the first run first")]
    values: Annotated[list[Number], Field(description="the value of each of these trials")]
    mean: Annotated[Number, Field(description="the mean of the values")]
    error: Annotated[
        Number, Field(description="the standard deviation of the configuration's expected value, given its runs")
    ]
    noise: Annotated[
        Number, Field(description="the standard deviation of the results of a configuration from run to run")
    ]
    pairs: Annotated[
        int, Field(description="the number of runs from which the noise was estimated, not counting first runs")
    ]
    repeated: Annotated[
        list[Repeated],
        Field(
            description="the configurations with several runs, the one with the best expected value first; at most 100"
        ),
    ] = []  # noqa: RUF012 - pydantic copies it
    single: Annotated[
        Single | None,
        Field(description="the expected value of each configuration with a single run; null in old experiments"),
    ] = None
    dropped: Annotated[
        list[int],
        Field(
            description="the first runs of the configurations that do not lead because a repeat failed, diverged or violated "
            "the constraints"
        ),
    ] = []  # noqa: RUF012 - pydantic copies it


class Best(Model):
    """The best report that satisfies the constraints. With scope "last", only the last report of each trial is considered.

    After repeats, this is the first run of the configuration with the best expected value, and `value` is the mean over its runs.
    """

    trial_id: str
    trial_number: int
    value: Number
    iteration: int | None
    params: Annotated[
        Json,
        Field(
            description="the configuration at that report; if the search changes configurations during training, as PBT does, "
            "earlier iterations were trained with others: see `schedule` of GET /trials/{trial_id}/lineage?at=best"
        ),
    ]
    checkpoint_id: str | None
    finished: Annotated[
        Finished | None,
        Field(description="the best trial among those that were trained to their end; null if there is none"),
    ] = None
    objectives: Annotated[
        list[BestOf],
        Field(
            description="the best value of each objective, if there are several; different trials may have reported them"
        ),
    ] = []  # noqa: RUF012 - pydantic copies it
    runs: Annotated[
        Runs | None, Field(description="the runs of the best configuration; null if no configuration was repeated")
    ] = None


class Objective(Model):
    metric: str
    mode: Literal["min", "max"]


def expected_gpu_hours(record: ExperimentRecord) -> float | None:
    """Return an estimate of the GPU hours that the experiment will have used at its end.

    It assumes that further trials use as many GPU hours as the trials so far, of which a running one counts as half a trial.
    Return None before the first trial has ended, or if the number of trials is not limited.
    """
    if record.state.ended:
        return record.gpu_hours
    ended = sum(record.counts.get(state, 0) for state in ("completed", "stopped", "failed", "cancelled"))
    limit = record.spec.limits.gpu_hours
    try:
        total = samples_of(record.spec) if ended else None
    except SpecError:  # an earlier version has accepted the search space
        total = None
    if total is None:
        return None
    done = ended + 0.5 * record.counts.get("running", 0)
    expected = max(record.gpu_hours, record.gpu_hours * total / done)
    return expected if limit is None else max(record.gpu_hours, min(expected, limit))


class Resolved(Model):
    """The scheduler and the searcher that the experiment uses, after "auto" and defaults have been replaced."""

    scheduler: Annotated[
        Json,
        Field(
            description='the scheduler with all its options, including those taken from the experiment; "auto" is replaced by '
            "the scheduler that was chosen"
        ),
    ]
    search: Annotated[
        Json | None,
        Field(description="the searcher with all its options; null if the scheduler proposes configurations itself"),
    ]
    constraints: Annotated[
        Json, Field(description='the constraints on reported metrics, such as {"size": {"max": 0.25}}')
    ] = {}  # noqa: RUF012 - pydantic copies it
    budget: Annotated[
        str | None, Field(description="a sentence on how much training the search may do, and how to allow more")
    ] = None

    @classmethod
    def of(cls, spec: Spec) -> Resolved | None:
        return cls(**spec.resolved) if spec.resolved else None  # "runtime_env" is not a field, and is left out


class Experiment(shown(ExperimentRecord)):  # type: ignore[misc]
    # These fields come from the spec or are computed. `ExperimentRecord` declares the rest.
    name: str
    notes: Annotated[str, Field(description="notes that users have written, in Markdown")]
    tags: Annotated[dict[str, str], Field(description="tags that users have set")]
    metric: Annotated[str, Field(description="the first objective, by which schedulers compare trials")]
    mode: Literal["min", "max"]
    scope: Annotated[
        Scope,
        Field(
            description='which value of a trial counts, in best_value and all rankings: "all", its best; "last", its last'
        ),
    ]
    objectives: Annotated[list[Objective], Field(description="all objectives; schedulers use only the first one")]
    num_samples: int | None
    max_t: int | None
    time_attr: str
    seed: Annotated[
        int, Field(description="the seed of the search: the same seed gives the same random configurations")
    ]
    priority: Annotated[
        int, Field(description="the experiment's priority; experiments with a higher priority get resources first")
    ]
    weight: Annotated[
        float,
        Field(description="the experiment's share of the cluster relative to other experiments of the same priority"),
    ]
    space: Annotated[Json, Field(description="the search space, in its JSON form")]
    space_revision: Annotated[
        int,
        Field(
            description="how often users have changed the search space; each trial shows the revision with which it was created"
        ),
    ]
    former_spaces: Annotated[list[Json], Field(description="the search spaces before the current one, oldest first")]
    assumed: Annotated[
        Json,
        Field(
            description="parameter that was added later -> the value that it is assumed to have in trials of earlier spaces"
        ),
    ]
    search: Annotated[Json, Field(description="the searcher as in the spec; `resolved` has the one that is used")]
    scheduler: Annotated[Json, Field(description="the scheduler as in the spec; `resolved` has the one that is used")]
    resolved: Annotated[
        Resolved | None,
        Field(description="the scheduler and searcher that are used; null if an older version created the experiment"),
    ]
    method: Annotated[
        str,
        Field(
            description='the searcher and the scheduler in a few words, such as "tpe + asha" or "freeze_thaw (auto)"'
        ),
    ]
    stop: Annotated[Json, Field(description="conditions under which a trial is complete before it reaches max_t")]
    scaling: Annotated[Scaling, Field(description="the number of ranks of each trial, and their resources")]
    executor: Annotated[
        Literal["auto", "ray", "local", "agents"],
        Field(description="where trials run, as in the spec; those of agents hold none of the cluster's resources"),
    ]
    limits: Annotated[Limits, Field(description="the limits, with defaults filled in")]
    entrypoint: Annotated[
        str | None,
        Field(description="the training function as 'module:function'; null if the function is pickled by value"),
    ]
    bundle: Annotated[
        str | None, Field(description="the SHA-256 of the code bundle that the ranks can import; null if there is none")
    ]
    forked_from: Annotated[
        str | None, Field(description="the experiment that this one was forked from; null if it is not a fork")
    ]
    warm_start: Annotated[
        Literal["auto"] | list[str] | None,
        Field(
            description="the earlier experiments to learn from, as in the spec or, if it names none, in the project's settings"
        ),
    ]
    learned_from: Annotated[
        list[str],
        Field(description="the names of the experiments from which something was learned when this one was created"),
    ]
    paused_since: Annotated[
        Timestamp | None,
        Field(
            description="when the current pause began, or about when the script of an abandoned experiment ended; null while the "
            "experiment is running and after its end"
        ),
    ]
    abandoned: Annotated[
        bool,
        Field(
            description="true if the experiment's script has ended, so that no driver drives the experiment; a user can resume it"
        ),
    ]
    next_step: Annotated[
        str | None,
        Field(description="what to do to continue an abandoned experiment, in words; null if it is not abandoned"),
    ]
    metrics: Annotated[list[str], Field(description="the names of the metrics that trials have reported so far")]
    counts: Annotated[Counts, Field(description="trials by state")]
    expected_gpu_hours: Annotated[
        float | None,
        Field(
            description=(
                "an estimate of the GPU hours that the experiment will have used at its end; null if it is too early to tell"
            )
        ),
    ]
    trials: Annotated[int, Field(description="number of trials")]
    best: Annotated[Best | None, Field(description="the best result so far")]
    labels: Annotated[
        dict[str, list[Any]],
        Field(description="parameter whose values are indices of choices -> the label of each index"),
    ]
    unreadable: Annotated[
        str | None,
        Field(
            description="what this version of tuner cannot read of the experiment, which another version has written, in "
            "words; null if it can read everything"
        ),
    ] = None
    actions: Annotated[
        list[Action],
        Field(description="the actions that the experiment's state allows now: verbs, edit (PATCH), delete, ..."),
    ]

    @classmethod
    def of(cls, record: ExperimentRecord, metrics: list[str]) -> Experiment:
        """Return an experiment as the API shows it. Do not change what is returned: later calls may return the same object."""
        return _kept(_Version(record, tuple(metrics), record.abandoned(time.time())))

    @classmethod
    def once(cls, record: ExperimentRecord, metrics: list[str]) -> Experiment:
        """Return the same as `of`, but do not cache it.

        Use this for a version of an experiment that is shown only once, such as a new experiment, which changes as soon as a
        driver starts it. In the cache, it would displace an experiment of a list, and slow garbage collections down.
        """
        return _shown(_Version(record, tuple(metrics), record.abandoned(time.time())))


@dataclass(frozen=True, slots=True)
class _Version:
    """The values from which the API's form of an experiment is built."""

    record: ExperimentRecord
    metrics: tuple[str, ...]
    abandoned: bool

    def __hash__(self) -> int:
        return hash((self.record.id, self.record.last_event_seq, self.record.state))


@functools.lru_cache(maxsize=1000)
def _kept(version: _Version) -> Experiment:
    """Return the API's form of an experiment, from a cache if it is there.

    Clients read the same pages of the list again and again, and most experiments on a page have not changed. Comparing two
    records takes a tenth of the time that building this form takes.
    """
    return _shown(version)


def _shown(version: _Version) -> Experiment:
    record = version.record
    try:
        return _form(version, record.unreadable)
    except Exception as error:  # a list has to show the other experiments, whatever another version has written here
        log.warning("%s is shown without its spec, which this version cannot read", record.public_id, exc_info=error)
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, ValidationError):
            said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {in_words(one)}" for one in error.errors())
        bare = replace(version, record=replace(record, spec=_bare(record.spec)))
        return _form(bare, f"this version of tuner cannot read the experiment's spec: {said}")


def _bare(spec: Spec) -> Spec:
    """Return a spec with the name and the objectives of one that cannot be shown, as far as they can be."""
    objectives = [each for each in spec.objectives if isinstance(each.metric, str) and each.mode in ("min", "max")]
    return Spec(name=str(spec.name), space={}, objectives=tuple(objectives) or (domain.Objective("?", "min"),))


def _form(version: _Version, unreadable: str | None) -> Experiment:
    """Return the API's form of an experiment. unreadable: what cannot be read in its spec, as far as it is known."""
    record, abandoned = version.record, version.abandoned
    spec = record.spec
    names: dict[str, list[Any]] = {}
    try:
        names = labels(json.dumps(dict(spec.space)))
    except SpecError as error:
        unreadable = unreadable or f"this version of tuner does not accept the experiment's spec: {error}"
    return Experiment(
        **values(record),
        name=spec.name,
        notes=spec.notes,
        tags=dict(spec.tags),
        metric=spec.objective.metric,
        mode=spec.objective.mode,
        scope=spec.scope,
        objectives=[{"metric": each.metric, "mode": each.mode} for each in spec.objectives],
        num_samples=spec.num_samples,
        max_t=spec.max_t,
        time_attr=spec.time_attr,
        seed=spec.seed,
        priority=spec.priority,
        weight=spec.weight,
        space=dict(spec.space),
        space_revision=spec.space_revision,
        former_spaces=[dict(space) for space in spec.former_spaces],
        assumed=dict(spec.assumed),
        search=dict(spec.search),
        scheduler=dict(spec.scheduler),
        resolved=Resolved.of(spec),
        method=spec.method,
        stop=dict(spec.stop),
        scaling=spec.scaling,
        executor=spec.executor,
        limits=spec.limits,
        entrypoint=spec.entrypoint,
        bundle=bundle_in(spec.runtime_env),
        forked_from=spec.forked_from,
        warm_start=spec.warm_start if spec.warm_start is None or spec.warm_start == "auto" else [*spec.warm_start],
        learned_from=[each["name"] for each in spec.earlier.get("experiments", ())],
        paused_since=(record.lease_until or None) if abandoned else record.paused_since,
        abandoned=abandoned,
        next_step=next_step(record) if abandoned else None,
        metrics=[*version.metrics],
        counts=dict(record.counts),
        expected_gpu_hours=expected_gpu_hours(record),
        trials=sum(record.counts.values()),
        best=_best(record),
        labels=names,
        unreadable=unreadable and unreadable[0].upper() + unreadable[1:],
        actions=actions(record, abandoned),
    )


class Continuation(Body):
    """The body of a request that continues an experiment."""

    num_samples: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description=(
                "the number of trials to add; for a grid, how many more times to run it; null: add no trials, for example "
                "after you have raised a limit"
            ),
            examples=[20],
        ),
    ] = None


class ExperimentFork(Body):
    """The body of a request that creates an experiment from the spec of an existing one."""

    changes: Annotated[
        dict[str, Any],
        Field(
            description=(
                "the changes as a JSON merge patch (RFC 7396) of the spec: objects are merged, null restores the default, all "
                "other values replace the old ones. If the patch has no name, the new experiment gets the name of the existing "
                "one with the suffix -fork"
            ),
            examples=[{"num_samples": 32, "space": {"lr": {"upper": 0.5}}, "limits": {"max_concurrent_trials": 4}}],
        ),
    ] = {}  # noqa: RUF012 - pydantic copies it
    learn: Annotated[
        bool,
        Field(
            description="true: add the existing experiment to warm_start, so that the new search learns from its trials"
        ),
    ] = False


class LeftOut(Model):
    pointer: Annotated[str, Field(description="the JSON pointer to the field")]
    reason: Annotated[str, Field(description="why it is left out, and what to do instead")]


class SpecCopy(Model):
    """The spec of an experiment as `POST /experiments` takes it."""

    spec: Annotated[
        Json,
        Field(
            description="the current spec, without the options that have their defaults; `seed` and `warm_start` are always there"
        ),
    ]
    left_out: Annotated[
        list[LeftOut], Field(description="what a spec cannot contain, such as a function that was sent from Python")
    ]

    @classmethod
    def of(cls, found: Copy) -> Self:
        left_out = [LeftOut(pointer=pointer, reason=reason) for pointer, reason in found.left_out]
        return cls(spec=found.spec, left_out=left_out)


class Configuration(Model):
    params: Json
    config: Annotated[
        Json, Field(description="the configuration as the nested dict that the training function would get")
    ]


class Reached(Model):
    iteration: Annotated[int, Field(description="a training iteration")]
    trials: Annotated[
        int, Field(description="the number of trials that will probably be trained to at least this iteration")
    ]


class DryRun(Model):
    """A preview of the experiment that a spec describes, with all defaults and with the choices that tuner makes."""

    name: str
    metric: str
    mode: Literal["min", "max"]
    method: Annotated[
        str,
        Field(
            description='the searcher and the scheduler in a few words, such as "tpe + asha" or "freeze_thaw (auto)"'
        ),
    ]
    scheduler: Annotated[
        Json,
        Field(
            description='the scheduler with all its options, including those taken from the experiment; "auto" is replaced by '
            "the scheduler that was chosen"
        ),
    ]
    search: Annotated[
        Json, Field(description='the searcher with all its options; "auto" is replaced by the searcher that was chosen')
    ]
    notes: Annotated[
        list[str], Field(description="why the scheduler, the searcher and other defaults were chosen, in words")
    ]
    num_samples: Annotated[
        int | None, Field(description="the number of trials; null: as many as the time budget allows")
    ]
    max_t: int | None
    time_attr: str
    scaling: Annotated[Scaling, Field(description="the number of ranks of each trial, and their resources")]
    limits: Annotated[Limits, Field(description="the limits, with defaults filled in")]
    gpu_hours_at_most: Annotated[
        float | None,
        Field(
            description=(
                "the GPU hours that the experiment uses if every trial is trained to max_t at seconds_per_iteration, or that the "
                "limits allow, whichever is less; null if unknown"
            )
        ),
    ]
    labels: Annotated[
        dict[str, list[Any]],
        Field(description="parameter whose values are indices of choices -> the label of each index"),
    ]
    reached: Annotated[
        list[Reached] | None,
        Field(
            description=(
                "how far the trials will probably be trained: all to max_t, or as far as the scheduler would train trials in "
                "random order. Limits on time and GPU hours are ignored, and so are all "
                "conditions of `stop` except training_iteration. null: this depends on the reported values, or there "
                "are too many trials"
            )
        ),
    ]
    expected_gpu_hours: Annotated[
        float | None,
        Field(
            description="the GPU hours of the training in `reached` at seconds_per_iteration, at most gpu_hours_at_most; null "
            "if unknown"
        ),
    ]
    configurations: Annotated[
        list[Configuration],
        Field(description="the configurations of the first trials, which are chosen before any result is known"),
    ]

    @classmethod
    def of(cls, found: Preview) -> DryRun:
        spec = found.spec
        return cls(
            name=spec.name,
            metric=spec.objective.metric,
            mode=spec.objective.mode,
            method=found.method,
            scheduler=dict(found.scheduler),
            search=dict(found.search),
            notes=list(found.notes),
            num_samples=found.num_samples,
            max_t=found.max_t,
            time_attr=spec.time_attr,
            scaling=spec.scaling,
            limits=spec.limits,
            gpu_hours_at_most=found.gpu_hours_at_most,
            labels=labels(json.dumps(dict(spec.space))),
            reached=None
            if found.reached is None
            else [Reached(iteration=iteration, trials=trials) for iteration, trials in found.reached],
            expected_gpu_hours=found.expected_gpu_hours,
            configurations=[Configuration(params=dict(p), config=dict(c)) for p, c in found.configurations],
        )


class Share(Model):
    parameter: Annotated[str, Field(description="the path of the parameter, such as 'optimizer/lr'")]
    share: Annotated[float, Field(description="the importance of the parameter, from 0 to 1")]


class Importances(Model):
    metric: Annotated[str, Field(description="the objective to which the importances refer")]
    items: Annotated[
        list[Share],
        Field(
            description="the parameters, most important first; their importances add up to 1; empty if there are too few results"
        ),
    ]
    trials: Annotated[
        int,
        Field(description="the number of ended trials whose results were used; a trial and its repeats count once"),
    ]
    completed: Annotated[int, Field(description="how many of these trials were trained to their end")]
    stopped: Annotated[
        int, Field(description="how many of these trials were stopped early; their values are from less training")
    ]
    repeats: Annotated[
        int,
        Field(
            description="the number of repeats; the mean of a trial's and its repeats' values counts as the trial's value"
        ),
    ]
    needed: Annotated[
        int,
        Field(description="the minimum number of ended trials with a result; with fewer, no importance is computed"),
    ]
    left_out: Annotated[
        int,
        Field(
            description="the number of ended trials that were left out, because at most 5,000 evenly spaced ones are used"
        ),
    ]

    @classmethod
    def of(cls, found: Importance) -> Importances:
        items = [Share(parameter=name, share=share) for name, share in found.shares.items()]
        return cls(
            metric=found.metric,
            items=items,
            trials=found.trials,
            completed=found.completed,
            stopped=found.stopped,
            repeats=found.repeats,
            needed=found.needed,
            left_out=found.left_out,
        )


class ExperimentPage(PageOf[Experiment]):
    pass


@functools.lru_cache(maxsize=256)
def labels(space: str) -> dict[str, list[Any]]:
    """Return a mapping from paths of parameters to labels of choices, for parameters whose values are indices of choices.

    `space` is the search space as a JSON string.
    """
    return Space.from_json(json.loads(space), opaque=True).labels()


def _best(record: ExperimentRecord) -> Best | None:
    best: Mapping[str, Any] | None = record.best
    if not best:
        return None
    finished = best.get("finished")
    return Best(
        **_placed(record, best),
        finished=None if finished is None else Finished(**_placed(record, finished)),
        objectives=[
            BestOf(**one, trial_id=trial_id(record.public_id, one["trial_number"]))
            for one in best.get("objectives") or ()
        ],
        runs=None if best.get("runs") is None else Runs(**best["runs"]),
    )


def _placed(record: ExperimentRecord, found: Mapping[str, Any]) -> dict[str, Any]:
    number = int(found["trial_number"])
    return {
        "trial_id": trial_id(record.public_id, number),
        "trial_number": number,
        "value": found.get("value"),
        "iteration": found.get("iteration"),
        "params": dict(found.get("params") or {}),
        "checkpoint_id": found.get("checkpoint_id"),
    }
