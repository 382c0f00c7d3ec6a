"""Put numbers before nouns, in messages."""

from __future__ import annotations


def counted(number: float, what: str, form: str = "") -> str:
    """Return a number with its noun: ``1 report``, ``3 reports``. `form` is the format of the number, as in ``{:,}``."""
    shown = format(number, form)
    return f"{shown} {what}" if shown == "1" else f"{shown} {what}s"
