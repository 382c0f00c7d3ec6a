"""Format the logs of the service and the driver host as text or JSON lines.

`about` adds ids, such as those of the request and the experiment, to all lines of the current request or task. Before a
line is written, everything in it that looks like a token is replaced.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal

LogFormat = Literal["text", "json"]
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SECRET = re.compile(r"\b(tn[rs]|whsec)_[A-Za-z0-9_-]{16,}")
HIDDEN = r"\1_***"
PLAIN = logging.makeLogRecord({}).__dict__.keys() | {"message", "asctime", "color_message"}
"""The attributes that every log record has. All other attributes come from the argument `extra` of the logging call."""

_about: ContextVar[Mapping[str, str]] = ContextVar("about", default=MappingProxyType({}))


@contextmanager
def about(**ids: str | None) -> Iterator[None]:
    """Add ids, such as ``request_id`` and ``experiment``, to all log lines within this block. Skip ids that are None."""
    token = _about.set({**_about.get(), **{name: value for name, value in ids.items() if value is not None}})
    try:
        yield
    finally:
        _about.reset(token)


def ids() -> Mapping[str, str]:
    """Return the ids that `about` has set for the current request or task."""
    return _about.get()


def request_id() -> str | None:
    """Return the id of the request that is being answered, or None outside a request."""
    return _about.get().get("request_id")


def without_secrets(text: str) -> str:
    """Replace the tokens in a text, and the secrets of sessions and webhooks, with a placeholder."""
    return SECRET.sub(HIDDEN, text)


class TextFormatter(logging.Formatter):
    """Formats a log record as a line of text that ends with the ids of `about`."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback if there is one."""
        ids = "".join(f" {name}={value}" for name, value in _about.get().items())
        first, line, rest = super().format(record).partition("\n")
        return without_secrets(f"{first}{ids}{line}{rest}")


class JsonFormatter(logging.Formatter):
    """Formats a log record as a JSON object: time, level, logger, message, ids, fields of `extra`, and a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object as one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_about.get(),
            **{name: value for name, value in record.__dict__.items() if name not in PLAIN},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return without_secrets(json.dumps(line, default=str))


def configure(level: str, kind: LogFormat) -> None:
    """Write all logs of this process to stderr in this format, including those of uvicorn."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
