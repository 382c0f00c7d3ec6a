"""Serve the web UI: the files of the built bundle, and index.html for every path that the UI shows."""

from __future__ import annotations

import base64
import functools
import hashlib
import mimetypes
import re
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.exceptions import HTTPException

import tuner
from tuner.api.problems import allowed_methods

OWN = frozenset({"", "experiments", "trials", "compare", "new", "cluster", "settings"})
"""The first segments of the paths that the web UI shows."""

RESERVED = frozenset({"api", "assets", "auth", "docs", "healthz", "metrics", "openapi.json", "readyz", "redoc"})
"""The first segments of paths that programs use. A wrong path below one of them gets an error in JSON, never the web UI."""

BUNDLE = Path(tuner.__file__).parent / "_web"
HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin"}
# The file names contain a hash of the content.
FOREVER = {
    **HEADERS,
    "Cache-Control": "public, max-age=31536000, immutable",
}
ALWAYS_ASK = {**HEADERS, "Cache-Control": "no-cache"}

POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of the web UI. Mantine puts its variables into <style> elements, so inline styles are allowed."""

MISSING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>tuner</title>
<style>body{font:16px/1.5 system-ui;max-width:40em;margin:4em auto;padding:0 1em}</style>
<h1>The web UI has not been built</h1>
<p>The service works, but its web UI is missing from this installation. In a source tree, <code>make web</code> builds it.</p>
<p>Meanwhile: <a href="/api/v1/experiments">the experiments as JSON</a>, <a href="/openapi.json">the OpenAPI document</a>.</p>
"""


def router(web: Path | None) -> APIRouter:
    """Return the routes that serve the web UI from the folder `web`, by default from the bundle in the package.

    The bundle need not exist yet when the service starts.
    """
    bundle = (web or BUNDLE).resolve()
    routes = APIRouter()

    @routes.get("/{path:path}", include_in_schema=False)
    def page(request: Request, path: str) -> Response:
        if methods := allowed_methods(request):
            raise HTTPException(405, "Method Not Allowed", {"Allow": methods})
        index, first = bundle / "index.html", path.partition("/")[0]
        if not index.is_file() and first in RESERVED:
            raise HTTPException(404, f"there is no /{path}")
        if not index.is_file():
            return _html(MISSING, 200 if not path else 404)
        if (file := _found(bundle, path)) == index:
            return _index(index, path)
        if file is not None:
            return _file(request, file, FOREVER if path.startswith("assets/") else ALWAYS_ASK)
        if first in OWN and "." not in path.rpartition("/")[2]:
            return _index(index, path)
        if first in RESERVED or "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404, f"there is no /{path}")
        return _index(index, path, 404)  # the web UI shows that there is no such page

    return routes


def _found(bundle: Path, path: str) -> Path | None:
    """Return the file of the bundle at this path, or None if there is none."""
    try:
        file = (bundle / path).resolve()
        return file if file.is_relative_to(bundle) and file.is_file() else None
    except (OSError, ValueError):  # no file can have this name: it is too long, or has a null character
        return None


def _index(index: Path, path: str, status: int = 200) -> Response:
    """Return index.html with links to its files that are relative to this path, so that it works behind any path prefix."""
    up = "../" * path.count("/")
    return _html(index.read_text(encoding="utf-8").replace('="./', f'="./{up}'), status)


def _html(text: str, status: int) -> Response:
    return HTMLResponse(text, status, {**ALWAYS_ASK, "Content-Security-Policy": _policy(text)})


@functools.lru_cache(maxsize=32)
def _policy(html: str) -> str:
    """Return a policy that allows scripts of this service only, and the inline scripts of this page by their hashes."""
    inline = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in inline)
    return POLICY.format(scripts=" ".join(["'self'", *(f"'sha256-{digest}'" for digest in hashes)]))


def _file(request: Request, file: Path, headers: dict[str, str], status: int = 200) -> Response:
    """Return a file of the bundle, compressed if there is a compressed copy and the client accepts gzip."""
    packed = file.with_name(f"{file.name}.gz")
    if not packed.is_file():
        return FileResponse(file, status, headers=headers)
    headers = {**headers, "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return FileResponse(file, status, headers=headers)
    kind = mimetypes.guess_type(file.name)[0]
    return FileResponse(packed, status, headers={**headers, "Content-Encoding": "gzip"}, media_type=kind)
