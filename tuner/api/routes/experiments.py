"""/experiments: create, find, change and follow experiments, and evaluate their results."""

from __future__ import annotations

import math
import time
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from tuner.api import schemas
from tuner.api.answers import (
    BAD,
    BUSY,
    CONFLICT,
    NOT_FOUND,
    STALE,
    AcrossQuery,
    ExperimentId,
    IfMatch,
    PageSize,
    PageToken,
    XMetric,
    answer,
    checked,
    etag,
    json_body,
    knows,
    optional_json_body,
    plain_text,
    revision_of,
    shown_experiment,
)
from tuner.api.context import Context, Here
from tuner.api.permission import Permission
from tuner.api.stream import ChangedRows, Events, Form, follow
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import Cause
from tuner.errors import NotFound, SpecError
from tuner.experiment import forecast as forecasts
from tuner.experiment import replay as replays
from tuner.experiment import timeline as timelines
from tuner.experiment import trials, usecases
from tuner.experiment.fork import fork_experiment
from tuner.experiment.pareto import front
from tuner.experiment.removal import delete_experiment
from tuner.store import ExperimentRecord, Store

router = APIRouter(tags=["experiments"])
MAX_SEQ = 2**62
MOST_REPLAYED = 200_000
"""Experiments with more reports than this are not replayed. A replay of this many reports takes about ten seconds."""

IdempotencyKey = Annotated[
    str | None,
    Header(
        max_length=200,
        description="a key that identifies this request; if it is repeated with the same key, nothing is created, and the "
        "response is that of the first request",
    ),
]


