"""/projects: the projects of the service, and their settings."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from fastapi.responses import Response

from tuner.api import schemas
from tuner.api.answers import BAD, NOT_FOUND, Route, answer, checked, json_body, plain_text
from tuner.api.context import Here
from tuner.api.schemas.service.projects import check_name, shown_project, shown_projects
from tuner.errors import NotFound

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
    found = shown_projects(here.store, here.settings.quotas, here.project)
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
    found = shown_projects(here.store, here.settings.quotas, here.project)
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
    check_name(name)
    given = checked(schemas.ProjectPatch, data)
    if "warm_start" in given.model_fields_set:
        here.store.projects.change(name, warm_start=given.warm_start)
    return answer(shown_project(here.store, here.settings.quotas, name, here.project))
