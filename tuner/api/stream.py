"""Server-sent events: the log of an experiment, followed by any number of clients and read once for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

from tuner.api.schemas import rfc3339, stream_data
from tuner.errors import Retryable, StoreError
from tuner.store import ExperimentRecord, Progress, Store, StreamItem

log = logging.getLogger(__name__)

POLL_S = 0.04
POLL_CLIENT_S = 0.0004  # a client more makes polls that much rarer: each of them is written to after a poll
POLL_QUIET_S = 0.08  # when nothing has come for QUIET_S, and at most
QUIET_S = 5.0
POLL_ENDED_S = 1.0  # nothing comes any more, but closing would only make browsers connect again
RETRY_S = 1.0
COMMENT_S = 15.0
BATCH = 500
KEPT = 2000  # of the newest messages of an experiment, for clients that are up to date


class Channel:
    """One experiment that somebody follows: how far its log has got, and the newest messages. Belongs to the event loop."""

    def __init__(self, record: ExperimentRecord) -> None:
        self.id, self.public_id = record.id, record.public_id
        self.progress: Progress | None = None
        self.ended = False  # nothing more is told of it
        self.clients = 0
        self.changed = asyncio.Event()  # replaced whenever it is set
        self._messages: deque[bytes] = deque(maxlen=KEPT)  # the last one has the number progress.last_event_seq

    def take(self, progress: Progress, messages: list[bytes] | None) -> bool:
        """Bring it up to date; `messages` are all that were added, or None if they were not read. True if anything is new."""
        if progress == self.progress:
            return False
        if messages is None:
            self._messages.clear()
        else:
            self._messages.extend(messages)
        self.progress = progress
        self.wake()
        return True

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def behind(self, seq: int) -> tuple[bytes, int] | None:
        """(messages behind this entry, number of the last of them), or None if they are not kept."""
        assert self.progress is not None
        first = self.progress.last_event_seq - len(self._messages) + 1
        if seq + 1 < first:
            return None
        return b"".join(islice(self._messages, seq + 1 - first, None)), self.progress.last_event_seq


class Tail:
    """Reads what is new in the experiments that somebody follows, for all clients at once, while there is a client."""

    def __init__(self, store: Store, ending: threading.Event) -> None:
        self._store = store
        self._ending = ending
        self._channels: dict[int, Channel] = {}
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._news_at = 0.0

    @contextlib.contextmanager
    def follow(self, record: ExperimentRecord) -> Any:
        """The channel of an experiment, kept up to date within."""
        if self._task is None or self._task.done() or self._task.get_loop() is not asyncio.get_running_loop():
            self._channels.clear()
            self._wanted = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run())
        channel = self._channels.setdefault(record.id, Channel(record))
        channel.clients += 1
        self._wanted.set()
        try:
            yield channel
        finally:
            channel.clients -= 1
            if not channel.clients and self._channels.get(record.id) is channel:
                del self._channels[record.id]

    async def _run(self) -> None:
        try:
            while self._channels and not self._ending.is_set():
                self._wanted.clear()
                try:
                    news = await asyncio.to_thread(self._read, list(self._channels.values()))
                except StoreError as error:
                    if not isinstance(error, Retryable):
                        raise
                    await asyncio.sleep(RETRY_S)  # the database is away for a moment; clients need not know
                    continue
                for channel, progress, messages in news:
                    if progress is None:
                        channel.ended = True
                        channel.wake()
                    elif channel.take(progress, messages):
                        self._news_at = time.monotonic()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), self._interval())
        except Exception:
            log.exception("event streams end: the log cannot be read")
        finally:
            for channel in self._channels.values():
                channel.ended = True
                channel.wake()
            self._channels.clear()

    def _interval(self) -> float:
        channels = self._channels.values()
        if all(channel.progress is not None and channel.progress.state.ended for channel in channels):
            return POLL_ENDED_S
        if time.monotonic() - self._news_at > QUIET_S:
            return POLL_QUIET_S
        return min(POLL_S + POLL_CLIENT_S * sum(channel.clients for channel in channels), POLL_QUIET_S)

    def _read(self, channels: list[Channel]) -> list[tuple[Channel, Progress | None, list[bytes] | None]]:
        """(channel, how far its experiment has got or None if it is gone, what was added or None if that was not read)."""
        progress = self._store.experiments.progress_of([channel.id for channel in channels])
        return [(channel, new := progress.get(channel.id), self._added(channel, new)) for channel in channels]

    def _added(self, channel: Channel, new: Progress | None) -> list[bytes] | None:
        old = channel.progress
        if old is None or new is None or new.last_event_seq - old.last_event_seq > KEPT:
            return None
        count = new.last_event_seq - old.last_event_seq
        if not count:
            return []
        items = self._store.log.events_after(channel.id, old.last_event_seq, count)
        return [_encoded(channel.public_id, item) for item in items] if len(items) == count else None


async def follow(
    store: Store, tail: Tail, record: ExperimentRecord, after: int, ending: threading.Event
) -> AsyncIterator[bytes]:
    """Yield the log behind `after` and then whatever is added to it, until the client goes away or `ending` is set.

    A change of the experiment's state comes as `experiment`, after the entries that led to it; it has the id of the last
    of these, so that a reconnect neither repeats nor misses an entry.
    """
    yield b"retry: 2000\n\n"
    state: str | None = None
    quiet_since = time.monotonic()
    with tail.follow(record) as channel:
        while not (ending.is_set() or channel.ended):
            changed, progress = channel.changed, channel.progress
            if progress is not None:
                while after < channel.progress.last_event_seq and not ending.is_set():
                    kept = channel.behind(after)
                    if kept is None:
                        kept = await _stored(store, record, after, channel.progress.last_event_seq)
                    messages, after = kept
                    yield messages
                    quiet_since = time.monotonic()
                progress = channel.progress
                if progress.state != state:
                    state = progress.state
                    yield _state_message(max(after, progress.last_event_seq), progress)
                    quiet_since = time.monotonic()
            if not changed.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), max(quiet_since + COMMENT_S - time.monotonic(), 0.01))
            if time.monotonic() - quiet_since >= COMMENT_S:
                yield b": still here\n\n"
                quiet_since = time.monotonic()


async def _stored(store: Store, record: ExperimentRecord, after: int, last: int) -> tuple[bytes, int]:
    """(the next messages behind `after` out of the database, number of the last of them)."""
    upto = min(after + BATCH, last)
    while True:
        try:
            items = await asyncio.to_thread(store.log.events_after, record.id, after, upto - after)
        except StoreError as error:
            if not isinstance(error, Retryable):
                raise
            await asyncio.sleep(RETRY_S)
        else:
            return b"".join(_encoded(record.public_id, item) for item in items), upto


def _encoded(experiment: str, item: StreamItem) -> bytes:
    return _message(item.seq, item.event, stream_data(experiment, item))


def _state_message(seq: int, progress: Progress) -> bytes:
    data = {"seq": progress.last_event_seq, "time": rfc3339(time.time()), "kind": "experiment", "state": progress.state}
    return _message(seq, "experiment", {**data, "reason": progress.reason, "error": progress.error})


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