@router.post(
    "/experiments",
    status_code=201,
    response_model=schemas.Experiment,
    responses={**BAD, **CONFLICT, **BUSY},
    summary="Create an experiment. A driver starts it.",
)
async def create(
    here: Here,
    data: Annotated[Any, Depends(json_body)],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    def create() -> Response:
        wanted = here.bundles.applied(_in_project(here, data))
        record = usecases.create_experiment(here.store, wanted, here.checker, idempotency_key=idempotency_key)
        here.poke()
        return _created(record)

    return await here.off_the_pool(create)


@router.post(
    "/experiments/dry-run",
    response_model=schemas.DryRun,
    responses={**BAD, **BUSY},
    summary="Check a spec, and return what its experiment would do. Nothing is created.",
)
async def dry_run(
    here: Here,
    data: Annotated[Any, Depends(json_body)],
    configurations: Annotated[
        int, Query(ge=0, le=100, description="how many of the first configurations to return")
    ] = 5,
    seconds_per_iteration: Annotated[
        float | None,
        Query(
            gt=0,
            allow_inf_nan=False,
            description="seconds that one unit of time_attr takes; needed to estimate the GPU hours",
        ),
    ] = None,
) -> Response:
    def dry_run() -> Response:
        spec = here.bundles.applied(_in_project(here, data))
        return answer(schemas.DryRun.of(usecases.dry_run(spec, here.checker, configurations, seconds_per_iteration)))

    return await here.off_the_pool(dry_run)


@router.get(
    "/experiments", response_model=schemas.ExperimentPage, responses=BAD, summary="List experiments, newest first."
)
def list_experiments(
    here: Here,
    state: Annotated[ExperimentState | None, Query(description="only experiments in this state")] = None,
    name: Annotated[
        str | None, Query(max_length=200, description="only experiments with this text in their name")
    ] = None,
    tag: Annotated[
        list[str] | None,
        Query(
            max_length=20,
            description="only experiments with this tag, written as key or key=value; if repeated, with all of these tags",
            examples=[["team=vision"]],
        ),
    ] = None,
    archived: Annotated[
        Literal["no", "yes", "all"],
        Query(description="no: only experiments that are not archived; yes: only archived ones; all: both"),
    ] = "no",
    project: Annotated[str | None, Query(max_length=100, description="only experiments of this project")] = None,
    page_size: PageSize = 50,
    page_token: PageToken = None,
) -> Response:
    page = here.store.experiments.page(
        state=state,
        name=_optional(name),
        project=_optional(project),
        tags=[plain_text(one) for one in tag or ()],
        archived=None if archived == "all" else archived == "yes",
        page_size=page_size,
        page_token=page_token,
    )
    metrics = here.store.metrics.names_of([record.id for record in page.items])
    items = [schemas.Experiment.of(record, metrics[record.id]) for record in page.items]
    return answer(schemas.ExperimentPage(items=items, next_page_token=page.next_token))


@router.get(
    "/experiments/{experiment_id}", response_model=schemas.Experiment, responses=NOT_FOUND, summary="Get an experiment."
)
def get(here: Here, experiment_id: ExperimentId) -> Response:
    return shown_experiment(here.store, _find(here.store, experiment_id))


@router.patch(
    "/experiments/{experiment_id}",
    response_model=schemas.Experiment,
    responses={**NOT_FOUND, **CONFLICT, **STALE, **BAD},
    summary="Change the name, notes, tags, num_samples, limits or search space of an experiment, also while it runs.",
)
def change(
    here: Here, experiment_id: ExperimentId, data: Annotated[Any, Depends(json_body)], if_match: IfMatch = None
) -> Response:
    record = usecases.amend_experiment(here.store, plain_text(experiment_id), data, revision=revision_of(if_match))
    here.poke()
    return shown_experiment(here.store, record)


@router.delete(
    "/experiments/{experiment_id}",
    status_code=204,
    responses={**NOT_FOUND, **CONFLICT, **STALE, **BAD},
    summary="Delete an experiment with its trials, checkpoints and logs.",
)
async def delete(
    here: Here,
    experiment_id: ExperimentId,
    force: Annotated[bool, Query(description="kill the experiment first if it has not ended")] = False,
    if_match: IfMatch = None,
) -> Response:
    def delete() -> Response:
        delete_experiment(
            here.store,
            plain_text(experiment_id),
            storage=here.settings.storage,
            logs=here.settings.home / "logs",
            force=force,
            revision=revision_of(if_match),
            poke=here.poke,
        )
        return Response(status_code=204)

    return await here.off_the_pool(delete)


@router.post(
    "/experiments/{experiment_id}/fork",
    status_code=201,
    response_model=schemas.Experiment,
    responses={**NOT_FOUND, **BAD, **CONFLICT, **BUSY},
    summary="Create an experiment from the spec of an existing one, with changes.",
)
async def fork(
    here: Here,
    experiment_id: ExperimentId,
    data: Annotated[Any, Depends(optional_json_body)],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    given = checked(schemas.ExperimentFork, {} if data is None else data)

    def fork() -> Response:
        record = fork_experiment(
            here.store,
            plain_text(experiment_id),
            given.changes,
            here.checker,
            learn=given.learn,
            idempotency_key=idempotency_key,
            prepare=here.bundles.applied,
        )
        here.poke()
        return _created(record)

    return await here.off_the_pool(fork)


@router.post(
    "/experiments/{experiment_id}/archive",
    response_model=schemas.Experiment,
    responses={**NOT_FOUND, **CONFLICT},
    summary="Archive an experiment that has ended: lists leave it out, but no data are deleted.",
)
def archive(here: Here, experiment_id: ExperimentId) -> Response:
    return shown_experiment(here.store, usecases.archive_experiment(here.store, plain_text(experiment_id), True))


@router.post(
    "/experiments/{experiment_id}/unarchive",
    response_model=schemas.Experiment,
    responses=NOT_FOUND,
    summary="Unarchive an experiment, so that lists show it again.",
)
def unarchive(here: Here, experiment_id: ExperimentId) -> Response:
    return shown_experiment(here.store, usecases.archive_experiment(here.store, plain_text(experiment_id), False))


@router.post(
    "/experiments/{experiment_id}/enqueue",
    status_code=202,
    response_model=schemas.Experiment,
    responses={**NOT_FOUND, **CONFLICT, **BAD},
    summary="Add trials with given configurations. They start before all others, and do not count towards num_samples.",
)
def enqueue(here: Here, experiment_id: ExperimentId, data: Annotated[Any, Depends(json_body)]) -> Response:
    given = checked(schemas.Enqueue, data)
    record = trials.enqueue(here.store, plain_text(experiment_id), given.configurations)
    here.poke()
    return shown_experiment(here.store, record, 202)


@router.get(
    "/experiments/{experiment_id}/best",
    response_model=schemas.Best,
    responses=NOT_FOUND,
    summary="Get the best report so far, with its configuration and checkpoint.",
)
def best(here: Here, experiment_id: ExperimentId) -> Response:
    record = _find(here.store, experiment_id)
    found = schemas.Experiment.of(record, []).best
    if found is None:
        raise NotFound(f"{experiment_id} has no best trial: {record.no_best or 'no trial has reported yet'}")
    return answer(found)


@router.get(
    "/experiments/{experiment_id}/pareto",
    response_model=schemas.Pareto,
    responses=NOT_FOUND,
    summary="Get the trials on the Pareto front of the objectives.",
)
def pareto(here: Here, request: Request, experiment_id: ExperimentId) -> Response:
    record = _find(here.store, experiment_id)
    tag = etag(f"pareto {record.public_id} {record.last_event_seq}".encode())
    if knows(request, tag):
        return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "no-cache"})
    metrics = [objective.metric for objective in record.spec.objectives]
    numbers, values = here.store.trials.objectives(record.id, metrics)
    rows = front(np.array(values, float).reshape(-1, len(metrics)), record.spec.objectives)
    found = here.store.trials.numbered(record.id, [numbers[row] for row in rows[:1000]])
    items = [schemas.Trial.of(trial, record) for trial in found]
    return answer(schemas.Pareto(metrics=metrics, items=items, total=len(rows), of=len(numbers)), tag=tag)


