"""/experiments/{id}/events and /changes: streams of what happens in an experiment."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from tuner.api import schemas
from tuner.api.access.permission import Permission
from tuner.api.answers import BAD, NOT_FOUND, ExperimentId, Route, found_experiment
from tuner.api.context import Context, Here
from tuner.api.stream import BEFORE_ALL, ChangedRows, Events, Form, follow
from tuner.errors import SpecError

router = APIRouter(route_class=Route, tags=["experiments"])

MAX_SEQ = 2**62
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
    return _followed(
        here, request, Events(here.store, found_experiment(here.store, experiment_id)), after, last_event_id
    )


@router.get(
    "/experiments/{experiment_id}/changes",
    response_class=EventStream,
    responses={200: {"model": schemas.Changes, "description": "server-sent events"}, **NOT_FOUND, **BAD},
    summary="Stream changes to the experiment and its trials. The stream begins after Last-Event-ID or the parameter `after`.",
)
def changes(
    here: Here, request: Request, experiment_id: ExperimentId, after: After = 0, last_event_id: LastEventId = None
) -> EventStream:
    return _followed(
        here, request, ChangedRows(here.store, found_experiment(here.store, experiment_id)), after, last_event_id
    )


def _followed(here: Context, request: Request, form: Form, after: int, last_event_id: str | None) -> EventStream:
    """Return the stream. It begins again if the client has entries that the log lacks: a backup has been restored since then."""
    if last_event_id is not None:
        if not last_event_id.isdecimal() or int(last_event_id) > MAX_SEQ:
            raise SpecError(f"expected an event_seq in Last-Event-ID, got {last_event_id!r}", "/last-event-id")
        missing = int(last_event_id) > form.record.last_event_seq
        after = 0 if missing and isinstance(form, Events) else max(after, int(last_event_id))
    if isinstance(form, ChangedRows) and after > form.record.last_event_seq:
        after = BEFORE_ALL
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventStream(follow(here.tail, form, after, here.ending, Permission.of(request)), headers=headers)
