"""A process-wide setting, as `python_state` and `torch_state` read and restore it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
"""A function that reads a setting, and one that changes it."""


def attribute(owner: Any, name: str) -> Setting:
    """Return the setting that is an attribute of a module or another object."""
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)
