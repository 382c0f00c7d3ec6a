"""Get the path of a request without the service's prefix, and suggest the likely path for one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Scope

from tuner.names import nearest

PREFIX = "/api/v1"


def path_of(scope: Scope) -> str:
    """Return the path of a request, as in the routes: without the prefix under which the app is mounted or served."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


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
