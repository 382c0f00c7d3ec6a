"""Types that many responses use: times, base classes of models, pages of lists, errors."""

from __future__ import annotations

import functools
import json
from collections.abc import Container
from typing import Annotated, Any, Generic, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import PydanticSerializationError

from tuner.domain import json_values
from tuner.domain.timestamps import rfc3339
from tuner.store.records import About

T = TypeVar("T")
Json = dict[str, Any]
Number = float | None


def _as_text(time: Any) -> Any:
    return rfc3339(time) if isinstance(time, float | int) else time


Timestamp = Annotated[str, BeforeValidator(_as_text), Field(json_schema_extra={"format": "date-time"})]
"""A time as text. Models convert it from a Unix timestamp."""


WORDS = {
    "action": "a verb",
    "best_value": "the trial's value of the first objective: the best feasible one or, with scope 'last', the last one",
    "cause": "why the segment was started",
    "checkpoint_id": "the checkpoint that belongs to this result; null if there is none",
    "created_at": "the time of creation",
    "ended_at": "when the final state was reached",
    "experiment_id": "exp_...",
    "items": "the items of this page, in the order that the route describes",
    "iteration": "the training_iteration: the count of the trial's reports",
    "max_t": "the value of time_attr at which a trial is complete",
    "metric": "the name of the metric",
    "mode": "min: lower values are better; max: higher values are better",
    "name": "the name of the experiment",
    "num_samples": "the number of trials to start; null: as many as the time budget allows",
    "number": "the trial's number within the experiment, from 0",
    "ordinal": "the segment's number within the trial, from 1",
    "params": 'the configuration as a flat mapping, such as "optimizer/lr" -> value',
    "rank": "the rank, from 0",
    "reason": "the reason, in words",
    "segment": "the ordinal of the segment",
    "segment_id": "seg_...",
    "segments": "one item for each segment, in the order in which they ran",
    "source_checkpoint_id": "the checkpoint that the segment started from; null if it started from none",
    "source_trial_number": "the number of the trial that saved the source checkpoint; null without one",
    "start_iteration": "the training_iteration of the checkpoint that the segment started from; 0 without one",
    "started_at": "the time of the start; null before the start",
    "state": "the current state",
    "time_attr": "the unit of max_t",
    "trial_id": "trl_...",
    "trial_number": "the trial's number within the experiment, from 0",
    "value": "the value of the first objective",
    "x": "the horizontal axis",
    "y": "the values of the metric",
}
"""Descriptions of fields that have the same meaning in every model. All other fields are described where they are declared."""


def _describe(schema: dict[str, Any]) -> None:
    for name, field in schema.get("properties", {}).items():
        if name in WORDS:
            field.setdefault("description", WORDS[name])


class Model(BaseModel):
    model_config = ConfigDict(
        ser_json_inf_nan="null",
        json_schema_serialization_defaults_required=True,
        json_schema_extra=_describe,
        validate_by_name=True,  # the client also uses these models, and parses responses, which have the API's names
        validate_by_alias=True,
    )

    def model_dump_json(self, **options: Any) -> str:
        """Return the model as JSON, with question marks for unpaired surrogates, such as those in names that are not UTF-8."""
        try:
            return super().model_dump_json(**options)
        except PydanticSerializationError:
            text = json.dumps(json_values.plain(self.model_dump(**options)), ensure_ascii=False, separators=(",", ":"))
            return text.encode("utf-8", "replace").decode()


class Body(BaseModel):
    """Base class of request bodies. Unknown fields are errors, and values are not converted to the type of the field."""

    model_config = ConfigDict(extra="forbid", strict=True)


def shown(record: type, leave_out: Container[str] = ()) -> type[Model]:
    """Return a model with all fields of a database record that are annotated with an `About`, except those in `leave_out`.

    The fields have the names and types that the API uses.
    """
    fields: dict[str, Any] = {}
    for name, plain, about in shown_fields(record):
        if name not in leave_out:
            if name.endswith("_at"):
                plain = Timestamp | None if type(None) in get_args(plain) else Timestamp
            fields[about.name or name] = (plain, Field(validation_alias=name, description=about.text))
    return create_model(record.__name__, __base__=Model, **fields)


def values(record: Any) -> dict[str, Any]:
    """Return the values of the fields of a record that the API shows, as arguments for a model from `shown`."""
    return {name: getattr(record, name) for name, _, _ in shown_fields(record.__class__)}


@functools.cache
def shown_fields(record: type) -> tuple[tuple[str, Any, About], ...]:
    """Return (name, type, `About`) for each of a record's fields that the API shows."""
    hints = get_type_hints(record, include_extras=True).items()
    marked = ((name, get_args(hint)) for name, hint in hints)
    return tuple((name, args[0], mark) for name, args in marked for mark in args if isinstance(mark, About))


class PageOf(Model, Generic[T]):
    items: list[T]
    next_page_token: Annotated[str | None, Field(description="token of the next page; null on the last page")] = None


class ErrorItem(Model):
    pointer: Annotated[
        str, Field(description="the JSON pointer to the field with the mistake; empty for the whole document")
    ]
    message: Annotated[
        str, Field(description="what is wrong and what was expected, with a suggestion for a misspelled name")
    ]


class Problem(Model):
    """An error, as RFC 9457 defines it."""

    type: Annotated[str, Field(description="always about:blank")] = "about:blank"
    title: Annotated[str, Field(description="the reason phrase of the HTTP status")]
    status: Annotated[int, Field(description="the HTTP status")]
    detail: Annotated[str, Field(description="a sentence that describes the error")]
    request_id: Annotated[
        str | None, Field(description="the id of the request, as in the header X-Request-Id and in the service's log")
    ] = None
    errors: Annotated[
        list[ErrorItem], Field(description="the mistakes in the request, each with the field that has it")
    ] = []
