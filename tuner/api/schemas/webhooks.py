"""Webhooks and their deliveries."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner.api.schemas.forms import Body, Model, Timestamp, rfc3339, rfc3339_or_none
from tuner.domain.experiment import PROJECT
from tuner.store.webhooks import DeliveryRecord, EventName, SentEvent, WebhookRecord
from tuner.store.webhooks import Format as FormatName

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
        description="the events that it receives",
        examples=[["experiment.completed", "trial.failed"]],
    ),
]
Threshold = Annotated[
    float | None,
    Field(allow_inf_nan=False, description="the value that the first objective has to reach, for objective.reached"),
]


class NewWebhook(Body):
    """The body that creates a webhook."""

    url: Url
    events: Events
    project: Annotated[
        str | None,
        Field(
            pattern=PROJECT,
            description=(
                "only experiments of this project; null: all projects, or the caller's project if the caller is "
                "limited to one"
            ),
        ),
    ] = None
    experiment_id: Annotated[
        str | None,
        Field(max_length=100, description="exp_...: only this experiment; null: all experiments of the project"),
    ] = None
    format: Annotated[FormatName, Field(description="json, or slack for Slack's incoming webhooks")] = "json"
    threshold: Threshold = None


class WebhookPatch(Body):
    """Changes of a webhook. Fields that are null or left out keep their values."""

    url: Annotated[Url | None, Field(description="the new URL")] = None
    events: Annotated[Events | None, Field(description="the events that it receives")] = None
    format: Annotated[FormatName | None, Field(description="json or slack")] = None
    threshold: Threshold = None


class Webhook(Model):
    """A webhook without its secret."""

    id: Annotated[str, Field(description="whk_...")]
    url: Annotated[str, Field(description="the URL to which deliveries are sent")]
    events: Annotated[list[EventName], Field(description="the events that it receives")]
    project: Annotated[str | None, Field(description="only experiments of this project; null: all")]
    experiment_id: Annotated[
        str | None, Field(description="only this experiment; null: all experiments of the project")
    ]
    format: Annotated[FormatName, Field(description="json or slack")]
    threshold: Annotated[float | None, Field(description="for objective.reached")]
    created_at: Timestamp
    secret: Annotated[
        str | None,
        Field(description="the key of the signatures; only the response that creates the webhook contains it"),
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

    id: Annotated[str, Field(description="dlv_...; also in the header Tuner-Delivery; the same for every attempt")]
    event: Annotated[SentEvent, Field(description="the event; test: a test that somebody requested")]
    experiment_id: Annotated[str, Field(description="exp_...; exp_test in a test")]
    state: Annotated[
        Literal["pending", "delivered", "failed"],
        Field(description="failed: no attempt succeeded, and no more are made"),
    ]
    attempts: Annotated[int, Field(description="number of attempts so far")]
    next_attempt_at: Annotated[str | None, Field(description="time of the next attempt; null if it is not pending")]
    last_status: Annotated[int | None, Field(description="the HTTP status of the receiver's latest answer, if any")]
    last_error: Annotated[str | None, Field(description="the error of the latest attempt, if it failed")]
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
    next_page_token: Annotated[str | None, Field(description="token of the next page; null on the last page")]
