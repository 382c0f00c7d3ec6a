"""Experiments, dry runs and parameter importances."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from tuner.api.schemas.forms import Body, Json, Model, Number, PageOf, shown, values
from tuner.domain.experiment import Limits, Scaling
from tuner.domain.keys import trial_id
from tuner.domain.states import TrialState
from tuner.experiment.preview import Importance, Preview
from tuner.experiment.usecases import how_to_go_on
from tuner.experiment.verbs import Action, actions
from tuner.space import Space
from tuner.store import (
    ExperimentRecord,
)


class Counts(Model):
    pending: Annotated[int, Field(description="trials that are pending")] = 0
    running: Annotated[int, Field(description="trials that are running")] = 0
    paused: Annotated[int, Field(description="trials that are paused")] = 0
    completed: Annotated[int, Field(description="trials that are completed")] = 0
    stopped: Annotated[int, Field(description="trials that are stopped")] = 0
    failed: Annotated[int, Field(description="trials that are failed")] = 0
    cancelled: Annotated[int, Field(description="trials that are cancelled")] = 0


class Finished(Model):
    """The best trial, by its last value, among those that were trained to their end."""

    trial_id: str
    trial_number: int
    value: Annotated[Number, Field(description="its last value")]
    iteration: int | None
    params: Json
    checkpoint_id: str | None


class Best(Model):
    """The best report that satisfies the constraints or, with scope "last", the best of the trials' last reports."""

    trial_id: str
    trial_number: int
    value: Number
    iteration: int | None
    params: Json
    checkpoint_id: str | None
    finished: Annotated[Finished | None, Field(description="null if no trial was trained to its end")] = None


class Objective(Model):
    metric: str
    mode: Literal["min", "max"]


def expected_gpu_hours(record: ExperimentRecord) -> float | None:
    """Return the estimated GPU hours of the experiment at its end, from the use of its trials so far.

    The estimate is None before the first trial has ended, and if the number of trials is not known. A running trial counts
    as half a trial.
    """
    if record.state.ended:
        return record.gpu_hours
    ended = sum(record.counts.get(state, 0) for state in ("completed", "stopped", "failed", "cancelled"))
    total, limit = record.spec.num_samples, record.spec.limits.gpu_hours
    if not ended or total is None:
        return None
    done = ended + 0.5 * record.counts.get("running", 0)
    expected = max(record.gpu_hours, record.gpu_hours * total / done)
    return expected if limit is None else max(record.gpu_hours, min(expected, limit))


class Resolved(Model):
    """The scheduler and the searcher that are actually used."""

    scheduler: Annotated[
        Json, Field(description='the scheduler, with "auto" resolved and all options, including inherited ones')
    ]
    search: Annotated[Json | None, Field(description="null if the scheduler proposes configurations itself")]
    constraints: Annotated[Json, Field(description='the constraints on results: {"size": {"max": 0.25}}')] = {}  # noqa: RUF012 - pydantic copies it
    budget: Annotated[
        str | None, Field(description="how much the search may train, and how to raise that limit, in words")
    ] = None