@router.get(
    "/experiments/{experiment_id}/checkpoints",
    response_model=schemas.CheckpointPage,
    responses={**NOT_FOUND, **BAD},
    summary="List the checkpoints of an experiment or of one trial, newest first.",
)
def list_checkpoints(
    here: Here,
    experiment_id: ExperimentId,
    trial: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="a trial's number")] = None,
    state: Annotated[
        Literal["uploading", "ready", "deleted"] | None, Query(description="only checkpoints in this state")
    ] = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> Response:
    record = _find(here.store, experiment_id)
    page = here.store.trials.checkpoint_page(
        record.id, trial_number=trial, state=state, page_size=page_size, page_token=page_token
    )
    items = [schemas.CheckpointItem.of(item, record) for item in page.items]
    return answer(schemas.CheckpointPage(items=items, next_page_token=page.next_token))


@router.get(
    "/experiments/{experiment_id}/trials",
    response_model=schemas.TrialPage,
    responses={**NOT_FOUND, **BAD},
    summary="List the trials of an experiment, sorted and filtered by any column, without their segments.",
)
def list_trials(
    here: Here,
    experiment_id: ExperimentId,
    state: Annotated[TrialState | None, Query(description="only trials in this state")] = None,
    sort: Annotated[
        str,
        Query(
            max_length=1000,
            description=(
                "the column to sort by: number, state, best_value, iteration, params.NAME, last.METRIC, ...; a minus before the "
                "column sorts in descending order; trials without a value come last, and trials with equal values are sorted by "
                "number"
            ),
        ),
    ] = "number",
    where: Annotated[
        list[str] | None,
        Query(
            max_length=20,
            description=(
                "a condition that the trials must meet: a column, an operator and a value; the operators are = != < <= > >= "
                "~ (the column contains this text) ?= (the column is in this JSON list; null in the list means no value); if the "
                "parameter is repeated, all conditions must hold"
            ),
            examples=[["best_value>=0.9", "params.optimizer=adam"]],
        ),
    ] = None,
    page_size: PageSize = 100,
    page_token: Annotated[
        str | None, Query(max_length=2000, description="next_page_token of the previous page")
    ] = None,
) -> Response:
    record = _find(here.store, experiment_id)
    if sort == "number" and not where:
        page = here.store.trials.page(record.id, state=state, page_size=page_size, page_token=page_token)
        total = sum(record.counts.values()) if state is None else record.counts.get(state, 0)
    else:
        page, total = here.store.trials.sorted_page(
            record.id, sort=sort, where=where or (), state=state, page_size=page_size, page_token=page_token
        )
    items = [schemas.Trial.of(trial, record) for trial in page.items]
    return answer(schemas.TrialPage(items=items, next_page_token=page.next_token, total=total))


