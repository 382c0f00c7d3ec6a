"""/experiments/{id}/...: the trials, segments, checkpoints, decisions and log of an experiment."""

from __future__ import annotations

import contextlib
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from tuner.api import schemas
from tuner.api.answers import (
    BAD,
    NOT_FOUND,
    ExperimentId,
    PageSize,
    PageToken,
    Route,
    answer,
    found_experiment,
    optional_text,
)
from tuner.api.context import Here
from tuner.domain.states import TrialState
from tuner.domain.trial import Cause
from tuner.errors import DriverSilent, NotFound
from tuner.experiment.logs import driver_log as read_driver_log

router = APIRouter(route_class=Route, tags=["experiments"])


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
                "the column to sort by: number, state, best_value, expected_value (after repeats: of the trial's configuration, "
                "given all its runs), front (1 for the Pareto front), iteration, params.NAME, last.METRIC, ...; a minus before "
                "the column sorts in descending order; trials without a value come last, and trials with equal values are sorted "
                "by number; if sorted by best_value or expected_value, trials that violate the constraints come after those that "
                "do not"
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
    fronts: Annotated[
        bool,
        Query(
            description="also return the front of each trial, from 1 for the Pareto front, by the newest values of all objectives"
        ),
    ] = False,
) -> Response:
    record = found_experiment(here.store, experiment_id)
    if sort == "number" and not where and not fronts:
        page = here.store.trials.page(record.id, state=state, page_size=page_size, page_token=page_token)
        found: list[int | None] = []
        total = sum(record.counts.values()) if state is None else record.counts.get(state, 0)
    else:
        page, total = here.store.trials.sorted_page(
            record.id,
            sort=sort,
            where=where or (),
            state=state,
            page_size=page_size,
            page_token=page_token,
            fronts=fronts,
        )
        found = list(page.fronts) if fronts else []
    items = [schemas.Trial.of(trial, record) for trial in page.items]
    return answer(schemas.TrialPage(items=items, next_page_token=page.next_token, total=total, fronts=found))


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
        int,
        Query(ge=1, le=10_000, description="the maximum number of trials to return; half of them are the best ones"),
    ] = 1000,
) -> Response:
    record = found_experiment(here.store, experiment_id)
    found = here.store.trials.sample(record.id, record.spec.objectives, size)
    longest = (record.spec.resolved or {}).get("scheduler", record.spec.scheduler).get("max_t") or record.spec.max_t
    trained = None
    if isinstance(longest, int | float) and record.spec.time_attr == "training_iteration":
        trained = here.store.trials.trained(record.id, longest)
    return answer(schemas.TrialSample.of(found, trained, record))


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
    record = found_experiment(here.store, experiment_id)
    page = here.store.trials.segment_page(record.id, causes=cause or (), page_size=page_size, page_token=page_token)
    items = [schemas.SegmentItem.of(item) for item in page.items]
    return answer(schemas.SegmentPage(items=items, next_page_token=page.next_token))


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
    record = found_experiment(here.store, experiment_id)
    page = here.store.trials.checkpoint_page(
        record.id, trial_number=trial, state=state, page_size=page_size, page_token=page_token
    )
    items = [schemas.CheckpointItem.of(item, record) for item in page.items]
    return answer(schemas.CheckpointPage(items=items, next_page_token=page.next_token))


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
    record = found_experiment(here.store, experiment_id)
    page = here.store.log.decisions(
        record.id, trial=trial, kinds=kind or (), text=optional_text(text), page_size=page_size, page_token=page_token
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
    record = found_experiment(here.store, experiment_id)
    page = here.store.log.entries(record.id, trial=trial, kinds=kind or (), page_size=page_size, page_token=page_token)
    items = [schemas.LogEntry.of(record.public_id, item) for item in page.items]
    return answer(schemas.LogPage(items=items, next_page_token=page.next_token))


@router.get(
    "/experiments/{experiment_id}/driver-log",
    response_model=schemas.DriverLog,
    responses={**NOT_FOUND, **BAD},
    summary="Get the newest lines of the driver host's own log of an experiment.",
)
def driver_log(
    here: Here,
    experiment_id: ExperimentId,
    tail: Annotated[int, Query(ge=0, le=100_000, description="at most this many lines")] = 1000,
    search: Annotated[
        str | None, Query(min_length=1, max_length=1000, description="only lines that contain this text, ignoring case")
    ] = None,
) -> Response:
    """Ask the driver host of this service for its log. If it has none, read the log file of a script on this machine."""
    record = found_experiment(here.store, experiment_id)
    asked = None
    with contextlib.suppress(DriverSilent):
        asked = here.driver.driver_log(record.public_id, tail, search)["found"]
    if asked is not None:
        return answer(schemas.DriverLog(**asked))
    found = read_driver_log(here.settings.home, record.public_id, tail, search)
    if found is None:
        owner = record.driver_owner
        raise NotFound(
            f"no log of the driver of {record.public_id} is on this machine: "
            + (f"its driver was {owner}, perhaps on another machine" if owner else "no driver has run it yet")
        )
    return answer(schemas.DriverLog(path=found.path, text=found.text, left_out=found.left_out))
