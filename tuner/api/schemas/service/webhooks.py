"""Webhooks and their deliveries."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner.api.schemas.forms import Body, Model, Timestamp
from tuner.domain.experiment import PROJECT
from tuner.domain.timestamps import rfc3339, rfc3339_or_none
from tuner.store.service.webhooks import DeliveryRecord, EventName, SentEvent, WebhookRecord
from tuner.store.service.webhooks import Format as FormatName

Url = Annotated[
    str,
    Field(
        max_length=2000,
        description="the URL to which deliveries are sent by POST, such as https://example.com/hook; redirects are not followed",
        examples=["https://example.com/hook"],
    ),
]
Events = Annotated[
    list[EventName],
    Field(
        min_length=1,
        max_length=20,
        description="the events that are sent to the webhook",
        examples=[["experiment.completed", "trial.failed"]],
    ),
]
Threshold = Annotated[
    float | None,
    Field(
        allow_inf_nan=False,
        description="the value of the first objective at which objective.reached is sent; null: never",
    ),
]


class NewWebhook(Body):
    """The body of a request that creates a webhook."""

    url: Url
    events: Events
    project: Annotated[
        str | None,
        Field(
            pattern=PROJECT,
            description=(
                "send only events of this project; null: send the events of the project that the caller is limited to, or of "
                "all projects if the caller is not limited"
            ),
        ),
    ] = None
    experiment_id: Annotated[
        str | None,
        Field(
            max_length=100,
            description="send only events of this experiment, exp_...; null: send the events of all experiments in the project",
        ),
    ] = None
    format: Annotated[
        FormatName, Field(description="the format of the message: json, or slack for Slack's incoming webhooks")
    ] = "json"
    threshold: Threshold = None


class WebhookPatch(Body):
    """The body of a request that changes a webhook. Fields that are null or left out keep their values."""

    url: Annotated[Url | None, Field(description="the new URL")] = None
    events: Annotated[Events | None, Field(description="the events that are sent to the webhook")] = None
    format: Annotated[FormatName | None, Field(description="json or slack")] = None
    threshold: Annotated[
        Threshold,
        Field(description="the new threshold: the value of the first objective at which objective.reached is sent"),
    ] = None


class Webhook(Model):
    """A webhook. Its secret is shown only when it is created."""

    id: Annotated[str, Field(description="whk_...")]
    url: Annotated[str, Field(description="the URL to which deliveries are sent")]
    events: Annotated[list[EventName], Field(description="the events that are sent to the webhook")]
    project: Annotated[
        str | None, Field(description="only events of this project are sent; null: events of all projects are sent")
    ]
    experiment_id: Annotated[
        str | None,
        Field(
            description="only events of this experiment are sent; null: events of all experiments in the project are sent"
        ),
    ]
    format: Annotated[FormatName, Field(description="json or slack")]
    threshold: Annotated[
        float | None,
        Field(description="the value of the first objective at which objective.reached is sent; null: never"),
    ]
    created_at: Timestamp
    secret: Annotated[
        str | None,
        Field(
            description="the key that signs deliveries; contained only in the response to the request that creates the webhook"
        ),
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
    """A message about one event to one webhook, and the attempts to send it."""

    id: Annotated[
        str,
        Field(
            description="the id of the delivery, dlv_..., as in the header Tuner-Delivery; it is the same for every attempt"
        ),
    ]
    event: Annotated[SentEvent, Field(description="the event that is sent; test: a test that somebody requested")]
    experiment_id: Annotated[
        str, Field(description="the experiment that the event is about, exp_...; exp_test in a test")
    ]
    state: Annotated[
        Literal["pending", "delivered", "failed"],
        Field(
            description="pending: there will be another attempt; failed: no attempt has succeeded, and there will be no more"
        ),
    ]
    attempts: Annotated[int, Field(description="the number of attempts so far")]
    next_attempt_at: Annotated[
        str | None, Field(description="when the next attempt is due; null if there will be none")
    ]
    last_status: Annotated[
        int | None, Field(description="the HTTP status of the receiver's latest response; null: there was no response")
    ]
    last_error: Annotated[
        str | None, Field(description="why the latest attempt failed; null: it succeeded, or there has been no attempt")
    ]
    created_at: Timestamp
    ended_at: Annotated[
        str | None, Field(description="when the message was delivered or abandoned; null if it is pending")
    ]

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
    next_page_token: Annotated[str | None, Field(description="token of the next page; null on the last page")]
