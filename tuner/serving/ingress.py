"""The HTTP side of a deployment: a FastAPI application over `Rollouts`."""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Callable, Collection
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Response
from pydantic import BaseModel

from tuner import __version__
from tuner.api.access.guards import host_of, names_loopback
from tuner.errors import RolloutFailed
from tuner.serving.rollouts import Rollouts

log = logging.getLogger(__name__)


class Inputs(BaseModel):
    """The body of POST /predict."""

    inputs: Any


def application(rollouts: Callable[[], Rollouts], token: str | None = None, hosts: Collection[str] = ()) -> FastAPI:
    """Return the HTTP application of a deployment.

    Args:
        rollouts: a function that returns the models. It is called for each request.
        token: the token that callers must send as ``Authorization: Bearer TOKEN``, except for GET /healthz. None: callers need
            no token, but their Host header must be a name of this machine, or one of `hosts`, so that no web page can reach the
            model.
        hosts: the names of this deployment, in lower case, in addition to localhost and the addresses of loopback.
    """
    names = {"localhost", *hosts}

    async def checked(
        authorization: Annotated[str, Header()] = "",
        host: Annotated[str, Header()] = "",
        origin: Annotated[str | None, Header()] = None,
    ) -> None:
        if token is None and not names_loopback(host, names):
            raise HTTPException(421, f"the Host header {host!r} is not a name of this machine; see TUNER_ALLOWED_HOSTS")
        if token is None and origin is not None and host_of(origin) != host.lower():
            raise HTTPException(403, f"web pages of {origin} may not use this model")
        if token is not None and not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, "expected the header Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})

    app = FastAPI(title="tuner serve-model", version=__version__)
    needs_token = [Depends(checked)]

    @app.get("/healthz")
    async def healthz() -> dict[str, Any]:
        return {"status": "ok", "version": rollouts().current.release.version}

    @app.get("/info", dependencies=needs_token)
    async def info() -> dict[str, Any]:
        """Say where the model comes from: experiment, trial, metric, value, version."""
        return rollouts().info()

    @app.post("/predict", dependencies=needs_token)
    async def predict(body: Inputs) -> Response:
        """Call `predict(inputs)` of the predictor."""
        try:
            outputs, version = await rollouts().predict(body.inputs)
        except ValueError as error:
            raise HTTPException(422, _cause(error)) from error
        except Exception as error:
            log.warning("a prediction failed", exc_info=True)
            raise HTTPException(500, _cause(error)) from error
        try:
            content = json.dumps({"outputs": outputs, "version": version}, allow_nan=False)
        except (TypeError, ValueError) as error:
            log.warning("a prediction failed", exc_info=True)
            nan = "predict returned NaN or an infinity, which JSON cannot represent"
            raise HTTPException(500, nan if isinstance(error, ValueError) else _cause(error)) from error
        return Response(content, media_type="application/json")

    @app.post("/rollout", dependencies=needs_token)
    async def rollout() -> dict[str, Any]:
        """Replace the model with the experiment's current best checkpoint. Answer when the new model has taken over."""
        try:
            return await rollouts().roll_out()
        except RolloutFailed as error:
            raise HTTPException(502, str(error)) from error

    return app


def _cause(error: Exception) -> str:
    """Return the error that the user's code raised, which Ray wraps in an error of its own class."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {cause}"