@router.get(
    "/experiments/{experiment_id}/trials/sample",
    response_model=schemas.TrialSample,
    responses={**NOT_FOUND, **BAD},
    summary="Get a sample of the trials for a chart: the best trials, and an even selection of the others.",
)
def sample(
    here: Here,
    experiment_id: ExperimentId,
    size: Annotated[
        int, Query(ge=1, le=10_000, description="the most trials to return; half of them are the best ones")
    ] = 1000,
) -> Response:
    record = _find(here.store, experiment_id)
    found = here.store.trials.sample(record.id, record.spec.objective.mode, size)
    longest = (record.spec.resolved or {}).get("scheduler", record.spec.scheduler).get("max_t") or record.spec.max_t
    trained = None
    if isinstance(longest, int | float) and record.spec.time_attr == "training_iteration":
        trained = here.store.trials.trained(record.id, longest)
    return answer(schemas.TrialSample.of(found, trained, record))


@router.get(
    "/experiments/{experiment_id}/curves",
    response_model=schemas.Curves,
    responses={
        200: {
            "content": {
                schemas.COLUMNS: {
                    "schema": {"type": "string", "format": "binary", "description": schemas.COLUMNS_WORDS}
                }
            }
        },
        **NOT_FOUND,
        **BAD,
    },
    summary="Get the curve of a metric for each trial, reduced to the resolution of a screen without losing spikes.",
)
def curves(
    here: Here,
    request: Request,
    experiment_id: ExperimentId,
    metric: Annotated[
        str | None, Query(max_length=1000, description="the name of a metric; default: the first objective")
    ] = None,
    x: AcrossQuery = "step",
    x_metric: XMetric = None,
    points: Annotated[
        int | None,
        Query(ge=4, le=100_000, description="approximate number of points of the longest curve; default: 1000"),
    ] = None,
    low: Annotated[float | None, Query(alias="from", description="where the curves start on the x axis")] = None,
    high: Annotated[float | None, Query(alias="to", description="where the curves end on the x axis")] = None,
    trial: Annotated[
        list[int] | None,
        Query(
            max_length=1000,
            description="the numbers of the trials; default: the trials that /trials/sample returns with size=limit",
        ),
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=10_000, description="the most trials to return if `trial` is not given")
    ] = 2000,
    max_points: Annotated[int | None, Query(ge=4, le=100_000, deprecated=True, description="as points")] = None,
) -> Response:
    record = _find(here.store, experiment_id)
    for name, value in (("from", low), ("to", high)):
        if value is not None and not math.isfinite(value):
            raise SpecError("expected a finite number", f"/{name}")
    form = schemas.COLUMNS if schemas.COLUMNS in request.headers.get("accept", "") else "application/json"
    # The response depends only on the log, so its ETag is known, and a 304 can be sent, before the curves are read.
    tag = etag(f"{record.public_id} {record.last_event_seq} {record.state} {request.url.query} {form}".encode())
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept"}
    if knows(request, tag):
        return Response(status_code=304, headers=headers)
    metric = _optional(metric) or record.spec.objective.metric
    total = sum(record.counts.values())
    wanted = None if trial is None else [number for number in trial if 0 <= number < 2**31]
    if wanted is None and total > limit:
        wanted = here.store.trials.sample_numbers(record.id, record.spec.objective.mode, limit)
    x_metric = _optional(x_metric)
    found = here.store.metrics.curve_columns(
        record.id,
        metric,
        x=x,
        x_metric=x_metric,
        points=points or max_points or 1000,
        low=low,
        high=high,
        trials=wanted,
    )
    best = here.store.metrics.best_so_far(record.id, metric, schemas.mode_of(record, metric))
    left_out = 0 if wanted is None else max(total - len(wanted), 0)
    if form == schemas.COLUMNS:
        body = schemas.as_columns(record, metric, x, x_metric, found, left_out, best)
        # "identity" keeps the middleware from compressing these numbers, which would take more time than it saves.
        return Response(body, headers={**headers, "Content-Encoding": "identity"}, media_type=form)
    model = schemas.Curves.of(record, metric, x, x_metric, found.as_curves(), left_out, best)
    return answer(model, headers={"Vary": "Accept"}, tag=tag)


