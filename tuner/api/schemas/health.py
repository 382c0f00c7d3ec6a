"""Health and readiness of the service."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner.api.schemas.forms import Model


class Health(Model):
    status: Annotated[
        Literal["ok", "ready", "unready"],
        Field(description="ok: the service answers; ready or unready: whether it can run experiments"),
    ]
    problems: Annotated[list[str], Field(description="the reasons why it is not ready")] = []  # noqa: RUF012 - pydantic copies it
