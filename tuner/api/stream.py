"""Server-sent events: the event table, tailed."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

from tuner.api.schemas import rfc3339, stream_data
from tuner.errors import Retryable, StoreError
from tuner.store import ExperimentRecord, Store

POLL_S = 0.25
POLL_ENDED_S = 2.0  # nothing comes any more, but closing would only make the browser connect again
COMMENT_S = 15.0
BATCH = 500


async def follow(store: Store, record: ExperimentRecord, after: int, ending: threading.Event) -> AsyncIterator[bytes]:
    """The log behind `after` and then whatever is added to it, until the client goes away or `ending` is set.

    A change of the experiment's state comes as `experiment`, after the entries that led to it; it has the id of the last
    of these, so that a reconnect neither repeats nor misses an entry.
    """
    yield b"retry: 2000\n\n"
    state: str | None = None
    quiet_since = time.monotonic()
    while not ending.is_set():
        try:
            progress = await asyncio.to_thread(store.progress, record.id)
            while after < progress.last_event_seq:
                items = await asyncio.to_thread(store.events_after, record.id, after, BATCH)
                after = min(after + BATCH, progress.last_event_seq)
                if shown := [item for item in items if item.seq <= after]:
                    yield b"".join(_message(i.seq, i.event, stream_data(record.public_id, i)) for i in shown)
                    quiet_since = time.monotonic()
        except StoreError as error:
            if not isinstance(error, Retryable):
                raise
            await asyncio.sleep(1.0)  # the database is away for a moment; the client need not know
            continue
        if progress.state != state:
            state = progress.state
            data = {"seq": progress.last_event_seq, "time": rfc3339(time.time()), "kind": "experiment", "state": state}
            data |= {"reason": progress.reason, "error": progress.error}
            yield _message(max(after, progress.last_event_seq), "experiment", data)
            quiet_since = time.monotonic()
        if time.monotonic() - quiet_since >= COMMENT_S:
            yield b": still here\n\n"
            quiet_since = time.monotonic()
        await asyncio.sleep(POLL_ENDED_S if progress.state.ended else POLL_S)


def _message(seq: int, event: str, data: dict[str, Any]) -> bytes:
    return f"id: {seq}\nevent: {event}\ndata: {json.dumps(plain(data), separators=(',', ':'))}\n\n".encode()


def plain(value: Any) -> Any:
    """NaN and infinities as null: JSON has none."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return value