class Experiment(shown(ExperimentRecord)):  # type: ignore[misc]
    # `ExperimentRecord` declares the other fields; these come from the spec or are computed.
    name: str
    notes: Annotated[str, Field(description="the users' notes, in Markdown")]
    tags: Annotated[dict[str, str], Field(description="tags that users have set")]
    metric: Annotated[str, Field(description="the first objective, which schedulers use")]
    mode: Literal["min", "max"]
    objectives: Annotated[list[Objective], Field(description="all objectives; schedulers use the first")]
    num_samples: int | None
    max_t: int | None
    time_attr: str
    seed: Annotated[int, Field(description="searches with the same seed draw the same configurations")]
    priority: Annotated[int, Field(description="experiments of a higher priority get resources first")]
    weight: Annotated[
        float, Field(description="share of the cluster relative to other experiments of the same priority")
    ]
    space: Annotated[Json, Field(description="the search space, in its JSON form")]
    space_revision: Annotated[
        int, Field(description="number of changes of the space by users; a trial has the revision of its own space")
    ]
    former_spaces: Annotated[list[Json], Field(description="the earlier spaces, oldest first")]
    assumed: Annotated[
        Json,
        Field(description="new parameter -> the value that it is assumed to have had in trials of earlier spaces"),
    ]
    search: Annotated[Json, Field(description="as in the spec; `resolved` has the searcher that is used")]
    scheduler: Annotated[Json, Field(description="as in the spec; `resolved` has the scheduler that is used")]
    resolved: Annotated[
        Resolved | None,
        Field(description="the scheduler and searcher that are used; null if an older version created the experiment"),
    ]
    method: Annotated[str, Field(description='the search method in a few words: "tpe + asha", "freeze_thaw (auto)"')]
    stop: Annotated[Json, Field(description="conditions, besides reaching max_t, under which a trial is complete")]
    scaling: Annotated[Scaling, Field(description="the worker group of each trial")]
    limits: Annotated[Limits, Field(description="with defaults filled in")]
    entrypoint: Annotated[str | None, Field(description="'module:function'; null if the function is pickled by value")]
    forked_from: Annotated[
        str | None, Field(description="the experiment that this one was forked from; null if it is not a fork")
    ]
    abandoned: Annotated[
        bool,
        Field(description="true if its script has ended and no driver drives it; it continues when a user resumes it"),
    ]
    how_to_go_on: Annotated[str | None, Field(description="if it is abandoned: what to do, in words")]
    metrics: Annotated[list[str], Field(description="names of the metrics reported so far")]
    counts: Annotated[Counts, Field(description="trials by state")]
    expected_gpu_hours: Annotated[
        float | None,
        Field(
            description=(
                "estimated GPU hours at its end, if further trials use as many as those so far; null if it is too "
                "early to tell"
            )
        ),
    ]
    trials: Annotated[int, Field(description="number of trials")]
    best: Annotated[Best | None, Field(description="the best trial so far")]
    labels: Annotated[
        dict[str, list[Any]],
        Field(description="for parameters whose values are indices of choices: the meaning of each index"),
    ]
    actions: Annotated[
        list[Action], Field(description="the actions that its state allows now: verbs, edit (PATCH), delete, ...")
    ]

    @classmethod
    def of(cls, record: ExperimentRecord, metrics: list[str]) -> Self:
        spec = record.spec
        counts = Counts(**{str(state): record.counts.get(str(state), 0) for state in TrialState})
        now = time.time()
        abandoned = record.abandoned(now)
        return cls(
            **values(record),
            name=spec.name,
            notes=spec.notes,
            tags=dict(spec.tags),
            metric=spec.objective.metric,
            mode=spec.objective.mode,
            objectives=[Objective(metric=o.metric, mode=o.mode) for o in spec.objectives],
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
            resolved=Resolved(**spec.resolved) if spec.resolved else None,
            method=spec.method,
            stop=dict(spec.stop),
            scaling=spec.scaling,
            limits=spec.limits,
            entrypoint=spec.entrypoint,
            forked_from=spec.forked_from,
            abandoned=abandoned,
            how_to_go_on=how_to_go_on(record) if abandoned else None,
            metrics=metrics,
            counts=counts,
            expected_gpu_hours=expected_gpu_hours(record),
            trials=sum(counts.model_dump().values()),
            best=_best(record),
            labels=labels(json.dumps(dict(spec.space))),
            actions=actions(record, now),
        )


class Continuation(Body):
    """The changes to make when an experiment is continued."""

    num_samples: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description=(
                "trials to add; for a grid, how many more times to run it; null: add none, because raised limits "
                "allow more already"
            ),
            examples=[20],
        ),
    ] = None


