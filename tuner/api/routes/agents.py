"""/experiments/.../assignments: lend trials to agents, which are programs on other machines.

This is for experiments with the executor "agents". The routes find the experiment in the database, and pass the request on to
the driver host, which lends the trials (`tuner.hosts.agents`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response

from tuner.api import schemas
from tuner.api.answers import (
    BAD,
    CONFLICT,
    NOT_FOUND,
    SILENT,
    Route,
    checked,
    json_body,
    optional_json_body,
    plain_text,
)
from tuner.api.context import LOOK_S, Context, Here
from tuner.api.schemas import Model, Problem
from tuner.errors import Conflict, Gone, SpecError, TunerError
from tuner.experiment.operations.usecases import found_for_agents
from tuner.hosts.refusals import raised
from tuner.store import ExperimentRecord, Store

router = APIRouter(route_class=Route, tags=["agents"])

ANSWER_S = 30.0
"""Seconds that the driver may take to commit an agent's message. After that the response is a 503, and the agent tries again."""

ExperimentName = Annotated[
    str, Path(description="the experiment: exp_..., or its name", examples=["exp_0123456789abcdef0123", "digits"])
]
Lease = Annotated[str, Path(description="the `lease` of the assignment", examples=["0-1-0123456789abcdef"])]
GONE: dict[int | str, dict[str, Any]] = {
    410: {
        "model": Problem,
        "description": "the lease has ended, or the experiment has ended, so that there is nothing more for agents to do",
    }
}
USUAL: dict[int | str, dict[str, Any]] = {**NOT_FOUND, **CONFLICT, **GONE, **BAD, **SILENT}
OptionalBody = Annotated[Any, Depends(optional_json_body)]
RequiredBody = Annotated[Any, Depends(json_body)]


@router.post(
    "/experiments/{experiment}/assignments",
    status_code=201,
    response_model=schemas.Assignment,
    responses={204: {"description": "no trial is available at the moment: ask again"}, **USUAL},
    summary="Ask for a trial to run.",
)
async def ask(here: Here, request: Request, experiment: ExperimentName, data: OptionalBody) -> Response:
    """Return an assignment, or a 204 if no trial becomes available within `wait_s` seconds."""
    given = checked(schemas.AssignmentRequest, {} if data is None else data)
    record = await asyncio.to_thread(_open, here.store, experiment)
    asked = given.model_dump()
    asked["agent"] = given.agent or (request.client.host if request.client is not None else "agent")
    asked["call"] = call = secrets.token_hex(8)
    watching = asyncio.create_task(_withdraw_if_cut(here, request, record.public_id, call))
    try:
        found = await _ask(here, "ask", record.public_id, asked, given.wait_s + ANSWER_S)
    finally:
        watching.cancel()
    assignment = found["assignment"]
    if assignment is None:
        await asyncio.to_thread(_open, here.store, experiment)
        # The name by which the agent asks may become that of another experiment.
        location = f"/api/v1/experiments/{record.public_id}/assignments"
        return Response(status_code=204, headers={"Retry-After": "1", "Content-Location": location})
    if given.request is None and await request.is_disconnected():  # the agent is gone, so nobody would run the trial
        await _ask(here, "release", record.public_id, {"lease": assignment["lease"]}, ANSWER_S)
    return _json(schemas.Assignment.of(assignment), 201)


@router.post(
    "/experiments/{experiment}/assignments/{lease}/reports",
    response_model=schemas.AgentVerdict,
    responses=USUAL,
    summary="Report the metrics of the trial, and get the verdict.",
)
async def report(here: Here, experiment: ExperimentName, lease: Lease, data: RequiredBody) -> Response:
    """Commit a report, and return its verdict. If the agent repeats a report, return the same verdict again."""
    given = checked(schemas.AgentReport, data).model_dump()
    earlier = [{**one, "waits": False} for one in given.pop("earlier")]
    found = await _about(here, "report", experiment, lease, {"reports": [*earlier, given]})
    return _json(schemas.AgentVerdict.of(found))


@router.post(
    "/experiments/{experiment}/assignments/{lease}/checkpoints",
    response_model=schemas.LeaseState,
    responses=USUAL,
    summary="Add a checkpoint to a report that has been sent already.",
)
async def checkpoint(here: Here, experiment: ExperimentName, lease: Lease, data: RequiredBody) -> Response:
    given = checked(schemas.LateCheckpoint, data).model_dump()
    said = {"iteration": given.pop("iteration"), "checkpoint": given}
    return _json(schemas.LeaseState.of(await _about(here, "checkpoint", experiment, lease, said)))


