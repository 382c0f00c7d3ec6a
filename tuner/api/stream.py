"""Stream experiments as server-sent events.

Any number of clients may follow an experiment. Its news is read from the database only once for all of them.

A stream has one of two forms. `Events` sends the log itself, one message per entry. `ChangedRows` sends the rows that have
changed, as the API shows them, in one message for everything that was committed between two polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from tuner.api import schemas
from tuner.api.access.permission import Permission
from tuner.domain.json_values import plain
from tuner.domain.timestamps import rfc3339
from tuner.errors import NotFound, Retryable, StoreError
from tuner.experiment.operations.verbs import can_take_trials
from tuner.store import Bookmark, ExperimentRecord, Progress, Store, StreamItem

log = logging.getLogger(__name__)

T = TypeVar("T")
Message = tuple[int, bytes]
"""A message to clients: (event_seq of the last log entry that the message covers, bytes of the message)."""

BEFORE_ALL = -1
"""The place of a client of `ChangedRows` that has to read everything again."""

POLL_S = 0.04
# The poll interval grows by this for each client, because every poll with news is followed by a write to each client.
POLL_CLIENT_S = 0.0004
POLL_QUIET_S = 0.08  # the poll interval after QUIET_S seconds without news; also the maximum interval
QUIET_S = 5.0
# Ended experiments have no more news, but their streams stay open, because browsers would reconnect.
POLL_ENDED_S = 1.0
RETRY_S = 1.0
COMMENT_S = 15.0
BATCH = 200  # log entries that are sent at once to a client that lags far behind
SENT_BYTES = 16 * 1024  # about how many bytes of kept messages are sent at once to a client that lags behind
# The maximum number of clients that catch up at the same time; more would delay the clients that have missed nothing.
CATCHING_UP = 2
KEPT = 2000  # messages about this many of the newest log entries, and at most this many messages, are kept in memory


class Added(NamedTuple):
    """The changes of an experiment since the last poll."""

    messages: list[Message] | None
    """The messages for clients that have received everything before them; None if there are too many changes for messages."""
    delivered: Callable[[], None]
    """A function to call once the messages have been passed on. Until it is called, each poll returns the same messages."""


class Form(ABC):
    """Makes the messages of one experiment's stream. Each form of stream has a subclass. The methods read the database.

    `begin` and `added` are called by the one thread that reads for all clients. `missed` and `greeting` are called for
    individual clients, in other threads.
    """

    name: str

    def __init__(self, store: Store, record: ExperimentRecord) -> None:
        self.store, self.record = store, record

    @abstractmethod
    def begin(self, progress: Progress) -> int:
        """Return the event_seq of the newest log entry. The first call of `added` reads the entries after it."""

    @abstractmethod
    def added(self, after: int, progress: Progress) -> Added:
        """Return the news since the event_seq `after`, up to `progress`.

        This must not change any state, because it is called again with the same `after` if the result gets lost.
        """

    @abstractmethod
    def missed(self, after: int, upto: int) -> Message:
        """Return the next message for a client that lags behind, and has only the entries up to the event_seq `after`.

        The message may end before the entry `upto`. In this case, call `missed` again.
        """

    @abstractmethod
    def greeting(self, seq: int, progress: Progress) -> bytes:
        """Return the message that tells a new client the current state, once it has all entries up to the event_seq `seq`."""


class Events(Form):
    """Sends the log of an experiment, one message per entry.

    A new state of the experiment is sent as an event named `experiment`, after the entries that led to the change. The event
    has the id of the last of these entries, so that a client that reconnects neither repeats nor misses an entry.
    """

    name = "events"

    def __init__(self, store: Store, record: ExperimentRecord) -> None:
        super().__init__(store, record)
        self._state: str | None = None

    def begin(self, progress: Progress) -> int:
        self._state = progress.state
        return progress.last_event_seq

    def added(self, after: int, progress: Progress) -> Added:
        def delivered() -> None:
            self._state = progress.state

        count = progress.last_event_seq - after
        items = self.store.log.events_after(self.record.id, after, count) if 0 < count <= KEPT else []
        if len(items) != count:
            return Added(None, delivered)
        messages = [(item.seq, _encoded(self.record.public_id, item)) for item in items]
        if progress.state != self._state:
            messages.append((progress.last_event_seq, self.greeting(progress.last_event_seq, progress)))
        return Added(messages, delivered)

    def missed(self, after: int, upto: int) -> Message:
        upto = min(after + BATCH, upto)
        items = self.store.log.events_after(self.record.id, after, upto - after)
        return upto, b"".join(_encoded(self.record.public_id, item) for item in items)

    def greeting(self, seq: int, progress: Progress) -> bytes:
        data = {"seq": progress.last_event_seq, "time": rfc3339(time.time()), "kind": "experiment"}
        data |= {"state": progress.state, "reason": progress.reason, "error": progress.error}
        return _message(seq, "experiment", json.dumps(plain(data), separators=(",", ":")))


class ChangedRows(Form):
    """Sends changed rows as `schemas.Changes`. A client that lags far behind is told to read everything again."""

    name = "changes"

    def __init__(self, store: Store, record: ExperimentRecord) -> None:
        super().__init__(store, record)
        self._bookmark = Bookmark(seq=0)
        self._row: schemas.Experiment | None = None
        self._takes_trials = can_take_trials(record)  # on which the actions of all trials depend

    def begin(self, progress: Progress) -> int:
        self._bookmark = self.store.changes.bookmark(self.record.id)
        return self._bookmark.seq

    def added(self, after: int, progress: Progress) -> Added:
        upto = progress.last_event_seq
        if upto - after > KEPT:
            bookmark = self.store.changes.bookmark(self.record.id)
            return self._reset(bookmark.seq, bookmark, self._takes_trials)
        found = self.store.changes.since(self.record.id, self._bookmark, upto)
        takes_trials = can_take_trials(found.experiment)
        if found.restarted or takes_trials != self._takes_trials:
            return self._reset(upto, found.bookmark, takes_trials)
        row = schemas.Experiment.of(found.experiment, list(found.metrics))
        changed = self._row is None or row != self._row.model_copy(update={"last_event_seq": row.last_event_seq})

        def delivered() -> None:
            self._bookmark, self._row = found.bookmark, row

        return Added([(upto, self._encode(schemas.Changes.of(found, row if changed else None)))], delivered)

    def _reset(self, seq: int, bookmark: Bookmark, takes_trials: bool) -> Added:
        """Return a message that tells clients to read everything again."""

        def delivered() -> None:
            self._bookmark, self._takes_trials = bookmark, takes_trials

        return Added([(seq, self._encode(schemas.Changes.bare(seq, reset=True)))], delivered)

    def missed(self, after: int, upto: int) -> Message:
        if after == BEFORE_ALL or upto - after > KEPT:
            return upto, self._encode(schemas.Changes.bare(upto, reset=True))
        found = self.store.changes.since(self.record.id, Bookmark(seq=after), upto)
        if found.restarted or found.experiment.state.ended or not can_take_trials(found.experiment):
            return upto, self._encode(schemas.Changes.bare(upto, reset=True))
        row = schemas.Experiment.of(found.experiment, list(found.metrics))
        return upto, self._encode(schemas.Changes.of(found, row))

    def greeting(self, seq: int, progress: Progress) -> bytes:
        record = self.store.experiments.by_id(self.record.id)
        row = schemas.Experiment.of(record, self.store.metrics.names(self.record.id))
        return self._encode(schemas.Changes.bare(seq, row))

    def _encode(self, changes: schemas.Changes) -> bytes:
        return _message(changes.seq, "changes", changes.model_dump_json())


class Channel:
    """The stream of one experiment in one form, shared by its clients. It keeps the newest messages.

    Use it in the event loop only.
    """

    def __init__(self, form: Form) -> None:
        self.form = form
        self.progress: Progress | None = None
        self.ended = False  # True once no more messages will be sent
        self.clients = 0
        self.changed = asyncio.Event()  # each time it is set, a new Event takes its place
        self.seq = 0  # the messages so far cover the log up to this event_seq
        self.end = 0  # number of messages so far, including those that are no longer kept
        self._messages: deque[Message] = deque()
        self._since = 0  # the kept messages cover the log after this event_seq
        self._reads: dict[tuple[int, int], asyncio.Task[Message]] = {}

    async def missed(self, after: int, limit: asyncio.Semaphore) -> Message:
        """Read the next message for a client that lags behind. Clients that wait for the same message share one read."""
        wanted = after, self.seq
        read = self._reads.get(wanted)
        if read is None:
            read = self._reads[wanted] = asyncio.create_task(self._read_missed(*wanted, limit))
            read.add_done_callback(partial(self._have_read, wanted))
        return await asyncio.shield(read)

    def _have_read(self, wanted: tuple[int, int], read: asyncio.Task[Message]) -> None:
        del self._reads[wanted]
        if not read.cancelled():
            read.exception()  # otherwise asyncio logs the error if all clients that waited have disconnected

    async def _read_missed(self, after: int, upto: int, limit: asyncio.Semaphore) -> Message:
        async with limit:
            return await _read(partial(self.form.missed, after, upto))

    def begin(self, progress: Progress, seq: int) -> None:
        self.progress, self.seq, self._since = progress, seq, seq
        self.wake()

    def take(self, progress: Progress, messages: list[Message] | None) -> None:
        """Add messages that cover the log up to `progress`. If `messages` is None, there was too much news to make messages."""
        self.progress = progress
        if messages is None:
            self._messages.clear()
            self.end += 1  # counts the missing messages, so that clients notice that they have to catch up
            self.seq = self._since = progress.last_event_seq
        else:
            self._messages.extend(messages)
            self.end += len(messages)
            self.seq = messages[-1][0] if messages else self.seq
            # Changes by users have messages without new log entries.
            while (self.seq - self._since > KEPT or len(self._messages) > KEPT) and len(self._messages) > 1:
                self._since = self._messages.popleft()[0]
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def position(self, seq: int) -> int | None:
        """Return the number of messages that a client does not need, because it knows the log up to the event_seq `seq`.

        This number is the client's position. Return None if the next message that the client needs is no longer kept.
        """
        if seq < self._since:
            return None
        newer = 0
        for last, _ in reversed(self._messages):
            if last <= seq:
                break
            newer += 1
        return self.end - newer

    def behind(self, position: int) -> tuple[int, int, bytes] | None:
        """Return the next messages for a client at this position: (position after them, event_seq of the last one, bytes).

        These are not many more than SENT_BYTES, because the server keeps what it is sending until the client has read it.
        Return None if some of these messages are no longer kept.
        """
        begin = len(self._messages) - (self.end - position)
        if begin < 0:
            return None
        sent: list[Message] = []
        size = 0
        for message in itertools.islice(self._messages, begin, None):
            sent.append(message)
            size += len(message[1])
            if size >= SENT_BYTES:
                break
        position += len(sent)
        seq = self.seq if position == self.end else sent[-1][0]
        return position, seq, b"".join(content for _, content in sent)


class _Poll(NamedTuple):
    """The result of one poll of the database."""

    tell: list[Callable[[], None]]
    """Functions that pass the news on to the channels. They must be called in the event loop."""
    failed: bool
    """True if the database did not answer for some channels."""


class Tail:
    """Reads the news of all experiments that clients follow, once for all clients. It polls only while there are clients."""

    def __init__(self, store: Store, ending: threading.Event) -> None:
        self._store = store
        self._ending = ending
        self._channels: dict[tuple[int, str], Channel] = {}
        self._wanted = asyncio.Event()
        self.catching_up = asyncio.Semaphore(CATCHING_UP)
        self._task: asyncio.Task[None] | None = None
        self._news_at = 0.0

    @contextlib.contextmanager
    def follow(self, form: Form) -> Iterator[Channel]:
        """Yield the channel of this experiment and form. The channel is kept up to date while the context is open."""
        if self._task is None or self._task.done() or self._task.get_loop() is not asyncio.get_running_loop():
            self._channels.clear()
            self._wanted = asyncio.Event()
            self.catching_up = asyncio.Semaphore(CATCHING_UP)
            self._task = asyncio.get_running_loop().create_task(self._run())
        key = (form.record.id, form.name)
        channel = self._channels.setdefault(key, Channel(form))
        channel.clients += 1
        self._wanted.set()
        try:
            yield channel
        finally:
            channel.clients -= 1
            if not channel.clients and self._channels.get(key) is channel:
                del self._channels[key]

    async def _run(self) -> None:
        try:
            while self._channels and not self._ending.is_set():
                self._wanted.clear()
                try:
                    news = await asyncio.to_thread(self._read, list(self._channels.values()))
                except StoreError as error:
                    if not isinstance(error, Retryable):
                        raise
                    # the database is unreachable for a moment; the streams stay open
                    await asyncio.sleep(RETRY_S)
                    continue
                for tell in news.tell:
                    tell()
                if news.tell:
                    self._news_at = time.monotonic()
                if news.failed:
                    await asyncio.sleep(RETRY_S)
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval()):
                        await self._wanted.wait()
        except Exception:
            log.exception("closing event streams, because the log cannot be read")
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

    def _read(self, channels: list[Channel]) -> _Poll:
        """Read the news of these channels. If a channel cannot be read, continue with the other channels."""
        found = self._store.experiments.progress_of([channel.form.record.id for channel in channels])
        tells: list[Callable[[], None]] = []
        failed = False
        for channel in channels:
            try:
                tell = self._news(channel, found.get(channel.form.record.id))
            except Exception as error:
                if isinstance(error, StoreError) and isinstance(error, Retryable):
                    failed = True
                    continue
                log.exception("closing an event stream, because %s cannot be read", channel.form.record.public_id)
                tell = partial(_end, channel)
            if tell is not None:
                tells.append(tell)
        return _Poll(tells, failed)

    def _news(self, channel: Channel, new: Progress | None) -> Callable[[], None] | None:
        if new is None:
            return lambda: _end(channel)
        if new == channel.progress:
            return None
        try:
            if channel.progress is None:
                seq = channel.form.begin(new)
                return lambda: channel.begin(new, seq)
            added = channel.form.added(channel.seq, new)
        except NotFound:
            return lambda: _end(channel)

        def tell() -> None:
            added.delivered()
            channel.take(new, added.messages)

        return tell


def _end(channel: Channel) -> None:
    channel.ended = True
    channel.wake()


async def follow(
    tail: Tail, form: Form, after: int, ending: threading.Event, permission: Permission
) -> AsyncIterator[bytes]:
    """Yield the messages after the event_seq `after` for one client, and then new messages as they are made.

    The stream ends when the client disconnects, when `ending` is set, or when the client is no longer allowed to read.
    """
    yield b"retry: 2000\n\n"
    quiet_since = time.monotonic()
    greeted = False
    with tail.follow(form) as channel, contextlib.suppress(NotFound):  # the experiment has been deleted
        position: int | None = None
        while not (ending.is_set() or channel.ended):
            changed = channel.changed
            while channel.progress is not None:
                if position is None and (position := channel.position(after)) is None:
                    if ending.is_set():
                        return
                    after, sent = await channel.missed(after, tail.catching_up)
                elif position < channel.end:
                    kept = channel.behind(position)
                    if kept is None:
                        position, greeted = None, False  # one of the messages may have told of a new state
                        continue
                    position, seq, sent = kept
                    after = max(after, seq)
                elif not greeted:
                    greeted = True
                    sent = await _read(partial(channel.form.greeting, max(after, channel.seq), channel.progress))
                else:
                    break
                if not await permission.holds():
                    return
                yield sent
                quiet_since = time.monotonic()
            if not changed.is_set():
                quiet_s = quiet_since + COMMENT_S - time.monotonic()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(min(quiet_s, permission.due_s()), 0.01)):
                        await changed.wait()
            if not await permission.holds():
                return
            if time.monotonic() - quiet_since >= COMMENT_S:
                yield b": still here\n\n"
                quiet_since = time.monotonic()


async def _read(read: Callable[[], T]) -> T:
    """Call a function in a thread and return its result. Try again while the database is unreachable."""
    while True:
        try:
            return await asyncio.to_thread(read)
        except StoreError as error:
            if not isinstance(error, Retryable):
                raise
            await asyncio.sleep(RETRY_S)


def _encoded(experiment: str, item: StreamItem) -> bytes:
    data = schemas.stream_data(experiment, item)
    return _message(item.seq, item.event, json.dumps(plain(data), separators=(",", ":")))


def _message(seq: int, event: str, data: str) -> bytes:
    return f"id: {seq}\nevent: {event}\ndata: {data}\n\n".encode()