class ExperimentFork(Body):
    """A new experiment with the spec of this one and changes."""

    changes: Annotated[
        dict[str, Any],
        Field(
            description=(
                "a JSON merge patch (RFC 7396) of the spec: objects are merged, null restores the default, any "
                "other value replaces the old one. Without a name, the new experiment is named after this one, "
                "with the suffix -fork"
            ),
            examples=[{"num_samples": 32, "space": {"lr": {"upper": 0.5}}, "limits": {"max_concurrent_trials": 4}}],
        ),
    ] = {}  # noqa: RUF012 - pydantic copies it
    learn: Annotated[
        bool,
        Field(description="add this experiment to warm_start, so that the new search learns from its trials"),
    ] = False


class Configuration(Model):
    params: Annotated[Json, Field(description='flat: "optimizer/lr" -> value')]
    config: Annotated[Json, Field(description="the nested dict that the training function would get")]


class DryRun(Model):
    """The effects that creating this experiment would have."""

    name: str
    metric: str
    mode: Literal["min", "max"]
    scheduler: Annotated[
        Json, Field(description='the scheduler, with "auto" resolved and all options, including inherited ones')
    ]
    search: Annotated[Json, Field(description='the searcher, with "auto" resolved and all options')]
    notes: Annotated[
        list[str], Field(description="why the scheduler, the searcher and other defaults were chosen, in words")
    ]
    num_samples: Annotated[int | None, Field(description="number of trials; null: as many as the time budget allows")]
    max_t: int | None
    time_attr: str
    scaling: Annotated[Scaling, Field(description="the worker group of each trial")]
    limits: Annotated[Limits, Field(description="with defaults filled in")]
    gpu_hours_at_most: Annotated[
        float | None,
        Field(
            description=(
                "the GPU hours if every trial trains to max_t at seconds_per_iteration, but no more than the limits "
                "allow; null if unknown"
            )
        ),
    ]
    configurations: Annotated[
        list[Configuration], Field(description="configurations of the trials that start before any result is known")
    ]

    @classmethod
    def of(cls, found: Preview) -> DryRun:
        spec = found.spec
        return cls(
            name=spec.name,
            metric=spec.objective.metric,
            mode=spec.objective.mode,
            scheduler=dict(found.scheduler),
            search=dict(found.search),
            notes=list(found.notes),
            num_samples=found.num_samples,
            max_t=found.max_t,
            time_attr=spec.time_attr,
            scaling=spec.scaling,
            limits=spec.limits,
            gpu_hours_at_most=found.gpu_hours_at_most,
            configurations=[Configuration(params=dict(p), config=dict(c)) for p, c in found.configurations],
        )


class Share(Model):
    parameter: Annotated[str, Field(description="its path: 'optimizer/lr'")]
    share: Annotated[float, Field(description="its importance, from 0 to 1")]


class Importances(Model):
    metric: str
    items: Annotated[
        list[Share],
        Field(description="the most important first; the importances add up to 1; empty if there are too few results"),
    ]
    trials: Annotated[int, Field(description="number of ended trials with a result that were used")]
    needed: Annotated[int, Field(description="number of such trials that is needed")]
    left_out: Annotated[
        int, Field(description="number of ended trials that were not used; at most 5,000 evenly spaced ones are used")
    ]

    @classmethod
    def of(cls, found: Importance) -> Importances:
        items = [Share(parameter=name, share=share) for name, share in found.shares.items()]
        return cls(metric=found.metric, items=items, trials=found.trials, needed=found.needed, left_out=found.left_out)


class ExperimentPage(PageOf[Experiment]):
    pass


@functools.lru_cache(maxsize=256)
def labels(space: str) -> dict[str, list[Any]]:
    """Return the labels of choices whose values are indices, by path. `space` is a string of JSON."""
    return Space.from_json(json.loads(space), opaque=True).labels()


def _best(record: ExperimentRecord) -> Best | None:
    best: Mapping[str, Any] | None = record.best
    if not best:
        return None
    finished = best.get("finished")
    return Best(**_placed(record, best), finished=None if finished is None else Finished(**_placed(record, finished)))


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
