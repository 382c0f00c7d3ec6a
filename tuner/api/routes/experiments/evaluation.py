"""/experiments/{id}/...: the results of an experiment, as the charts of the web UI show them, forecasts and replays."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from tuner.api import schemas
from tuner.api.answers import (
    BAD,
    NOT_FOUND,
    AcrossQuery,
    ExperimentId,
    Route,
    XMetric,
    answer,
    etag,
    found_experiment,
    json_body,
    not_modified,
    optional_text,
)
from tuner.api.context import LOOK_S, Here
from tuner.errors import CheckerBusy, NotFound, SpecError
from tuner.experiment.analysis import forecast as forecasts
from tuner.experiment.analysis import replay as replays
from tuner.experiment.analysis import timeline as timelines
from tuner.experiment.analysis.pareto import front, growth

router = APIRouter(route_class=Route, tags=["experiments"])
MOST_REPLAYED = 200_000
"""Experiments with more reports than this are not replayed. A replay of this many reports takes about ten seconds."""

REPLAY_S = 60.0
"""Seconds after which a replay is given up. It delays other replays, and some schedulers are slow with many trials."""


@router.get(
    "/experiments/{experiment_id}/best",
    response_model=schemas.Best,
    responses=NOT_FOUND,
    summary="Get the best report so far, with its configuration and checkpoint.",
)
def best(here: Here, experiment_id: ExperimentId) -> Response:
    record = found_experiment(here.store, experiment_id)
    found = schemas.Experiment.once(record, []).best
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
    record = found_experiment(here.store, experiment_id)
    tag = etag(f"pareto {record.public_id} {record.last_event_seq}".encode())
    if (same := not_modified(request, tag)) is not None:
        return same
    metrics = [objective.metric for objective in record.spec.objectives]
    numbers, read, _ = here.store.trials.objectives(record.id, metrics)
    rows = front(np.array(read, float).reshape(-1, len(metrics)), record.spec.objectives)
    found = here.store.trials.numbered(record.id, [numbers[row] for row in rows[:1000]])
    items = [schemas.Trial.of(trial, record) for trial in found]
    return answer(schemas.Pareto(metrics=metrics, items=items, total=len(rows), of=len(numbers)), tag=tag)


@router.get(
    "/experiments/{experiment_id}/hypervolume",
    response_model=schemas.Hypervolume,
    responses=NOT_FOUND,
    summary="Get how the Pareto front of several objectives grew, with a point for each improvement.",
)
def hypervolume(here: Here, request: Request, experiment_id: ExperimentId) -> Response:
    record = found_experiment(here.store, experiment_id)
    tag = etag(f"hypervolume {record.public_id} {record.last_event_seq} {record.state}".encode())
    if (same := not_modified(request, tag)) is not None:
        return same
    objectives = record.spec.objectives
    metrics = [objective.metric for objective in objectives]
    numbers, rows, ended = here.store.trials.objectives(record.id, metrics)
    values = np.array(rows, float).reshape(-1, len(metrics))
    times = [None if time is None else float(record.clock.seconds(time)) for time in ended]
    points = growth(values, times, objectives)
    found = schemas.Hypervolume(
        metrics=metrics,
        x=[time for time, _ in points],
        y=[share for _, share in points],
        front=len(front(values, objectives)),
        of=len(numbers),
    )
    return answer(found, tag=tag)


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
        int, Query(ge=4, le=100_000, description="approximate number of points in the longest curve")
    ] = 1000,
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
        int, Query(ge=1, le=10_000, description="the maximum number of trials to return if `trial` is not given")
    ] = 2000,
) -> Response:
    record = found_experiment(here.store, experiment_id)
    for name, value in (("from", low), ("to", high)):
        if value is not None and not math.isfinite(value):
            raise SpecError("expected a finite number", f"/{name}")
    form = schemas.COLUMNS if schemas.COLUMNS in request.headers.get("accept", "") else "application/json"
    # The response depends only on the log, so its ETag is known, and a 304 can be sent, before the curves are read.
    tag = etag(f"{record.public_id} {record.last_event_seq} {record.state} {request.url.query} {form}".encode())
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept"}
    if (same := not_modified(request, tag, headers)) is not None:
        return same
    metric = optional_text(metric) or record.spec.objective.metric
    total = sum(record.counts.values())
    wanted = None if trial is None else [number for number in trial if 0 <= number < 2**31]
    if wanted is None and total > limit:
        wanted = here.store.trials.sample_numbers(record.id, record.spec.objectives, limit)
    x_metric = optional_text(x_metric)
    found = here.store.metrics.curve_columns(
        record.id,
        metric,
        x=x,
        x_metric=x_metric,
        points=points,
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
    summary="Get the best value so far over time or over the training of all trials, with a point for each improvement.",
)
def best_so_far(
    here: Here,
    experiment_id: ExperimentId,
    metric: Annotated[
        str | None, Query(max_length=1000, description="the name of a metric; default: the first objective")
    ] = None,
    x: Annotated[
        Literal["time", "trial_time"],
        Query(
            description="time: seconds that the experiment had been running, without pauses; trial_time: seconds that all "
            "trials together had been training"
        ),
    ] = "time",
) -> Response:
    record = found_experiment(here.store, experiment_id)
    metric = optional_text(metric) or record.spec.objective.metric
    mode = schemas.mode_of(record, metric)
    seconds, values = here.store.metrics.best_so_far(record.id, metric, mode)
    now = time.time()
    end = (record.ended_at if record.state.ended else None) or now
    seconds.append(max([float(record.clock.seconds(end)), *seconds[-1:]]))
    if x == "trial_time":
        seconds = here.store.metrics.trained(record.id, seconds, now)
    return answer(schemas.BestSoFarOf(metric=metric, mode=mode, x=seconds[:-1], y=values, until=seconds[-1]))


@router.get(
    "/experiments/{experiment_id}/importance",
    response_model=schemas.Importances,
    responses={**NOT_FOUND, **BAD},
    summary="Get the importance of each parameter for an objective, by PED-ANOVA over the trials that have ended.",
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
    metric: Annotated[
        str | None,
        Query(
            max_length=1000,
            description="the objective; default: the first one. For any other one, the newest value of each trial is used",
        ),
    ] = None,
) -> Response:
    record = found_experiment(here.store, experiment_id)
    return answer(schemas.Importances.of(here.importances.of(record, where or (), optional_text(metric))))


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
    record = found_experiment(here.store, experiment_id)
    found = timelines.timeline(here.store, record, first=first, most=limit, now=time.time())
    return answer(schemas.Timeline.of(found))


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
                "GPUs; at most twice as much as the trials have trained"
            ),
        ),
    ] = 1.0,
) -> Response:
    return answer(
        schemas.Forecast.of(forecasts.forecast(here.store, found_experiment(here.store, experiment_id), hours))
    )


@router.post(
    "/experiments/{experiment_id}/replay",
    response_model=schemas.Replay,
    responses={**NOT_FOUND, **BAD},
    summary="Predict, from the recorded trials, what another scheduler or searcher would have done. Nothing is trained.",
)
async def replay(
    here: Here, experiment_id: ExperimentId, request: Request, data: Annotated[Any, Depends(json_body)]
) -> Response:
    asked = schemas.ReplayRequest.read(data)
    gone = threading.Event()
    end = math.inf

    def check() -> None:
        if gone.is_set():
            raise CheckerBusy("the client has disconnected, or the service is shutting down")
        if time.monotonic() > end:
            raise SpecError(
                f"the replay takes longer than the {REPLAY_S:g} s that it may take here; tuner.replay in Python has no limit"
            )

    def work() -> Response:
        found = replays.replay(
            here.store,
            found_experiment(here.store, experiment_id),
            scheduler=asked.scheduler,
            search_alg=asked.search,
            max_concurrent_trials=asked.max_concurrent_trials,
            most_reports=MOST_REPLAYED,
            check=check,
        )
        return answer(schemas.Replay.of(found))

    async with here.replaying:
        end = time.monotonic() + REPLAY_S
        working = asyncio.ensure_future(here.off_the_pool(work))
        try:
            while not (await asyncio.wait({working}, timeout=LOOK_S))[0]:
                if here.ending.is_set() or await request.is_disconnected():
                    gone.set()
        finally:
            gone.set()  # also if this task is cancelled
        return working.result()
