"""The cluster that the service uses."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from tuner.api import schemas
from tuner.api.answers import BAD, SILENT, Route, answer
from tuner.api.context import Here

router = APIRouter(route_class=Route, tags=["cluster"])


@router.get(
    "/cluster",
    response_model=schemas.Cluster,
    responses={**SILENT, **BAD},
    summary="Get the nodes of the cluster, the worker groups on them, and the worker groups that wait for resources.",
)
def cluster(here: Here) -> Response:
    """Return the state of the cluster, as the driver host sees it. The host does not know of experiments that scripts drive."""
    found = here.driver.cluster()
    trials = [item["trial_id"] for part in ("groups", "waiting") for item in found[part]]
    return answer(schemas.Cluster.of(found, here.store.trials.numbers(trials)))
