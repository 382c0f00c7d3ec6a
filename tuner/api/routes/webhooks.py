"""/webhooks: webhooks and their deliveries."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from tuner.api.access.auth import Identity
from tuner.api.answers import BAD, NOT_FOUND, Route, answer, checked, json_body, plain_text
from tuner.api.context import Here
from tuner.api.schemas.service.webhooks import Delivery, DeliveryPage, NewWebhook, Webhook, WebhookList, WebhookPatch
from tuner.api.webhooks.outgoing import check_url
from tuner.errors import NotFound, SpecError
from tuner.store.service.access import Role

router = APIRouter(route_class=Route, tags=["webhooks"])

WebhookId = Annotated[str, Path(description="whk_...", examples=["whk_0123456789abcdef"])]


@router.get(
    "/webhooks",
    name="list",
    response_model=WebhookList,
    responses=BAD,
    summary="List webhooks, newest first; for editors",
)
def webhooks(here: Here) -> Response:
    return answer(WebhookList(items=[Webhook.of(record) for record in here.store.webhooks.all()]))


@router.post(
    "/webhooks",
    name="create",
    status_code=201,
    response_model=Webhook,
    responses=BAD,
    summary="Create a webhook. Only this response contains its secret; for editors",
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
    where = f"/api/v1/webhooks/{record.public_id}"
    return answer(Webhook.of(record, record.secret), 201, {"Cache-Control": "no-store", "Location": where})


@router.get(
    "/webhooks/{webhook_id}",
    name="get",
    response_model=Webhook,
    responses={**NOT_FOUND, **BAD},
    summary="Get a webhook; for editors",
)
def get_webhook(here: Here, webhook_id: WebhookId) -> Response:
    return answer(Webhook.of(here.store.webhooks.get(plain_text(webhook_id))))


@router.patch(
    "/webhooks/{webhook_id}",
    name="change",
    response_model=Webhook,
    responses={**NOT_FOUND, **BAD},
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
    responses={**NOT_FOUND, **BAD},
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
    responses={**NOT_FOUND, **BAD},
    summary="List the deliveries of a webhook, newest first; for editors",
)
def deliveries(
    here: Here,
    webhook_id: WebhookId,
    page_size: Annotated[int, Query(ge=1, le=1000, description="the maximum number of items per page")] = 100,
    page_token: Annotated[int | None, Query(ge=0, le=2**62, description="next_page_token of the previous page")] = None,
) -> Response:
    found = here.store.webhooks.deliveries(plain_text(webhook_id), limit=page_size + 1, before=page_token)
    shown = found[:page_size]
    more = str(shown[-1].id) if len(found) > page_size else None
    return answer(DeliveryPage(items=[Delivery.of(record) for record in shown], next_page_token=more))


@router.post(
    "/webhooks/{webhook_id}/test",
    name="test",
    status_code=202,
    response_model=Delivery,
    responses={**NOT_FOUND, **BAD},
    summary="Send the event `test` to a webhook now; for editors",
)
def send_test(here: Here, request: Request, webhook_id: WebhookId) -> Response:
    record = here.store.webhooks.get(plain_text(webhook_id))
    _check_may_change(request, record.project)
    return answer(Delivery.of(here.store.webhooks.test(record.public_id)), 202)


def _project_of(here: Here, experiment_id: str, project: str | None) -> str:
    """Return the project of an experiment.

    Raises:
        SpecError: the caller may not see the experiment, or the experiment is not in the project that the webhook names.
    """
    try:
        found = here.store.experiments.get(plain_text(experiment_id)).project
    except NotFound as error:
        raise SpecError(str(error), "/experiment_id") from error
    if project not in (None, found):
        raise SpecError(f"this experiment is not in the project {project!r}", "/experiment_id")
    return found


def _check_may_change(request: Request, project: str | None) -> None:
    """Raise a 403 if the webhook is for all projects and the caller is not an admin. A `project` of None means all projects."""
    identity: Identity = request.scope["state"]["identity"]
    if project is None and identity.role < Role.ADMIN:
        raise HTTPException(
            403, "only an admin may create, change, test or delete a webhook for all projects; name a project"
        )