@router.get(
    "/experiments/{experiment_id}/best-so-far",
    response_model=schemas.BestSoFarOf,
    responses={**NOT_FOUND, **BAD},
    summary="Get the best value so far as a function of time, with a point for each improvement.",
)
def best_so_far(
    here: Here,
    experiment_id: ExperimentId,
    metric: Annotated[
        str | None, Query(max_length=1000, description="the name of a metric; default: the first objective")
    ] = None,
) -> Response:
    record = _find(here.store, experiment_id)
    metric = _optional(metric) or record.spec.objective.metric
    mode = schemas.mode_of(record, metric)
    x, y = here.store.metrics.best_so_far(record.id, metric, mode)
    return answer(schemas.BestSoFarOf(metric=metric, mode=mode, x=x, y=y))


@router.get(
    "/experiments/{experiment_id}/importance",
    response_model=schemas.Importances,
    responses={**NOT_FOUND, **BAD},
    summary="Get the importance of each parameter for the first objective, by PED-ANOVA over the trials that have ended.",
)
def importance(
    here: Here,
    experiment_id: ExperimentId,
    where: Annotated[
        list[str] | None,
        Query(
            max_length=20,
            description="use only trials that meet this condition, written as for /trials; if repeated, all must hold",
        ),
    ] = None,
) -> Response:
    record = _find(here.store, experiment_id)
    return answer(schemas.Importances.of(here.importances.of(record, where or ())))


@router.get(
    "/experiments/{experiment_id}/forecast",
    response_model=schemas.Forecast,
    responses={**NOT_FOUND, **BAD},
    summary="Get a forecast of when the experiment will end, of its best value then, and of the gain from more training.",
)
def forecast(
    here: Here,
    experiment_id: ExperimentId,
    hours: Annotated[
        float,
        Query(
            gt=0,
            le=1e6,
            allow_inf_nan=False,
            description=(
                "the additional training whose gain `more` predicts, in GPU hours, or in hours of running time if trials use no "
                "GPUs; at most twice the training so far is used"
            ),
        ),
    ] = 1.0,
) -> Response:
    return answer(schemas.Forecast.of(forecasts.forecast(here.store, _find(here.store, experiment_id), hours)))


@router.post(
    "/experiments/{experiment_id}/replay",
    response_model=schemas.Replay,
    responses={**NOT_FOUND, **BAD},
    summary="Predict, from the recorded trials, what another scheduler or searcher would have done. Nothing is trained.",
)
async def replay(here: Here, experiment_id: ExperimentId, data: Annotated[Any, Depends(json_body)]) -> Response:
    asked = schemas.ReplayRequest.read(data)

    def replay() -> Response:
        found = replays.replay(
            here.store,
            _find(here.store, experiment_id),
            scheduler=asked.scheduler,
            search_alg=asked.search,
            max_concurrent_trials=asked.max_concurrent_trials,
            most_reports=MOST_REPLAYED,
        )
        return answer(schemas.Replay.of(found))

    return await here.off_the_pool(replay)


@router.get(
    "/experiments/{experiment_id}/decisions",
    response_model=schemas.DecisionPage,
    responses={**NOT_FOUND, **BAD},
    summary="List decisions, newest first, each with its reason in words.",
)
def decisions(
    here: Here,
    experiment_id: ExperimentId,
    trial: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="a trial's number")] = None,
    kind: Annotated[
        list[schemas.DecisionKind] | None, Query(description="only decisions of this kind; may be repeated")
    ] = None,
    text: Annotated[
        str | None, Query(max_length=200, description="only decisions with this text in their reason")
    ] = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> Response:
    record = _find(here.store, experiment_id)
    page = here.store.log.decisions(
        record.id, trial=trial, kinds=kind or (), text=_optional(text), page_size=page_size, page_token=page_token
    )
    items = [schemas.Decision.of(record.public_id, decision) for decision in page.items]
    return answer(schemas.DecisionPage(items=items, next_page_token=page.next_token))


@router.get(
    "/experiments/{experiment_id}/log",
    response_model=schemas.LogPage,
    responses={**NOT_FOUND, **BAD},
    summary="List the log of the experiment, newest first: what happened, and what was decided.",
)
def log(
    here: Here,
    experiment_id: ExperimentId,
    trial: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="a trial's number")] = None,
    kind: Annotated[
        list[schemas.LogKind] | None, Query(description="only entries of this kind; may be repeated")
    ] = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> Response:
    record = _find(here.store, experiment_id)
    page = here.store.log.entries(record.id, trial=trial, kinds=kind or (), page_size=page_size, page_token=page_token)
    items = [schemas.LogEntry.of(record.public_id, item) for item in page.items]
    return answer(schemas.LogPage(items=items, next_page_token=page.next_token))