@router.post(
    "/experiments/{experiment}/assignments/{lease}/heartbeat",
    response_model=schemas.Heartbeat,
    responses=USUAL,
    summary="Renew a lease, and learn whether the trial should pause or stop.",
)
async def heartbeat(here: Here, experiment: ExperimentName, lease: Lease) -> Response:
    return _json(schemas.Heartbeat.of(await _about(here, "heartbeat", experiment, lease, {})))


@router.post(
    "/experiments/{experiment}/assignments/{lease}/log",
    response_model=schemas.LeaseState,
    responses=USUAL,
    summary="Store a piece of the trial's output.",
)
async def log(here: Here, experiment: ExperimentName, lease: Lease, data: RequiredBody) -> Response:
    given = checked(schemas.AgentLog, data)
    if (given.text is None) == (given.data is None):
        raise SpecError("expected either text or data", "/text")
    said = given.model_dump(exclude_none=True)
    return _json(schemas.LeaseState.of(await _about(here, "log", experiment, lease, said)))


@router.post(
    "/experiments/{experiment}/assignments/{lease}/complete",
    response_model=schemas.LeaseState,
    responses=USUAL,
    summary="Report that the training has ended, which completes the trial.",
)
async def complete(here: Here, experiment: ExperimentName, lease: Lease, data: OptionalBody) -> Response:
    said = checked(schemas.Completion, {} if data is None else data).model_dump()
    return _json(schemas.LeaseState.of(await _about(here, "complete", experiment, lease, said)))


@router.post(
    "/experiments/{experiment}/assignments/{lease}/fail",
    response_model=schemas.LeaseState,
    responses=USUAL,
    summary="Report that the training has failed, and why.",
)
async def fail(here: Here, experiment: ExperimentName, lease: Lease, data: RequiredBody) -> Response:
    said = checked(schemas.AgentFailure, data).model_dump()
    return _json(schemas.LeaseState.of(await _about(here, "fail", experiment, lease, said)))


@router.post(
    "/experiments/{experiment}/assignments/{lease}/release",
    response_model=schemas.LeaseState,
    responses=USUAL,
    summary="Give a trial back. Another agent continues it from its newest checkpoint.",
)
async def release(here: Here, experiment: ExperimentName, lease: Lease) -> Response:
    return _json(schemas.LeaseState.of(await _about(here, "release", experiment, lease, {})))


def _open(store: Store, name: str) -> ExperimentRecord:
    """Return the experiment with this id or name.

    Raises:
        NotFound: there is no such experiment.
        Conflict: agents do not run the trials of this experiment, or the name does not say which experiment is meant.
        Gone: the experiment has ended.
    """
    record = found_for_agents(store, plain_text(name))
    if record.spec.executor != "agents":
        raise Conflict(
            f"{record.public_id} has no work for agents: its executor is {record.spec.executor!r}, not 'agents'"
        )
    if record.state.ended:
        raise Gone(f"{record.public_id} ({record.name}) has ended: it is {record.state}")
    return record


async def _withdraw_if_cut(here: Context, request: Request, experiment: str, call: str) -> None:
    """Withdraw a request that waits for a trial once its connection is cut, so that no trial is lent to an agent that is gone."""
    while not await request.is_disconnected():
        await asyncio.sleep(LOOK_S)
    with contextlib.suppress(TunerError):  # the driver does not answer
        await _ask(here, "withdraw", experiment, {"call": call}, ANSWER_S)


async def _about(here: Context, question: str, name: str, lease: str, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Pass a request about a lease on to the driver host, and return the host's answer."""
    record = await asyncio.to_thread(found_for_agents, here.store, plain_text(name))
    return await _ask(here, question, record.public_id, {**said, "lease": plain_text(lease)}, ANSWER_S)


async def _ask(
    here: Context, question: str, experiment: str, said: Mapping[str, Any], patience_s: float
) -> Mapping[str, Any]:
    """Pass a request on to the driver host, and return the host's answer.

    Raises:
        DriverSilent: the host does not answer in time, or the service shuts down first.
    """
    answer: dict[str, Any] = await here.answered(here.driver.agents(question, experiment, said), patience_s)
    return raised(answer)


def _json(model: Model, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status, {"Cache-Control": "no-store"}, "application/json")
