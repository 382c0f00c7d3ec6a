"""Projects: their experiments, the resources that they have used, and their quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from tuner.api.schemas.forms import Body, Model, Timestamp
from tuner.domain.timestamps import rfc3339_or_none
from tuner.store.experiments import ProjectTotals
from tuner.store.service.projects import ProjectSettings, WarmStart

DefaultWarmStart = Annotated[
    WarmStart | None,
    Field(
        description="the warm_start of new experiments whose spec has none; auto: they learn from earlier experiments of the "
        "project with the same metric and a similar space; null: they do not"
    ),
]


class Project(Model):
    """A project that has experiments, settings, or a quota of its own."""

    name: str
    experiments: Annotated[int, Field(description="the number of experiments, including archived ones")]
    archived: Annotated[int, Field(description="the number of archived experiments")]
    running: Annotated[int, Field(description="the number of experiments that have not ended")]
    gpu_hours: Annotated[float, Field(description="the GPU hours that all experiments have used")]
    gpu_hours_saved: Annotated[
        float, Field(description="the GPU hours saved by stopping trials before max_t, estimated from their pace")
    ]
    cpu_hours: Annotated[float, Field(description="the CPU hours that all experiments have used")]
    latest_at: Annotated[
        Timestamp | None, Field(description="when the newest experiment was created; null if there is none")
    ]
    quota: Annotated[
        dict[str, float],
        Field(
            description="resource -> the maximum amount that the project's trials may hold together (TUNER_QUOTAS); "
            "resources without a limit are left out"
        ),
    ]
    warm_start: DefaultWarmStart

    @classmethod
    def of(cls, totals: ProjectTotals, quota: Mapping[str, float], settings: ProjectSettings) -> Project:
        return cls(
            name=totals.project,
            experiments=totals.experiments,
            archived=totals.archived,
            running=totals.running,
            gpu_hours=totals.gpu_hours,
            gpu_hours_saved=totals.gpu_hours_saved,
            cpu_hours=totals.cpu_hours,
            latest_at=rfc3339_or_none(totals.latest_at or None),
            quota=dict(quota),
            warm_start=settings.warm_start,
        )


class ProjectList(Model):
    items: Annotated[list[Project], Field(description="the projects, ordered by name")]


class ProjectPatch(Body):
    """The body of a request that changes the settings of a project. Settings that are left out keep their values."""

    warm_start: DefaultWarmStart = None