@router.get(
    "/experiments/{experiment_id}/segments",
    response_model=schemas.SegmentPage,
    responses={**NOT_FOUND, **BAD},
    summary="List the segments of all trials, oldest first, each with the checkpoint that it started from.",
)
def segments(
    here: Here,
    experiment_id: ExperimentId,
    cause: Annotated[list[Cause] | None, Query(description="only segments with this cause; may be repeated")] = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> Response:
    record = _find(here.store, experiment_id)
    page = here.store.trials.segment_page(record.id, causes=cause or (), page_size=page_size, page_token=page_token)
    items = [schemas.SegmentItem.of(item) for item in page.items]
    return answer(schemas.SegmentPage(items=items, next_page_token=page.next_token))


@router.get(
    "/experiments/{experiment_id}/timeline",
    response_model=schemas.Timeline,
    responses={**NOT_FOUND, **BAD},
    summary="Get a timeline: when trials waited, started and ran, and when nodes and GPUs were in use.",
)
def timeline(
    here: Here,
    experiment_id: ExperimentId,
    first: Annotated[int, Query(ge=0, le=2**31 - 1, description="the number of the first trial on the page")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="number of trials on the page")] = 200,
) -> Response:
    record = _find(here.store, experiment_id)
    found = timelines.timeline(here.store, record, first=first, most=limit, now=time.time())
    return answer(schemas.Timeline.of(found))


After = Annotated[int, Query(ge=0, le=MAX_SEQ, description="an event_seq")]
LastEventId = Annotated[
    str | None,
    Header(
        max_length=40,
        description="the id of the last message that the client has; browsers send it when they reconnect",
    ),
]


class EventStream(StreamingResponse):
    media_type = "text/event-stream"


@router.get(
    "/experiments/{experiment_id}/events",
    response_class=EventStream,
    responses={200: {"content": {"text/event-stream": {}}, "description": "server-sent events"}, **NOT_FOUND, **BAD},
    summary="Stream the experiment's log. The stream begins after Last-Event-ID or the parameter `after`.",
)
def events(
    here: Here, request: Request, experiment_id: ExperimentId, after: After = 0, last_event_id: LastEventId = None
) -> EventStream:
    return _followed(here, request, Events(here.store, _find(here.store, experiment_id)), after, last_event_id)


@router.get(
    "/experiments/{experiment_id}/changes",
    response_class=EventStream,
    responses={200: {"model": schemas.Changes, "description": "server-sent events"}, **NOT_FOUND, **BAD},
    summary="Stream changes of the experiment and its trials. The stream begins after Last-Event-ID or the parameter `after`.",
)
def changes(
    here: Here, request: Request, experiment_id: ExperimentId, after: After = 0, last_event_id: LastEventId = None
) -> EventStream:
    return _followed(here, request, ChangedRows(here.store, _find(here.store, experiment_id)), after, last_event_id)


def _followed(here: Context, request: Request, form: Form, after: int, last_event_id: str | None) -> EventStream:
    if last_event_id is not None:
        if not last_event_id.isdecimal() or int(last_event_id) > MAX_SEQ:
            raise SpecError(f"expected an event_seq in Last-Event-ID, got {last_event_id!r}", "/last-event-id")
        after = max(after, int(last_event_id))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventStream(follow(here.tail, form, after, here.ending, Permission.of(request)), headers=headers)


def _created(record: ExperimentRecord) -> Response:
    """Return the response that shows an experiment as it was when it was created.

    So a repeated request gets the same response even if the experiment has changed meanwhile.
    """
    first = schemas.Experiment.of(record.as_created(), [])
    return answer(first, 201, {"Location": f"/api/v1/experiments/{record.public_id}"})


def _in_project(here: Context, data: Any) -> Any:
    """Return the spec, with the project to which the caller is limited if the spec names no project."""
    return {"project": here.project, **data} if here.project is not None and isinstance(data, dict) else data


def _find(store: Store, experiment_id: str) -> ExperimentRecord:
    return store.experiments.get(plain_text(experiment_id))


def _optional(value: str | None) -> str | None:
    return None if value is None else plain_text(value)
