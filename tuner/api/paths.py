"""Paths of requests: remove the prefix, keep encoded slashes, and suggest the path that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from starlette.types import Scope

from tuner.names import nearest

PREFIX = "/api/v1"
_SLASH = re.compile("%2f", re.IGNORECASE)


def path_of(scope: Scope) -> str:
    """Return the path of a request, as in the routes: without the prefix under which the app is mounted or served."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def keep_slashes(scope: Scope) -> None:
    """Undo the decoding of slashes in the path of a request to the API, so that ``experiments/a%2Fb`` is one name to all routes.

    Servers decode the whole path, after which such a slash cannot be told from one that separates two parts.
    """
    raw = bytes(scope.get("raw_path") or b"")
    if b"%2f" in raw.lower() and unquote(raw.decode("latin-1")) == scope["path"] and PREFIX in scope["path"]:
        scope["path"] = unquote(_SLASH.sub("%252F", raw.decode("latin-1")))


def with_slashes(part: str) -> str:
    """Return a part of a path with the slashes that `keep_slashes` has left encoded."""
    return part.replace("%2F", "/")


def meant_path(path: str, templates: Iterable[str]) -> str | None:
    """Return the path that was most likely meant, or None if no route has a similar path.

    A path is recognized if one of its segments is misspelled, or if the prefix of the API is missing.
    """
    known = [template.split("/") for template in templates]
    for candidate in (path, f"{PREFIX}{path}"):
        parts = candidate.split("/")
        wrong: dict[int, list[str]] = {}
        for template in known:
            if len(template) != len(parts):
                continue
            differ = [at for at, part in enumerate(template) if part != parts[at] and not part.startswith("{")]
            if not differ and candidate != path:
                return candidate
            if len(differ) == 1:
                wrong.setdefault(differ[0], []).append(template[differ[0]])
        for at, words in wrong.items():
            if (word := nearest(parts[at], words)) is not None:
                return "/".join([*parts[:at], word, *parts[at + 1 :]])
    return None
