"""The projects of a database as the API and `tuner project` show them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tuner.api import schemas
from tuner.domain.experiment import PROJECT, PROJECT_IN_WORDS
from tuner.errors import NotFound
from tuner.settings import Quota
from tuner.store import Store
from tuner.store.experiments import ProjectTotals
from tuner.store.service.projects import ProjectSettings


def check_name(name: str) -> None:
    """Raise NotFound if no project can have this name."""
    if not re.fullmatch(PROJECT, name):
        raise NotFound(f"no project can have the name {name!r}: use {PROJECT_IN_WORDS}")


def shown_project(store: Store, quotas: tuple[Quota, ...], name: str, only: str | None = None) -> schemas.Project:
    """Return a project, which need not have experiments, settings or a quota. `only` is as for `shown_projects`."""
    unused = schemas.Project.of(_unused(name), _quota_of(name, quotas), ProjectSettings())
    return shown_projects(store, quotas, only).get(name, unused)


def shown_projects(store: Store, quotas: tuple[Quota, ...], only: str | None = None) -> Mapping[str, schemas.Project]:
    """Return a dict from name to `Project`, for each project that has experiments, settings or a quota.

    only: the only project that the caller may see. None: all projects.
    """
    totals = {found.project: found for found in store.experiments.projects()}
    settings = store.projects.all()
    with_quota = (q.project for q in quotas if q.project != "*" and only in (None, q.project))
    for name in (*with_quota, *settings):
        totals.setdefault(name, _unused(name))
    return {
        name: schemas.Project.of(found, _quota_of(name, quotas), settings.get(name, ProjectSettings()))
        for name, found in totals.items()
    }


def _unused(name: str) -> ProjectTotals:
    return ProjectTotals(name, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)


def _quota_of(project: str, quotas: tuple[Quota, ...]) -> dict[str, float]:
    """Return a project's quotas as resource -> amount. A project without quotas of its own has those of the project "*"."""
    own = {quota.resource: quota.amount for quota in quotas if quota.project == project}
    return own or {quota.resource: quota.amount for quota in quotas if quota.project == "*"}
