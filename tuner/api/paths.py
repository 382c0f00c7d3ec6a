"""The path of a request, as the routes see it."""

from __future__ import annotations

from starlette.types import Scope


def path_of(scope: Scope) -> str:
    """Return the path that routes are looked up by: without the prefix under which the app is mounted or served."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path
