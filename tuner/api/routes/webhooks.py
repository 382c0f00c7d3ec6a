"""/webhooks: who is told of what, and what they were told."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response
from pydantic import Field
from starlette.exceptions import HTTPException

from tuner.api.answers import BAD, NOT_FOUND, answer, checked, json_body, plain_text
from tuner.api.auth import Identity
from tuner.api.context import Here
from tuner.api.outgoing import check_url
from tuner.api.routes.access import FORBIDDEN
from tuner.api.schemas import Model, rfc3339, rfc3339_or_none
from tuner.api.schemas.forms import Body, Timestamp
from tuner.domain.experiment import PROJECT
from tuner.errors import NotFound, SpecError
from tuner.store.access import Role
from tuner.store.webhooks import DeliveryRecord, EventName, WebhookRecord
from tuner.store.webhooks import Format as FormatName

router = APIRouter(tags=["webhooks"])

WebhookId = Annotated[str, Path(description="whk_...", examples=["whk_0123456789abcdef"])]
Url = Annotated[
    str,
    Field(
        max_length=2000,
        description="where deliveries are sent by POST, such as https://example.com/hook; redirects are not followed",
        examples=["https://example.com/hook"],
    ),
]
Events = Annotated[
    list[EventName],
    Field(
        min_length=1,
        max_length=20,
        description="what it is told of",
        examples=[["experiment.completed", "trial.failed"]],
    ),
]
Threshold = Annotated[
    float | None,
    Field(allow_inf_nan=False, description="for objective.reached: the value of the first objective to be reached"),
]


class NewWebhook(Body):
    """The body that creates a webhook."""

    url: Url
    events: Events
    project: Annotated[
        str | None,
        Field(pattern=PROJECT, description="only experiments of this project; null: all, or the one of the caller"),
    ] = None
    experiment_id: Annotated[
        str | None, Field(max_length=100, description="exp_...: only this experiment; null: all of the project")
    ] = None
    format: Annotated[FormatName, Field(description="json, or slack for an incoming webhook of Slack")] = "json"
    threshold: Threshold = None


class WebhookPatch(Body):
    """The changes of a webhook. A field that is null or left out stays as it is."""

    url: Annotated[Url | None, Field(description="where deliveries are sent from now on")] = None
    events: Annotated[Events | None, Field(description="what it is told of")] = None
    format: Annotated[FormatName | None, Field(description="json or slack")] = None
    threshold: Threshold = None


class Webhook(Model):
    """A webhook without its secret."""

    id: Annotated[str, Field(description="whk_...")]
    url: Annotated[str, Field(description="where deliveries are sent")]
    events: Annotated[list[EventName], Field(description="what it is told of")]
    project: Annotated[str | None, Field(description="only experiments of this project; null: all")]
    experiment_id: Annotated[str | None, Field(description="only this experiment; null: all of the project")]
    format: Annotated[FormatName, Field(description="json or slack")]
    threshold: Annotated[float | None, Field(description="for objective.reached")]
    created_at: Timestamp
    secret: Annotated[
        str | None,
        Field(description="the key of the signatures; only in the answer that creates it, nobody can read it again"),
    ] = None

    @classmethod
    def of(cls, record: WebhookRecord, secret: str | None = None) -> Webhook:
        """Return the webhook as the API shows it."""
        return cls(
            id=record.public_id,
            url=record.url,
            events=list(record.events),  # type: ignore[arg-type]
            project=record.project,
            experiment_id=record.experiment,
            format=record.format,
            threshold=record.threshold,
            created_at=rfc3339(record.created_at),
            secret=secret,
        )


class WebhookList(Model):
    """All webhooks, newest first."""

    items: Annotated[list[Webhook], Field(description="the webhooks, without their secrets")]


class Delivery(Model):
    """One message to one webhook."""

    id: Annotated[str, Field(description="dlv_...; also in the header Tuner-Delivery, the same at every attempt")]
    event: Annotated[EventName, Field(description="what happened")]
    experiment_id: Annotated[str, Field(description="exp_...")]
    state: Annotated[
        Literal["pending", "delivered", "failed"], Field(description="failed: given up after the last attempt")
    ]
    attempts: Annotated[int, Field(description="how often it was sent")]
    next_attempt_at: Annotated[str | None, Field(description="null if it is not pending")]
    last_status: Annotated[int | None, Field(description="the status of the receiver's latest answer, if any")]
    last_error: Annotated[str | None, Field(description="why the latest attempt failed, if it did")]
    created_at: Timestamp
    ended_at: Annotated[str | None, Field(description="when it was delivered or given up")]

    @classmethod
    def of(cls, record: DeliveryRecord) -> Delivery:
        """Return the delivery as the API shows it."""
        return cls(
            id=record.public_id,
            event=record.event,  # type: ignore[arg-type]
            experiment_id=record.experiment,
            state=record.state,
            attempts=record.attempts,
            next_attempt_at=rfc3339(record.next_at) if record.state == "pending" else None,
            last_status=record.last_status,
            last_error=record.last_error,
            created_at=rfc3339(record.created_at),
            ended_at=rfc3339_or_none(record.ended_at),
        )


class DeliveryPage(Model):
    """Deliveries of a webhook, newest first."""

    items: Annotated[list[Delivery], Field(description="the deliveries")]
    next_page_token: Annotated[str | None, Field(description="of the next page; null on the last one")]


@router.get(
    "/webhooks",
    name="list",
    response_model=WebhookList,
    responses={**BAD, **FORBIDDEN},
    summary="All webhooks, newest first; for editors",
)
def webhooks(here: Here) -> Response:
    return answer(WebhookList(items=[Webhook.of(record) for record in here.store.webhooks.all()]))


@router.post(
    "/webhooks",
    name="create",
    status_code=201,
    response_model=Webhook,
    responses={**BAD, **FORBIDDEN},
    summary="Create a webhook; its secret is in this answer only; for editors",
)
def create_webhook(here: Here, request: Request, data: Annotated[object, Depends(json_body)]) -> Response:
    given = checked(NewWebhook, data)
    check_url(given.url, private=here.settings.webhook_private)
    project = given.project or here.project
    if given.experiment_id is not None:
        project = _project_of(here, given.experiment_id, project)
    _check_may_change(request, project)
    record = here.store.webhooks.create(
        given.url,
        given.events,
        project=project,
        experiment=given.experiment_id,
        format=given.format,
        threshold=given.threshold,
    )
    return answer(Webhook.of(record, record.secret), 201, {"Cache-Control": "no-store"})


@router.get(
    "/webhooks/{webhook_id}",
    name="get",
    response_model=Webhook,
    responses={**NOT_FOUND, **BAD, **FORBIDDEN},
    summary="Get a webhook; for editors",
)
def get_webhook(here: Here, webhook_id: WebhookId) -> Response:
    return answer(Webhook.of(here.store.webhooks.get(plain_text(webhook_id))))


@router.patch(
    "/webhooks/{webhook_id}",
    name="change",
    response_model=Webhook,
    responses={**NOT_FOUND, **BAD, **FORBIDDEN},
    summary="Change a webhook; for editors",
)
def change_webhook(
    here: Here, request: Request, webhook_id: WebhookId, data: Annotated[object, Depends(json_body)]
) -> Response:
    record = here.store.webhooks.get(plain_text(webhook_id))
    _check_may_change(request, record.project)
    given = checked(WebhookPatch, data)
    if given.url is not None:
        check_url(given.url, private=here.settings.webhook_private)
    changed = here.store.webhooks.change(
        record.public_id, url=given.url, events=given.events, format=given.format, threshold=given.threshold
    )
    return answer(Webhook.of(changed))


@router.delete(
    "/webhooks/{webhook_id}",
    name="delete",
    status_code=204,
    responses={**NOT_FOUND, **BAD, **FORBIDDEN},
    summary="Delete a webhook and its deliveries; for editors",
)
def delete_webhook(here: Here, request: Request, webhook_id: WebhookId) -> Response:
    record = here.store.webhooks.get(plain_text(webhook_id))
    _check_may_change(request, record.project)
    here.store.webhooks.delete(record.public_id)
    return Response(status_code=204)


@router.get(
    "/webhooks/{webhook_id}/deliveries",
    response_model=DeliveryPage,
    responses={**NOT_FOUND, **BAD, **FORBIDDEN},
    summary="The deliveries of a webhook, newest first; for editors",
)
def deliveries(
    here: Here,
    webhook_id: WebhookId,
    page_size: Annotated[int, Query(ge=1, le=1000, description="items on a page")] = 100,
    page_token: Annotated[int | None, Query(ge=0, le=2**62, description="next_page_token of the page before")] = None,
) -> Response:
    found = here.store.webhooks.deliveries(plain_text(webhook_id), limit=page_size, before=page_token)
    more = str(found[-1].id) if len(found) == page_size else None
    return answer(DeliveryPage(items=[Delivery.of(record) for record in found], next_page_token=more))


def _project_of(here: Here, experiment_id: str, project: str | None) -> str:
    """Return the project of an experiment. Raise SpecError if the caller cannot see it, or it is in another project."""
    try:
        found = here.store.experiments.get(plain_text(experiment_id)).project
    except NotFound as error:
        raise SpecError(str(error), "/experiment_id") from error
    if project not in (None, found):
        raise SpecError(f"this experiment is not in the project {project!r}", "/experiment_id")
    return found


def _check_may_change(request: Request, project: str | None) -> None:
    """Refuse a change of a webhook for all projects by anybody but an admin."""
    identity: Identity = request.scope["state"]["identity"]
    if project is None and identity.role < Role.ADMIN:
        raise HTTPException(403, "a webhook for all projects needs the role admin; name a project")
