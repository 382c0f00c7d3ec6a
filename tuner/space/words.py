"""How errors about a space are worded."""

from __future__ import annotations

from typing import Any


def show(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def escape(key: Any) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def join(path: str, key: str) -> str:
    return f"{path}/{escape(key)}" if path else escape(key)
