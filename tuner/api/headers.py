"""Read headers in the form of ASGI, in which their names are in lower case. Starlette's `Headers` takes several times as long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def header(message: Mapping[str, Any], name: bytes) -> str | None:
    """Return the first header with this name, or None if there is none.

    message: the scope of a request, or the message that starts a response.
    """
    for key, value in message.get("headers", ()):
        if key == name:
            return value.decode("latin-1")  # type: ignore[no-any-return]
    return None
