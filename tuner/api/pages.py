"""The page: the built bundle, and index.html for every address that the page itself knows."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.exceptions import HTTPException

import tuner

BUNDLE = Path(tuner.__file__).parent / "_web"
HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin"}
FOREVER = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}  # their names have a hash of the content
ALWAYS_ASK = {**HEADERS, "Cache-Control": "no-cache"}

MISSING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>tuner</title>
<style>body{font:16px/1.5 system-ui;max-width:40em;margin:4em auto;padding:0 1em}</style>
<h1>The page is not built</h1>
<p>The service works; its web page is missing from this installation. In a source tree, <code>make web</code> builds it.</p>
<p>Meanwhile: <a href="/api/v1/experiments">the experiments as JSON</a>, <a href="/openapi.json">the OpenAPI document</a>.</p>
"""


def router(web: Path | None) -> APIRouter:
    """Serves `web`, by default the bundle in the package. A bundle that is built later is found."""
    bundle = (web or BUNDLE).resolve()
    routes = APIRouter()

    @routes.get("/{path:path}", include_in_schema=False)
    def page(path: str) -> Response:
        if path.partition("/")[0] in ("api", "healthz", "readyz", "openapi.json"):
            raise HTTPException(404, f"there is no /{path}")
        index = bundle / "index.html"
        if not index.is_file():
            return HTMLResponse(MISSING, 200 if not path else 404, ALWAYS_ASK)
        if "\0" not in path:
            file = (bundle / path).resolve()
            if file.is_relative_to(bundle) and file.is_file():
                return FileResponse(file, headers=FOREVER if path.startswith("assets/") else ALWAYS_ASK)
        if "." in path.rpartition("/")[2]:
            raise HTTPException(404, f"there is no /{path}")
        return FileResponse(index, headers=ALWAYS_ASK)

    return routes
