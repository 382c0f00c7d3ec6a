"""Show values and paths in error messages."""

from __future__ import annotations

from typing import Any


def show(value: Any) -> str:
    """Return the type and the shortened value, as in ``str 'adam'``."""
    if value is None:
        return "nothing"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def escape(key: Any) -> str:
    """Return a key as a part of a JSON pointer (RFC 6901)."""
    return str(key).replace("~", "~0").replace("/", "~1")


def unescape(part: str) -> str:
    """Return the key that a part of a JSON pointer stands for."""
    return part.replace("~1", "/").replace("~0", "~")


def join(path: str, key: str) -> str:
    """Return the path of `key` below `path`."""
    return f"{path}/{escape(key)}" if path else escape(key)
