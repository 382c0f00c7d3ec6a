"""How errors about a space are worded."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def show(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def escape(key: Any) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def join(path: str, key: str) -> str:
    return f"{path}/{escape(key)}" if path else escape(key)
