"""/projects: the projects of the service, and their settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Path
from fastapi.responses import Response

from tuner.api import schemas
from tuner.api.answers import BAD, NOT_FOUND, Route, answer, checked, json_body, plain_text
from tuner.api.context import Context, Here
from tuner.domain.experiment import PROJECT, PROJECT_IN_WORDS
from tuner.errors import NotFound
from tuner.settings import Quota
from tuner.store.experiments import ProjectTotals
from tuner.store.service.projects import ProjectSettings

router = APIRouter(route_class=Route, tags=["projects"])

ProjectName = Annotated[str, Path(description="the name of the project", examples=["vision"])]


@router.get(
    "/projects",
    response_model=schemas.ProjectList,
    responses=BAD,
    summary="List the projects that have experiments, settings or a quota, and the resources that their experiments have used.",
)
def projects(here: Here) -> Response:
    """Return the projects that the caller may see."""
    found = _projects(here)
    return answer(schemas.ProjectList(items=[found[name] for name in sorted(found)]))


@router.get(
    "/projects/{project}",
    name="get",
    response_model=schemas.Project,
    responses={**NOT_FOUND, **BAD},
    summary="Get a project: its settings, and the resources that its experiments have used.",
)
def get_project(here: Here, project: ProjectName) -> Response:
    name = plain_text(project)
    found = _projects(here)
    if name not in found:
        raise NotFound(f"no project {name!r}")
    return answer(found[name])


@router.patch(
    "/projects/{project}",
    name="change",
    response_model=schemas.Project,
    responses={**NOT_FOUND, **BAD},
    summary="Change the settings of a project, which need not have experiments yet; for editors.",
)
def change_project(here: Here, project: ProjectName, data: Annotated[object, Depends(json_body)]) -> Response:
    """Change the defaults of experiments that are created from now on. Existing experiments do not change."""
    name = plain_text(project)
    if not re.fullmatch(PROJECT, name):
        raise NotFound(f"no project can have the name {name!r}: use {PROJECT_IN_WORDS}")
    given = checked(schemas.ProjectPatch, data)
    if "warm_start" in given.model_fields_set:
        here.store.projects.change(name, warm_start=given.warm_start)
    unused = schemas.Project.of(_unused(name), _quota_of(name, here.settings.quotas), ProjectSettings())
    return answer(_projects(here).get(name, unused))


def _projects(here: Context) -> Mapping[str, schemas.Project]:
    """Return a dict from name to `Project`, for each project that the caller may see."""
    quotas = here.settings.quotas
    totals = {found.project: found for found in here.store.experiments.projects()}
    settings = here.store.projects.all()
    with_quota = (q.project for q in quotas if q.project != "*" and here.project in (None, q.project))
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
