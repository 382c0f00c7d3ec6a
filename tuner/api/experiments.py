"""/experiments: create, look, follow, command."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import Response, StreamingResponse

from tuner import preview, usecases
from tuner.api import schemas
from tuner.api.answers import BAD, CONFLICT, NOT_FOUND, PageSize, PageToken, answer, json_body
from tuner.api.context import Here
from tuner.api.stream import follow
from tuner.errors import SpecError
from tuner.store import ExperimentRecord, Store

router = APIRouter(tags=["experiments"])
MAX_SEQ = 2**62


@router.post(
    "/experiments",
    status_code=201,
    response_model=schemas.Experiment,
    responses={**BAD, **CONFLICT},
    summary="Create an experiment; a driver takes it up by itself",
)
def create(
    here: Here,
    data: Annotated[Any, Depends(json_body)],
    idempotency_key: Annotated[
        str | None, Header(max_length=200, description="the same key again creates nothing and answers the same")
    ] = None,
) -> Response:
    record = usecases.create_experiment(here.store, data, here.checker, idempotency_key=idempotency_key)
    here.poke()
    return answer(_shown(here.store, record), 201, {"Location": f"/api/v1/experiments/{record.public_id}"})


@router.post(
    "/experiments/dry-run",
    response_model=schemas.DryRun,
    responses=BAD,
    summary="Check a spec and say what would be done; nothing is created",
)
def dry_run(
    here: Here,
    data: Annotated[Any, Depends(json_body)],
    configurations: Annotated[int, Query(ge=0, le=100, description="how many of the first to show")] = 5,
) -> Response:
    return answer(schemas.DryRun.of(usecases.dry_run(data, here.checker, configurations)))


@router.get("/experiments", response_model=schemas.ExperimentPage, responses=BAD, summary="Newest first")
def list_experiments(
    here: Here,
    state: schemas.ExperimentStateName | None = None,
    name: Annotated[str | None, Query(max_length=200, description="any part of the name")] = None,
    page_size: PageSize = 50,
    page_token: PageToken = None,
) -> Response:
    page = here.store.list_experiments(state=state, name=_text(name), page_size=page_size, page_token=page_token)
    metrics = here.store.metric_names_of([record.id for record in page.items])
    items = [schemas.Experiment.of(record, metrics[record.id]) for record in page.items]
    return answer(schemas.ExperimentPage(items=items, next_page_token=page.next_token))


@router.get(
    "/experiments/{experiment_id}", response_model=schemas.Experiment, responses=NOT_FOUND, summary="One experiment"
)
def get(here: Here, experiment_id: str) -> Response:
    return answer(_shown(here.store, _find(here.store, experiment_id)))


@router.get(
    "/experiments/{experiment_id}/trials",
    response_model=schemas.TrialPage,
    responses={**NOT_FOUND, **BAD},
    summary="By number, without segments",
)
def list_trials(
    here: Here,
    experiment_id: str,
    state: schemas.TrialStateName | None = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> Response:
    record = _find(here.store, experiment_id)
    page = here.store.list_trials(record.id, state=state, page_size=page_size, page_token=page_token)
    items = [schemas.Trial.of(trial) for trial in page.items]
    return answer(schemas.TrialPage(items=items, next_page_token=page.next_token))


@router.get(
    "/experiments/{experiment_id}/curves",
    response_model=schemas.Curves,
    responses={**NOT_FOUND, **BAD},
    summary="One curve a trial; it breaks between segments, and spikes are kept when points are thinned",
)
def curves(
    here: Here,
    experiment_id: str,
    metric: Annotated[str | None, Query(max_length=1000, description="by default the objective")] = None,
    x: Annotated[Literal["step", "time"], Query(description="time: seconds since the experiment's start")] = "step",
    max_points: Annotated[int, Query(ge=4, le=100_000, description="per segment")] = 1000,
) -> Response:
    record = _find(here.store, experiment_id)
    name = _text(metric) or record.spec.objective.metric
    found = here.store.curves(record.id, name, x=x, max_points=max_points)
    best = here.store.best_so_far(record.id, name, schemas.mode_of(record, name))
    return answer(schemas.Curves.of(record, name, x, found, best))


@router.get(
    "/experiments/{experiment_id}/importance",
    response_model=schemas.Importances,
    responses=NOT_FOUND,
    summary="How much each parameter mattered for the first objective, by PED-ANOVA over the trials that have ended",
)
def importance(here: Here, experiment_id: str) -> Response:
    record = _find(here.store, experiment_id)
    return answer(schemas.Importances.of(preview.importance(here.store, record)))


@router.get(
    "/experiments/{experiment_id}/decisions",
    response_model=schemas.DecisionPage,
    responses={**NOT_FOUND, **BAD},
    summary="Newest first, each with its reason in words",
)
def decisions(
    here: Here,
    experiment_id: str,
    trial: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="a trial's number")] = None,
    kind: Annotated[
        list[schemas.DecisionKind] | None, Query(description="of these kinds only; may be repeated")
    ] = None,
    text: Annotated[str | None, Query(max_length=200, description="any part of the reason")] = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> Response:
    record = _find(here.store, experiment_id)
    page = here.store.decisions(
        record.id, trial=trial, kinds=kind or (), text=_text(text), page_size=page_size, page_token=page_token
    )
    items = [schemas.Decision.of(record.public_id, decision) for decision in page.items]
    return answer(schemas.DecisionPage(items=items, next_page_token=page.next_token))


@router.get(
    "/experiments/{experiment_id}/segments",
    response_model=schemas.SegmentPage,
    responses={**NOT_FOUND, **BAD},
    summary="The segments of all trials, oldest first, each with where its weights come from",
)
def segments(
    here: Here,
    experiment_id: str,
    cause: Annotated[list[schemas.Cause] | None, Query(description="of these causes only; may be repeated")] = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> Response:
    record = _find(here.store, experiment_id)
    page = here.store.list_segments(record.id, causes=cause or (), page_size=page_size, page_token=page_token)
    items = [schemas.SegmentItem.of(item) for item in page.items]
    return answer(schemas.SegmentPage(items=items, next_page_token=page.next_token))


@router.get(
    "/experiments/{experiment_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "server-sent events"}, **NOT_FOUND, **BAD},
    summary="Everything that happens, as it happens; resumes behind Last-Event-ID or after",
)
def events(
    here: Here,
    experiment_id: str,
    after: Annotated[int, Query(ge=0, le=MAX_SEQ, description="an event_seq")] = 0,
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
) -> StreamingResponse:
    record = _find(here.store, experiment_id)
    if last_event_id is not None:
        if not last_event_id.isdecimal() or int(last_event_id) > MAX_SEQ:
            raise SpecError(f"expected an event_seq in Last-Event-ID, got {last_event_id!r}", "/last-event-id")
        after = max(after, int(last_event_id))
    return StreamingResponse(
        follow(here.store, record, after, here.ending),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


@router.post(
    "/experiments/{experiment_id}/cancel",
    status_code=202,
    response_model=schemas.Experiment,
    responses={**NOT_FOUND, **CONFLICT},
    summary="End it and all its trials",
)
def cancel(here: Here, experiment_id: str) -> Response:
    return _commanded(here, usecases.cancel(here.store, experiment_id))


@router.post(
    "/experiments/{experiment_id}/pause",
    status_code=202,
    response_model=schemas.Experiment,
    responses={**NOT_FOUND, **CONFLICT},
    summary="Pause every trial at its next report",
)
def pause(here: Here, experiment_id: str) -> Response:
    return _commanded(here, usecases.pause(here.store, experiment_id))


@router.post(
    "/experiments/{experiment_id}/resume",
    status_code=202,
    response_model=schemas.Experiment,
    responses={**NOT_FOUND, **CONFLICT},
    summary="Go on with a paused experiment",
)
def resume(here: Here, experiment_id: str) -> Response:
    return _commanded(here, usecases.resume(here.store, experiment_id))


def _commanded(here: Here, record: ExperimentRecord) -> Response:
    here.poke()
    return answer(_shown(here.store, record), 202)


def _find(store: Store, experiment_id: str) -> ExperimentRecord:
    return store.get_experiment(_text(experiment_id) or "")


def _shown(store: Store, record: ExperimentRecord) -> schemas.Experiment:
    return schemas.Experiment.of(record, store.metric_names(record.id))


def _text(value: str | None) -> str | None:
    """Without what no database takes; such a name is not found, rather than an error."""
    return None if value is None else value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
