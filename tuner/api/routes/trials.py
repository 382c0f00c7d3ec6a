"""/trials: a trial with its segments, lineage, logs and resource usage."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse

from tuner.api import schemas
from tuner.api.access.permission import Permission
from tuner.api.answers import (
    BAD,
    CONFLICT,
    NOT_FOUND,
    SILENT,
    AcrossQuery,
    OnceKey,
    Route,
    TrialId,
    XMetric,
    answer,
    checked,
    optional_json_body,
    optional_text,
    plain_text,
    shown_trial,
)
from tuner.api.context import Context, Here
from tuner.errors import Conflict, DriverSilent
from tuner.experiment.analysis.neighbors import neighbors as nearest
from tuner.experiment.logs import LogReader, trial_logs
from tuner.experiment.operations import trials, usecases
from tuner.hosts.refusals import raised
from tuner.store import LogQuery, SegmentRecord, TrialRecord

router = APIRouter(route_class=Route, tags=["trials"])
MAX_NUMBER = 2**31 - 1
MAX_OFFSET = 2**53 - 1


@router.get(
    "/trials/{trial_id}",
    response_model=schemas.TrialDetail,
    responses=NOT_FOUND,
    summary="Get a trial with its segments.",
)
def get(here: Here, trial_id: TrialId) -> Response:
    return shown_trial(here.store, here.store.trials.get(plain_text(trial_id)))


@router.post(
    "/trials/{trial_id}/fork",
    status_code=201,
    response_model=schemas.TrialDetail,
    responses={
        202: {
            "model": schemas.TrialDetail,
            "description": "the new trial has not been started yet, so this is the trial that it is forked from",
        },
        **NOT_FOUND,
        **CONFLICT,
        **BAD,
    },
    summary="Start a new trial from a checkpoint of an existing one, with changed hyperparameters.",
)
async def fork(
    here: Here,
    trial_id: TrialId,
    data: Annotated[Any, Depends(optional_json_body)],
    idempotency_key: OnceKey = None,
) -> Response:
    given = checked(schemas.Fork, {} if data is None else data)
    name = None if given.checkpoint_id is None else plain_text(given.checkpoint_id)
    parent = await asyncio.to_thread(here.store.trials.get, plain_text(trial_id))
    key = await asyncio.to_thread(
        trials.fork_trial, here.store, parent.public_id, given.params, name, idempotency_key=idempotency_key
    )
    here.driver.poke()
    made = await _asked_by(here, parent.experiment_id, key)
    if made is None:
        return await asyncio.to_thread(shown_trial, here.store, parent, 202)
    answer = await asyncio.to_thread(shown_trial, here.store, made, 201)
    answer.headers["Location"] = f"/api/v1/trials/{made.public_id}"
    return answer


FORK_WAIT_S = 2.0
"""Seconds that a request to fork a trial waits for the driver to start the new trial."""


async def _asked_by(here: Context, experiment_id: int, key: str) -> TrialRecord | None:
    """Return the trial that the driver has started for a fork request with this key; None if that takes too long."""
    end = time.monotonic() + FORK_WAIT_S
    while True:
        made = await asyncio.to_thread(trials.asked_by, here.store, experiment_id, key)
        if made is not None or time.monotonic() >= end or here.ending.is_set():
            return made
        await asyncio.sleep(0.05)


@router.get(
    "/trials/{trial_id}/logs",
    response_model=schemas.Logs,
    responses={**NOT_FOUND, **BAD},
    summary="Get the logs of a trial's ranks, by segment and rank.",
)
def logs(
    here: Here,
    trial_id: TrialId,
    rank: Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="only this rank")] = None,
    segment: Annotated[int | None, Query(ge=1, le=MAX_NUMBER, description="only the segment with this ordinal")] = None,
    tail: Annotated[
        int | None, Query(ge=0, le=1_000_000, description="only this many lines at the end of each log")
    ] = None,
    offset: Annotated[
        int | None,
        Query(ge=0, le=MAX_OFFSET, description="only the part from this byte on; pass `end` of the previous response"),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=10_000_000, description="at most this many bytes of each log")] = 1_000_000,
    search: Annotated[
        str | None,
        Query(min_length=1, max_length=1000, description="only lines that contain this text, ignoring case"),
    ] = None,
) -> Response:
    query = LogQuery(rank=rank, segment=segment, tail=tail, offset=offset, limit=limit, search=search)
    return answer(schemas.Logs.of(trial_logs(here.store, here.settings.home, plain_text(trial_id), query)))


@router.get(
    "/trials/{trial_id}/logs/text",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {}}, "description": "the log"}, **NOT_FOUND, **BAD},
    summary="Get the log of one rank as plain text, and optionally follow it.",
)
def log_text(
    here: Here,
    request: Request,
    trial_id: TrialId,
    rank: Annotated[int, Query(ge=0, le=MAX_NUMBER, description="which rank")] = 0,
    segment: Annotated[
        int | None, Query(ge=1, le=MAX_NUMBER, description="ordinal of the segment; default: the newest")
    ] = None,
    follow: Annotated[bool, Query(description="also send what the rank prints from now on, until it ends")] = False,
) -> Response:
    record = here.store.trials.get(plain_text(trial_id))
    ordinal = segment if segment is not None else max((part.ordinal for part in record.segments), default=1)
    source = LogReader(here.store, here.settings.home, record.public_id, ordinal, rank)
    return StreamingResponse(
        source.stream(follow, here.ending, Permission.of(request).holds), media_type="text/plain; charset=utf-8"
    )


@router.get(
    "/trials/{trial_id}/usage",
    response_model=schemas.Usage,
    responses={**NOT_FOUND, **BAD},
    summary="Get the CPU, memory and GPU usage of a trial's ranks over time, by segment and rank.",
)
def usage(
    here: Here,
    trial_id: TrialId,
    rank: Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="only this rank")] = None,
    segment: Annotated[int | None, Query(ge=1, le=MAX_NUMBER, description="only the segment with this ordinal")] = None,
) -> Response:
    return answer(schemas.Usage.of(here.store.ranks.usage(plain_text(trial_id), rank=rank, segment=segment)))


@router.get(
    "/trials/{trial_id}/curves",
    response_model=schemas.TrialCurves,
    responses={**NOT_FOUND, **BAD},
    summary="Get the curve of every metric that a trial has reported.",
)
def curves(
    here: Here,
    trial_id: TrialId,
    x: AcrossQuery = "step",
    x_metric: XMetric = None,
    points: Annotated[
        int,
        Query(ge=4, le=100_000, description="maximum number of points per segment and metric"),
    ] = 1000,
) -> Response:
    record = here.store.trials.get(plain_text(trial_id))
    x_metric = optional_text(x_metric)
    found = here.store.metrics.curves_of_trial(
        record.experiment_id, record.number, x=x, x_metric=x_metric, points=points
    )
    return answer(schemas.TrialCurves.of(x, x_metric, found))


@router.get(
    "/trials/{trial_id}/lineage",
    response_model=schemas.Lineage,
    responses=NOT_FOUND,
    summary="Get the segments, of this or other trials, that led to a trial's weights, and their schedule of configurations.",
)
def lineage(
    here: Here,
    trial_id: TrialId,
    at: Annotated[
        Literal["newest", "best"],
        Query(description="the trial's newest weights, or those with which it reported its best value"),
    ] = "newest",
) -> Response:
    record = here.store.trials.get(plain_text(trial_id))
    return answer(schemas.Lineage.of(record, usecases.trial_lineage(here.store, record.public_id, at)))


@router.get(
    "/trials/{trial_id}/neighbors",
    response_model=schemas.Neighbors,
    responses={**NOT_FOUND, **BAD},
    summary="Get the trials whose configurations are most similar to that of a given trial, with their results.",
)
def neighbors(
    here: Here,
    trial_id: TrialId,
    limit: Annotated[int, Query(ge=1, le=100, description="number of trials to return")] = 8,
) -> Response:
    record = here.store.trials.get(plain_text(trial_id))
    found = nearest(here.store, here.store.experiments.by_id(record.experiment_id), record, limit)
    return answer(schemas.Neighbors.of(record, found))


@router.get(
    "/trials/{trial_id}/live",
    response_model=schemas.Live,
    responses={**NOT_FOUND, **CONFLICT, **SILENT},
    summary="Get the Python stack and resource usage of each rank of a running trial, and the state of its Ray Data data sets.",
)
def live(here: Here, trial_id: TrialId) -> Response:
    record = here.store.trials.get(plain_text(trial_id))
    segment = _running(record)
    if not (found := here.driver.look(segment.public_id)):
        raise _not_here(here, record)
    return answer(schemas.Live.of(segment.ordinal, found))


@router.post(
    "/trials/{trial_id}/profile",
    response_model=schemas.Profile,
    responses={**NOT_FOUND, **CONFLICT, **BAD, **SILENT},
    summary="Profile a running rank: where its time goes, or what it allocates.",
)
async def profile(
    here: Here, trial_id: TrialId, request: Request, data: Annotated[Any, Depends(optional_json_body)]
) -> Response:
    """Profile the rank for `duration_s` seconds, and return the profile. A rank makes one profile at a time."""
    given = checked(schemas.ProfileRequest, {} if data is None else data)
    record = await asyncio.to_thread(here.store.trials.get, plain_text(trial_id))
    segment = _running(record)
    profile_id = secrets.token_hex(8)
    asked = here.driver.profile(segment.public_id, {**given.model_dump(), "id": profile_id})
    try:
        told: dict[str, Any] = await here.answered(
            asked, given.duration_s + PROFILE_ANSWER_S, gone=request.is_disconnected
        )
    except (DriverSilent, asyncio.CancelledError):  # nobody is waiting for the profile any more
        with contextlib.suppress(DriverSilent):
            here.driver.profile(segment.public_id, {"stop": profile_id})
        raise
    found = raised(told)["found"]
    if found is None:
        raise await asyncio.to_thread(_not_here, here, record)
    shown = schemas.Profile(segment=segment.ordinal, rank=given.rank, **found)
    return Response(shown.model_dump_json(by_alias=True), 200, {"Cache-Control": "no-store"}, "application/json")


PROFILE_ANSWER_S = 45.0
"""Seconds that the driver and the rank may take to begin a profile and to summarize it."""


def _running(record: TrialRecord) -> SegmentRecord:
    """Return the trial's running segment. Raise Conflict if there is none."""
    running = [part for part in record.segments if part.started_at is not None and part.ended_at is None]
    if not running:
        raise Conflict(f"{record.public_id} is {record.state}, so it has no running ranks")
    return running[-1]


def _not_here(here: Context, record: TrialRecord) -> Conflict:
    """Return the error for a trial that is running according to the database, but not on this service's driver."""
    owner = here.store.experiments.by_id(record.experiment_id).driver_owner
    return Conflict(
        f"{record.public_id} has no running ranks on the driver of this service: they have just ended, or another driver "
        f"runs them (the newest one of the experiment is {owner or 'unknown'})"
    )
