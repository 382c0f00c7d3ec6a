"""/experiments: create, find, change and delete experiments."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from starlette.types import Scope

from tuner.api import schemas
from tuner.api.answers import (
    BAD,
    BUSY,
    CONFLICT,
    LONGEST_KEY,
    NOT_FOUND,
    STALE,
    ExperimentId,
    IdempotencyKey,
    IfMatch,
    OnceKey,
    PageSize,
    Route,
    answer,
    answer_with_revision,
    checked,
    found_experiment,
    json_body,
    optional_json_body,
    optional_text,
    plain_text,
    revision_of,
    shown_experiment,
)
from tuner.api.context import Context, Here, context
from tuner.api.creations import is_quick
from tuner.api.direct import Direct
from tuner.api.entry import check_request
from tuner.api.paths import PREFIX
from tuner.domain.states import ExperimentState
from tuner.experiment.operations import trials, usecases
from tuner.experiment.operations.copying import copy_of
from tuner.experiment.operations.earlier import ProjectFacts
from tuner.experiment.operations.fork import fork_experiment
from tuner.experiment.operations.removal import delete_experiment
from tuner.store import Creation, ExperimentRecord
from tuner.usercode.entrypoints import TakesLong

router = APIRouter(route_class=Route, tags=["experiments"])


@router.post(
    "/experiments",
    status_code=201,
    response_model=schemas.Experiment,
    responses={**BAD, **CONFLICT, **BUSY},
    summary="Create an experiment. A driver starts it.",
)
async def create(
    request: Request,
    here: Here,
    data: Annotated[Any, Depends(json_body)],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    storage = here.settings.storage

    def wanted() -> Any:
        return here.bundles.applied(_in_project(here, data))

    def check(facts: ProjectFacts) -> Creation | ExperimentRecord:
        return usecases.creation(
            here.store, wanted(), here.checker, idempotency_key=idempotency_key, storage=storage, facts=facts
        )

    def show(record: ExperimentRecord) -> Response:
        here.driver.poke()
        return _created(record)

    def create() -> Response:
        return show(
            usecases.create_experiment(
                here.store, wanted(), here.checker, idempotency_key=idempotency_key, storage=storage
            )
        )

    # The check may still find that the spec needs an import, or learns from others.
    if is_quick(data, len(await request.body())):
        with contextlib.suppress(TakesLong):
            return await here.creations.create(check, show, request.scope["state"]["entry"])
    return await here.off_the_pool(create)


async def _create(request: Request) -> Response:
    """Respond as FastAPI's route does with `create`."""
    await check_request(request)
    here, data = await context(request), await json_body(request)
    return await create(request, here, data, request.headers.get("idempotency-key"))


def _has_no_long_key(scope: Scope) -> bool:
    return all(len(value) <= LONGEST_KEY for name, value in scope["headers"] if name == b"idempotency-key")


DIRECT_CREATE = Direct("POST", f"{PREFIX}/experiments", _create, _has_no_long_key)
"""Takes all requests that create an experiment, except those that FastAPI refuses because of their parameters."""


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
        found = usecases.dry_run(spec, here.checker, configurations, seconds_per_iteration, here.store)
        return answer(schemas.DryRun.of(found))

    return await here.off_the_pool(dry_run)


@router.get(
    "/experiments",
    response_model=schemas.ExperimentPage,
    responses=BAD,
    summary="List experiments, newest first or in the order of a column.",
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
    sort: Annotated[
        str | None,
        Query(
            max_length=20,
            description=(
                "name, state, trials (those that have ended), best (the best value of the first objective), method, started, or "
                "duration (of experiments that have ended); with - before it for descending order. Experiments without a value "
                "come last"
            ),
            examples=["-best"],
        ),
    ] = None,
    page_size: PageSize = 50,
    page_token: Annotated[
        str | None, Query(max_length=2000, description="next_page_token of the previous page")
    ] = None,
) -> Response:
    page = here.store.experiments.page(
        state=state,
        name=optional_text(name),
        project=optional_text(project),
        tags=[plain_text(one) for one in tag or ()],
        archived=None if archived == "all" else archived == "yes",
        sort=sort,
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
    return shown_experiment(here.store, found_experiment(here.store, experiment_id))


@router.get(
    "/experiments/{experiment_id}/spec",
    response_model=schemas.SpecCopy,
    responses=NOT_FOUND,
    summary="Get the spec of an experiment in the form in which it can be posted again, such as for a copy with changes.",
)
def spec(here: Here, experiment_id: ExperimentId) -> Response:
    return answer(schemas.SpecCopy.of(copy_of(found_experiment(here.store, experiment_id))))


@router.patch(
    "/experiments/{experiment_id}",
    response_model=schemas.Experiment,
    responses={**NOT_FOUND, **CONFLICT, **STALE, **BAD},
    summary="Change the name, notes, tags, num_samples, limits or search space of an experiment, even while it is running.",
)
def change(
    here: Here, experiment_id: ExperimentId, data: Annotated[Any, Depends(json_body)], if_match: IfMatch = None
) -> Response:
    record = usecases.amend_experiment(here.store, plain_text(experiment_id), data, revision=revision_of(if_match))
    here.driver.poke()
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
            home=here.settings.home,
            force=force,
            revision=revision_of(if_match),
            poke=here.driver.poke,
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
            storage=here.settings.storage,
        )
        here.driver.poke()
        return _created(record)

    return await here.off_the_pool(fork)


@router.post(
    "/experiments/{experiment_id}/archive",
    response_model=schemas.Experiment,
    responses={**NOT_FOUND, **CONFLICT},
    summary="Archive an experiment that has ended: lists leave it out, but no data is deleted.",
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
def enqueue(
    here: Here,
    experiment_id: ExperimentId,
    data: Annotated[Any, Depends(json_body)],
    idempotency_key: OnceKey = None,
) -> Response:
    given = checked(schemas.Enqueue, data)
    name = plain_text(experiment_id)
    record = trials.enqueue(here.store, name, given.configurations, idempotency_key=idempotency_key)
    here.driver.poke()
    return shown_experiment(here.store, record, 202)


def _created(record: ExperimentRecord) -> Response:
    """Return the response that shows an experiment as it was when it was created.

    So a repeated request gets the same response even if the experiment has changed in the meantime.
    """
    first = schemas.Experiment.once(record.as_created(), [])
    return answer_with_revision(first, 201, {"Location": f"/api/v1/experiments/{record.public_id}"})


def _in_project(here: Context, data: Any) -> Any:
    """Return the spec. If it names no project, add the project to which the caller is limited."""
    return {"project": here.project, **data} if here.project is not None and isinstance(data, dict) else data
