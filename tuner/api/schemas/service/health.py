"""Health and readiness of the service."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner.api.schemas.forms import Model


class Health(Model):
    status: Annotated[
        Literal["ok", "ready", "unready"],
        Field(
            description="/healthz: ok, since the service answers; /readyz: ready if the service can run experiments, else unready"
        ),
    ]
    problems: Annotated[list[str], Field(description="the reasons why the service is not ready")] = []  # noqa: RUF012 - pydantic copies it
