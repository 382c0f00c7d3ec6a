"""/bundles: code that experiments run, uploaded as zip files."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import tempfile
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from tuner.api import schemas
from tuner.api.answers import BAD, CONFLICT, NOT_FOUND, Route, answer
from tuner.api.context import Here
from tuner.api.problems import problem_response
from tuner.errors import SpecError
from tuner.experiment.code.bundles import SHA256

log = logging.getLogger(__name__)

router = APIRouter(route_class=Route, tags=["bundles"])

IN_MEMORY = 4 << 20
"""Uploads larger than this many bytes are kept in a temporary file, and not in memory."""

Sha256 = Annotated[str, Path(description="SHA-256 of the zip file, in hex digits", examples=["3a7bd3e2" + "0" * 56])]
ZIP = {
    "requestBody": {
        "required": True,
        "content": {
            "application/zip": {"schema": {"type": "string", "format": "binary"}, "example": "the bytes of the file"}
        },
    }
}


@router.get(
    "/bundles/{sha256}",
    response_model=schemas.Bundle,
    responses={**NOT_FOUND, **BAD},
    summary="Check whether a code bundle has been uploaded.",
)
def get(here: Here, sha256: Sha256) -> Response:
    return answer(schemas.Bundle.of(here.bundles.get(_name(sha256))))


@router.put(
    "/bundles/{sha256}",
    response_model=schemas.Bundle,
    responses={**CONFLICT, **BAD},
    openapi_extra=ZIP,
    summary="Upload a zip file with Python code. A spec can then name it as its bundle. Safe to repeat.",
)
async def put(here: Here, request: Request, sha256: Sha256) -> Response:
    name, content = _name(sha256), hashlib.sha256()
    try:
        with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as file:
            async for part in request.stream():
                content.update(part)
                await asyncio.to_thread(file.write, part)
            if content.hexdigest() != name:
                raise SpecError(
                    f"the SHA-256 of the body is {content.hexdigest()}, but the path names another hash", "/sha256"
                )
            return answer(schemas.Bundle.of(await here.off_the_pool(here.bundles.put, name, file)))
    except OSError as error:  # the disk is full, or the storage refuses the file or does not answer
        log.warning("the bundle %s could not be stored: %s", name, error)
        return problem_response(507, f"the service could not store the bundle: {error}")


def _name(sha256: str) -> str:
    if not SHA256.fullmatch(sha256):
        raise SpecError(f"expected 64 hex digits in lower case, got {sha256[:80]!r}", "/sha256")
    return sha256
