"""Declare the JSON form of a spec: its fields, their types, and their descriptions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, WithJsonSchema, create_model
from pydantic_core import CoreSchema

from tuner.domain.experiment import PRINTABLE, SECTIONS, Mode, Spec
from tuner.experiment.code.by_value import Function

NAME_LENGTH = 200

Name = Annotated[str, Field(min_length=1, max_length=NAME_LENGTH, pattern=PRINTABLE)]

TagKey = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f-\x9f=]*$")]

TagValue = Annotated[str, Field(max_length=200, pattern=PRINTABLE)]

MOST_TAGS = 50

STRICT = ConfigDict(extra="forbid", strict=True)


class AsObject:
    """Annotates a dataclass that is an object in JSON. Without it, a strict model accepts only instances of the dataclass."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema: Any = handler(source)
        if schema["type"] == "definition-ref":
            schema = handler.resolve_ref_schema(schema)
        schema["strict"] = False
        return cast("CoreSchema", schema)


def _declared(kind: type) -> dict[str, Any]:
    """Return the options and sections that a domain dataclass declares, as fields of a pydantic model."""
    found: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for one in dataclasses.fields(kind):
        if one.name in SECTIONS:
            section = hints[one.name]
            found[one.name] = (
                Annotated[section, AsObject()],
                Field(default_factory=section, description=section.__doc__),
            )
        elif "description" in one.metadata:
            found[one.name] = (hints[one.name], Field(one.default, **one.metadata))
    return found


_COMMAND = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}, {"type": "null"}]}


class Written(BaseModel):
    """The fields of a spec whose JSON form differs from that of `Spec`."""

    model_config = STRICT

    name: Name | None = Field(
        default=None, description="the name of the experiment; null: the name of the entrypoint's function"
    )
    entrypoint: str | None = Field(
        default=None, description="module:function", examples=["tuner.examples.digits:train"]
    )
    function: Function | None = Field(
        default=None,
        description="instead of an entrypoint: the function itself, as `tuner.run(..., address=...)` sends it",
    )
    command: Annotated[Any, WithJsonSchema(_COMMAND)] = Field(
        default=None,
        description="instead of an entrypoint: a script and its arguments, in which {lr} is the value of the parameter lr",
        examples=[["train.py", "--lr", "{lr}"]],
    )
    metric_pattern: str | None = Field(
        default=None,
        description="a regular expression that finds metrics in the output of a command",
        examples=["loss: (?P<loss>[0-9.]+)"],
    )
    bundle: str | None = Field(
        default=None,
        description="SHA-256 of a zip file of Python code that was uploaded to /bundles; the ranks can import its modules",
    )
    space: dict[str, Any] = Field(
        description='parameter -> {"type": "loguniform", "lower": 1e-4, "upper": 0.1} or another domain'
    )
    metric: Name | list[Name] = Field(description="the objective, or a list of objectives")
    mode: Mode | list[Mode] = Field(
        description="whether to minimize or maximize the metric; one for all metrics, or a list with one for each"
    )
    search: dict[str, Any] = Field(
        default_factory=lambda: {"type": "auto"}, description="the searcher, which chooses the configurations to try"
    )
    scheduler: dict[str, Any] = Field(
        default_factory=lambda: {"type": "auto"},
        description="the scheduler, which decides which trials continue and which stop early",
    )
    stop: dict[str, Any] = Field(
        default_factory=dict,
        description='when a trial is complete: {metric: threshold} or {"type": ..., option: value}',
        examples=[{"accuracy": 0.99}, {"type": "plateau", "metric": "loss"}],
    )
    points_to_evaluate: list[dict[str, Any]] = Field(
        default_factory=list,
        description="configurations to try first, each nested as the space is, or flat, as {'opt/lr': 0.1}",
        examples=[[{"lr": 0.1, "optimizer/momentum": 0.9}]],
    )
    runtime_env: dict[str, Any] = Field(default_factory=dict, description="Ray's runtime environment of the ranks")
    notes: str = Field(default="", max_length=100_000, description="notes in Markdown")
    tags: dict[TagKey, TagValue] = Field(
        default_factory=dict,
        max_length=MOST_TAGS,
        description="keys and values to find the experiment by",
        examples=[{"team": "vision"}],
    )


DECLARED = _declared(Spec)

SpecModel = create_model(
    "SpecModel",
    __base__=Written,
    __doc__="One experiment: the space, the objective, the scheduler and searcher, and the limits.",
    **DECLARED,
)
"""A spec in its JSON form. The fields that it shares with `Spec` are declared in `Spec`."""

OPTIONS: Mapping[str, Sequence[str]] = {
    "": list(SpecModel.model_fields),
    **{name: [option.name for option in dataclasses.fields(kind)] for name, kind in SECTIONS.items()},
}
"""The names of the options of each section. "" is the top level."""

SECTION: Mapping[str, type[BaseModel]] = {
    name: create_model(name, __config__=STRICT, only=cast("Any", (Annotated[kind, AsObject()], ...)))
    for name, kind in SECTIONS.items()
}
