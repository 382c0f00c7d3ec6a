"""Projects: their experiments, the resources that they have used, and their quotas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from tuner.api.schemas.forms import Body, Model, Timestamp
from tuner.domain.experiment import PROJECT, PROJECT_IN_WORDS
from tuner.domain.timestamps import rfc3339_or_none
from tuner.errors import NotFound
from tuner.settings import Quota
from tuner.store import Store
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


def check_name(name: str) -> None:
    """Raise NotFound if no project can have this name."""
    if not re.fullmatch(PROJECT, name):
        raise NotFound(f"no project can have the name {name!r}: use {PROJECT_IN_WORDS}")


def shown_project(store: Store, quotas: tuple[Quota, ...], name: str, only: str | None = None) -> Project:
    """Return a project, which need not have experiments, settings or a quota. `only` is as for `shown_projects`."""
    unused = Project.of(_unused(name), _quota_of(name, quotas), ProjectSettings())
    return shown_projects(store, quotas, only).get(name, unused)


def shown_projects(store: Store, quotas: tuple[Quota, ...], only: str | None = None) -> Mapping[str, Project]:
    """Return a dict from name to `Project`, for each project that has experiments, settings or a quota.

    only: the only project that the caller may see. None: all projects.
    """
    totals = {found.project: found for found in store.experiments.projects()}
    settings = store.projects.all()
    with_quota = (q.project for q in quotas if q.project != "*" and only in (None, q.project))
    for name in (*with_quota, *settings):
        totals.setdefault(name, _unused(name))
    return {
        name: Project.of(found, _quota_of(name, quotas), settings.get(name, ProjectSettings()))
        for name, found in totals.items()
    }


def _unused(name: str) -> ProjectTotals:
    return ProjectTotals(name, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)


def _quota_of(project: str, quotas: tuple[Quota, ...]) -> dict[str, float]:
    """Return a project's quotas as resource -> amount. A project without quotas of its own has those of the project "*"."""
    own = {quota.resource: quota.amount for quota in quotas if quota.project == project}
    return own or {quota.resource: quota.amount for quota in quotas if quota.project == "*"}
