"""/metrics, for Prometheus."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from tuner.api.answers import NOT_FOUND, Route
from tuner.api.context import Here

router = APIRouter(route_class=Route, tags=["health"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus's text format"}, **NOT_FOUND},
    summary="Get the metrics of the service and its driver for Prometheus.",
)
async def metrics(here: Here) -> Response:
    """Return all metrics in Prometheus's text format."""
    if here.settings.metrics == "off" or here.metrics is None:
        raise HTTPException(404, "TUNER_METRICS is off")
    return Response(await asyncio.to_thread(here.metrics.text), media_type=CONTENT_TYPE_LATEST)
