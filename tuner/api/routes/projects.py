"""The projects of the service."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from tuner.api import schemas
from tuner.api.answers import BAD, answer
from tuner.api.context import Here
from tuner.settings import Quota
from tuner.store.experiments import ProjectTotals

router = APIRouter(tags=["projects"])


@router.get(
    "/projects",
    response_model=schemas.ProjectList,
    responses=BAD,
    summary="List the projects that have experiments or a quota, with what their experiments have used.",
)
def projects(here: Here) -> Response:
    """Return the projects that the caller may see."""
    quotas = here.settings.quotas
    totals = {found.project: found for found in here.store.experiments.projects()}
    for quota in quotas:
        if quota.project != "*" and here.project in (None, quota.project):
            totals.setdefault(quota.project, ProjectTotals(quota.project, 0, 0, 0, 0.0, 0.0, 0.0, 0.0))
    items = [schemas.Project.of(totals[name], _quota_of(name, quotas)) for name in sorted(totals)]
    return answer(schemas.ProjectList(items=items))


def _quota_of(project: str, quotas: tuple[Quota, ...]) -> dict[str, float]:
    """Return resource -> amount. A project without a quota of its own has that of the project "*"."""
    own = {quota.resource: quota.amount for quota in quotas if quota.project == project}
    return own or {quota.resource: quota.amount for quota in quotas if quota.project == "*"}
