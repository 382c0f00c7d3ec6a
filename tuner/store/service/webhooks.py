"""Webhooks: URLs that events are sent to, and their deliveries.

`collect` finds the experiments that have changed since its last call. For each event, it adds a delivery for each webhook that
has subscribed to the event. `webhook_cursor` has a row for each experiment, with the position in the log that `collect` has
reached. The row and the deliveries are written in one transaction, which writes nothing if the row has changed in the meantime.
So several services can collect from one database, and each delivery is added only once.
`claim` hands a delivery to one sender for a limited time. If that sender dies, the delivery can be claimed again.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import ColumnElement, select, true

from tuner.domain.experiment import DEFAULT_PROJECT
from tuner.domain.keys import trial_id
from tuner.domain.states import ExperimentState, read_state
from tuner.errors import NotFound, SpecError
from tuner.store.commands import DELETION
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.database import Database, at
from tuner.store.sql.stored import stored_objectives
from tuner.store.sql.tables import dumps, webhook, webhook_delivery

EventName = Literal[
    "experiment.started",
    "experiment.paused",
    "experiment.completed",
    "experiment.failed",
    "experiment.cancelled",
    "trial.failed",
    "objective.reached",
]
SentEvent = EventName | Literal["test"]
"""The events that a delivery can have. A webhook cannot subscribe to `test`; `Webhooks.test` sends it to one webhook."""

TEST_EXPERIMENT = "exp_test"
"""The id of the experiment in a delivery of the event `test`. No such experiment exists."""

EVENTS: tuple[str, ...] = get_args(EventName)
Format = Literal["json", "slack"]

SECRET_PREFIX = "whsec_"
"""The prefix of secrets, by which secret scanners recognize them."""

MAX_WEBHOOKS = 500
"""The maximum number of webhooks in one database."""

FAILURES_AT_ONCE = 500
"""The maximum number of an experiment's failed trials that one transaction collects."""

APART_S = 600.0
"""By how many seconds the clocks of services may differ before they send deliveries of one another."""
LONGEST_S = "8.0 * CASE WHEN d.attempts < 9 THEN 1 << d.attempts ELSE 512 END"
"""More seconds than a sender ever waits after this number of attempts, as an SQL expression."""

TEXT = 2000
"""Reasons and errors are truncated to this many characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRecord:
    """A webhook: a URL, and the events that are sent to it."""

    id: int
    public_id: str  # whk_...
    url: str
    events: tuple[str, ...]
    project: str | None  # None: all projects
    experiment: str | None  # exp_...; None: all experiments of the project
    format: Format
    threshold: float | None  # for objective.reached
    created_at: float
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRecord:
    """One message to one webhook."""

    id: int
    public_id: str  # dlv_...
    event: str
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    next_at: float  # the time of the next attempt, if the delivery is pending
    last_status: int | None
    last_error: str | None
    created_at: float
    ended_at: float | None
    experiment: str  # exp_...


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A delivery that has been handed to a sender."""

    id: int
    public_id: str
    webhook: int
    event: str
    data: Mapping[str, Any]
    attempts: int  # including the attempt that is about to be made
    created_at: float
    url: str
    format: Format
    secret: str = field(repr=False)


class _Place(NamedTuple):
    """The state and the times of an experiment at one point of its log: now, or when its changes were last collected."""

    seq: int
    state: str
    started_at: float | None
    ended_at: float | None


class _Changed(NamedTuple):
    """An experiment that has changed. `before` is None if none of its changes were collected yet."""

    id: int
    public_id: str
    name: str
    project: str
    reason: str
    error: str | None
    now: _Place
    before: _Place | None


class _Occurrence(NamedTuple):
    """An event that may be sent to webhooks. A webhook gets at most one delivery with the same `key`."""

    event: str
    key: str
    data: Mapping[str, Any]


_ToTell = tuple[WebhookRecord, _Occurrence]

_NOWHERE = _Place(0, ExperimentState.PENDING, None, None)
_CHANGED = f"""
SELECT e.id, e.public_id, e.name, e.project, e.reason, e.error, e.last_event_seq, e.state, e.started_at, e.ended_at,
  c.event_seq, c.state, c.started_at, c.ended_at
FROM experiment e LEFT JOIN webhook_cursor c ON c.experiment_id = e.id
WHERE (c.experiment_id IS NULL OR c.event_seq < e.last_event_seq OR c.state <> e.state)
AND NOT (e.source = 'import' AND e.ended_at IS NULL AND e.driver_epoch = 0)
AND NOT (COALESCE(e.driver_owner, '') = '{DELETION}' AND COALESCE(e.lease_until, 0) > ? AND e.id <> ?) ORDER BY e.id"""
_BASELINE = """
INSERT INTO webhook_cursor (experiment_id, event_seq, state, started_at, ended_at)
SELECT e.id, e.last_event_seq, e.state, e.started_at, e.ended_at FROM experiment e
WHERE NOT EXISTS (SELECT 1 FROM webhook_cursor c WHERE c.experiment_id = e.id)
ON CONFLICT DO NOTHING"""
_BEGIN = """
INSERT INTO webhook_cursor (experiment_id, event_seq, state, started_at, ended_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING"""
_ADVANCE = """
UPDATE webhook_cursor SET event_seq = ?, state = ?, started_at = ?, ended_at = ?
WHERE experiment_id = ? AND event_seq = ? AND state = ?"""
_FAILED = """
SELECT event_seq, trial_number, reason FROM decision
WHERE experiment_id = ? AND event_seq > ? AND event_seq <= ? AND kind = 'fail' AND trial_number IS NOT NULL
ORDER BY event_seq LIMIT ?"""
_BEST = """
SELECT b.value FROM metric_key k JOIN best_point b ON b.key_id = k.id
WHERE k.experiment_id = ? AND k.name = ? AND b.event_seq > ? AND b.event_seq <= ? ORDER BY b.event_seq"""
_LOCK = "UPDATE webhook SET id = id WHERE id = ?"
_MADE = f"SELECT {', '.join(DeliveryRecord.__slots__)} FROM webhook_delivery WHERE public_id = ?"
_ADD = """
INSERT INTO webhook_delivery
  (public_id, webhook_id, occurrence, event, experiment, data, state, attempts, next_at, created_at)
VALUES (?, ?, ?, ?, ?, ?, 'pending', 0, ?, ?) ON CONFLICT DO NOTHING"""
_DUE = f"""
SELECT d.id, d.public_id, d.webhook_id, d.event, d.data, d.attempts, d.created_at, w.url, w.format, w.secret, d.next_at
FROM webhook_delivery d JOIN webhook w ON w.id = d.webhook_id
WHERE d.state = 'pending' AND (d.next_at <= ? OR d.next_at - {LONGEST_S} > ?) ORDER BY d.next_at, d.id"""
_CLAIM = """
UPDATE webhook_delivery SET next_at = ?, attempts = attempts + 1 WHERE id = ? AND state = 'pending' AND next_at = ?"""
_DELIVERED = """
UPDATE webhook_delivery SET state = 'delivered', last_status = ?, last_error = NULL, ended_at = ? WHERE id = ?"""
_FAILED_ATTEMPT = """
UPDATE webhook_delivery SET state = ?, last_status = ?, last_error = ?, next_at = ?, ended_at = ?
WHERE id = ? AND attempts = ? AND state = 'pending'"""
_ABANDONED = """
DELETE FROM webhook WHERE experiment IS NOT NULL AND experiment NOT IN (SELECT public_id FROM experiment)"""
_PRUNE = """
DELETE FROM webhook_delivery WHERE ended_at < ? AND event <> 'objective.reached'
  OR webhook_id NOT IN (SELECT id FROM webhook)"""


class Webhooks:
    """The webhooks of one database and their deliveries. Every method may be called from any thread.

    project: show only the webhooks of this project. `collect` and `claim` handle the webhooks of all projects.
    """

    def __init__(self, database: Database, project: str | None = None) -> None:
        self._database = database
        self._project = project
        # experiment -> an event_seq past the cursor, up to which there is nothing to send
        self._seen: dict[int, int] = {}
        self._collecting = threading.Lock()

    # -- webhooks, which users create ------------------------------------------------------------------------------------

    def create(
        self,
        url: str,
        events: Sequence[str],
        *,
        project: str | None = None,
        experiment: str | None = None,
        format: Format = "json",
        threshold: float | None = None,
        now: float | None = None,
    ) -> WebhookRecord:
        """Create a webhook. It gets the events that happen from now on.

        Raises:
            SpecError: `objective.reached` has no threshold, there are too many webhooks, or this store is limited to another
                project.
        """
        if self._project not in (None, project):
            raise SpecError(f"your access is limited to the project {self._project!r}", "/project")
        _check(events, threshold)
        made = (
            f"whk_{secrets.token_hex(8)}",
            url,
            dumps(list(dict.fromkeys(events))),
            project,
            experiment,
            format,
            threshold,
            SECRET_PREFIX + secrets.token_urlsafe(32),
            at(now),
        )
        self._catch_up(at(now))
        with self._database.write() as cursor:
            count = cursor.value("SELECT count(*) FROM webhook")
            if count >= MAX_WEBHOOKS:
                raise SpecError(f"there are already {MAX_WEBHOOKS} webhooks; delete some of them first")
            if not count:
                # The cursors have not moved since the last webhook was deleted.
                cursor.execute("DELETE FROM webhook_cursor")
                cursor.execute(_BASELINE)
            names = "public_id, url, events, project, experiment, format, threshold, secret, created_at"
            cursor.execute(f"INSERT INTO webhook ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", made)
        return self.get(made[0])

    def all(self) -> list[WebhookRecord]:
        """Return the webhooks, newest first."""
        with self._database.read() as connection:
            query = select(webhook).where(self._shown()).order_by(webhook.c.id.desc())
            return [_webhook(row) for row in connection.execute(query)]

    def get(self, public_id: str) -> WebhookRecord:
        """Return a webhook. Raise NotFound if there is none with this id."""
        with self._database.read() as connection:
            query = select(webhook).where(self._shown(), webhook.c.public_id == public_id)
            row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"no webhook {public_id!r}")
        return _webhook(row)

    def change(
        self,
        public_id: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        format: Format | None = None,
        threshold: float | None = None,
    ) -> WebhookRecord:
        """Change a webhook. A value that is None stays the same. Pending deliveries go to the new URL.

        New events and a new threshold apply to what happens from now on.

        Raises:
            NotFound: there is no such webhook.
            SpecError: `objective.reached` has no threshold.
        """
        listed = None if events is None else dumps(list(dict.fromkeys(events)))
        given = {"url": url, "events": listed, "format": format, "threshold": threshold}
        changed = {name: value for name, value in given.items() if value is not None}
        old = self.get(public_id)
        if not changed:
            return old
        if changed.keys() & {"events", "threshold"}:
            self._catch_up(at(None))
        with self._database.write() as cursor:
            # Only these columns, and before the check, because another request may be changing the others.
            sets = ", ".join(f"{name} = ?" for name in changed)
            cursor.execute(f"UPDATE webhook SET {sets} WHERE id = ?", (*changed.values(), old.id))
            for names, limit in cursor.rows("SELECT events, threshold FROM webhook WHERE id = ?", (old.id,)):
                _check(json.loads(names), limit)
        return self.get(public_id)

    def delete(self, public_id: str) -> None:
        """Delete a webhook and its deliveries. Raise NotFound if there is none with this id."""
        old = self.get(public_id)
        with self._database.write() as cursor:
            cursor.execute("DELETE FROM webhook_delivery WHERE webhook_id = ?", (old.id,))
            cursor.execute("DELETE FROM webhook WHERE id = ?", (old.id,))

    def deliveries(self, public_id: str, *, limit: int = 100, before: int | None = None) -> list[DeliveryRecord]:
        """Return the deliveries of a webhook, newest first. Raise NotFound if there is no such webhook.

        before: if given, only deliveries with a lower `id` than this are returned.
        """
        query = select(webhook_delivery).where(webhook_delivery.c.webhook_id == self.get(public_id).id)
        if before is not None:
            query = query.where(webhook_delivery.c.id < before)
        with self._database.read() as connection:
            found = connection.execute(query.order_by(webhook_delivery.c.id.desc()).limit(limit))
            return [DeliveryRecord(**{name: getattr(row, name) for name in DeliveryRecord.__slots__}) for row in found]

    def test(self, public_id: str, now: float | None = None) -> DeliveryRecord:
        """Add a delivery of the event `test`. Raise NotFound if there is no such webhook."""
        found, time = self.get(public_id), at(now)
        made = f"dlv_{secrets.token_hex(10)}"
        example = {
            "id": TEST_EXPERIMENT,
            "name": "test",
            "project": found.project or DEFAULT_PROJECT,
            "state": str(ExperimentState.COMPLETED),
            "reason": "a test of this webhook",
            "error": None,
        }
        values = (made, found.id, f"test {made}", "test", TEST_EXPERIMENT, dumps({"experiment": example}), time, time)
        with self._database.write() as cursor:
            cursor.execute(_LOCK, (found.id,))
            if cursor.rowcount != 1:
                raise NotFound(f"no webhook {public_id!r}; it has just been deleted")
            cursor.execute(_ADD, values)
            [row] = cursor.rows(_MADE, (made,))  # here, because the webhook may be deleted after the commit
        return DeliveryRecord(**dict(zip(DeliveryRecord.__slots__, row, strict=True)))

    # -- what the service does ---------------------------------------------------------------------------------------------

    def collect(self, now: float | None = None, *, deleted: int = 0) -> None:
        """Add deliveries for all events since any service last called this.

        Leave out experiments that are being deleted: if their storage refuses, they go on as if nothing had happened.

        deleted: the internal id of an experiment whose checkpoints have been deleted. It is not left out.
        """
        with self._collecting:
            changed = self._collect(at(now), deleted=deleted)
            self._seen = {one.id: self._seen[one.id] for one in changed if one.id in self._seen}

    def _collect(self, now: float, *, advance: bool = False, deleted: int = 0) -> list[_Changed]:
        """Add deliveries for the events since the cursors, and return the experiments that had changed.

        advance: move every cursor, even if there is nothing to send.
        """
        with self._database.cursor() as (cursor, connection):
            # Read in one transaction, so that a webhook that is created in the meantime is told of what happens afterwards.
            hooks = [_webhook(row) for row in connection.execute(select(webhook).order_by(webhook.c.id.desc()))]
            if not hooks:
                return []
            changed = [_changed(row) for row in cursor.rows(_CHANGED, (now, deleted))]
            found = [self._find(cursor, one, [hook for hook in hooks if _concerns(hook, one)]) for one in changed]
        for one, (place, rows) in zip(changed, found, strict=True):
            self._tell(one, place, rows, now, advance=advance)
        return changed

    def _catch_up(self, now: float) -> None:
        """Collect what has happened so far, and move all cursors past it, so that no webhook is told of it later."""
        everything = Webhooks(self._database)  # it has no `_seen`, so it reads on from the cursors
        changed = everything._collect(now, advance=True)
        until = {one.id: one.now.seq for one in changed}
        while any(one.before is not None and one.before.seq < until.get(one.id, 0) for one in changed):
            changed = everything._collect(now, advance=True)

    def _find(self, cursor: Cursor, found: _Changed, hooks: Sequence[WebhookRecord]) -> tuple[_Place, list[_ToTell]]:
        """Return the events to send about one experiment, and the position in the log up to which they were collected."""
        before = found.before or _NOWHERE
        since = max(before.seq, self._seen.get(found.id, 0))
        failures = cursor.rows(_FAILED, (found.id, since, found.now.seq, FAILURES_AT_ONCE))
        until = failures[-1][0] if len(failures) == FAILURES_AT_ONCE else found.now.seq
        rows = [
            (hook, occurrence)
            for hook in hooks
            for occurrence in (
                *_of_experiment(found, before),
                *_of_trials(found, failures),
                *_of_objective(cursor, found, hook, since, until),
            )
            if occurrence.event in hook.events
        ]
        return found.now._replace(seq=until), rows

    def _tell(
        self, found: _Changed, place: _Place, rows: Sequence[_ToTell], now: float, *, advance: bool = False
    ) -> None:
        """Add the deliveries of one experiment. If there is nothing to send, as after most reports, write nothing.

        The cursor of an ended experiment always moves, because later collections would read the experiment again and again.

        advance: move the cursor in any case.
        """
        before = found.before
        moves = advance or read_state(ExperimentState, place.state).ended
        if moves or rows or before is None or place._replace(seq=before.seq) != before:
            with self._database.write() as cursor:
                if not _advance(cursor, found, place):
                    return  # another service has already collected these events
                for hook, what in rows:
                    made = (
                        f"dlv_{secrets.token_hex(10)}",
                        hook.id,
                        what.key,
                        what.event,
                        found.public_id,
                        dumps(what.data),
                    )
                    cursor.execute(_ADD, (*made, now, now))
        self._seen[found.id] = place.seq

    def claim(self, limit: int, lease_s: float, *, busy: Collection[int] = (), now: float | None = None) -> list[Due]:
        """Return deliveries that are due, and count an attempt for each. No other sender gets them for `lease_s` seconds.

        A delivery is also due if no pause is as long as the time until its next attempt: then the clock was put back.

        busy: the internal ids of webhooks whose deliveries to skip.
        """
        time = at(now)
        query = _DUE
        if busy:
            query = query.replace("ORDER BY", f"AND d.webhook_id NOT IN ({', '.join('?' * len(busy))}) ORDER BY")
        with self._database.cursor() as (cursor, _):
            rows = cursor.rows(f"{query} LIMIT ?", (time, time + max(lease_s, APART_S), *busy, limit))
        if not rows:
            return []
        claimed = []
        with self._database.write() as cursor:
            for row in rows:
                cursor.execute(_CLAIM, (time + lease_s, row[0], row[10]))
                if cursor.rowcount == 1:
                    claimed.append(_due(row))
        return claimed

    def delivered(self, due: Due, status: int, *, now: float | None = None) -> None:
        """Record that the receiver has accepted a delivery."""
        with self._database.write() as cursor:
            cursor.execute(_DELIVERED, (status, at(now), due.id))

    def failed(
        self, due: Due, error: str, *, status: int | None = None, wait_s: float | None, now: float | None = None
    ) -> None:
        """Record that an attempt has failed.

        wait_s: the seconds until the next attempt; None if this was the last attempt.
        """
        time = at(now)
        state, next_at, ended = ("failed", time, time) if wait_s is None else ("pending", time + wait_s, None)
        values = (state, status, error.replace("\0", "\ufffd")[:TEXT], next_at, ended, due.id, due.attempts)
        with self._database.write() as cursor:
            cursor.execute(_FAILED_ATTEMPT, values)

    def prune(self, before: float) -> int:
        """Delete deliveries that ended before this time, and all deliveries of deleted webhooks. Return how many were deleted.

        First delete webhooks of experiments that no longer exist. Older versions left them behind.

        Deliveries of `objective.reached` are kept, because they show that a webhook has already received this event.
        """
        with self._database.write() as cursor:
            cursor.execute(_ABANDONED)
            cursor.execute(_PRUNE, (before,))
            return cursor.rowcount

    def _shown(self) -> ColumnElement[bool]:
        return true() if self._project is None else webhook.c.project == self._project


def _check(events: Sequence[str], threshold: float | None) -> None:
    if "objective.reached" in events and threshold is None:
        raise SpecError("objective.reached needs a threshold: the value at which to send the event", "/threshold")


def _concerns(hook: WebhookRecord, found: _Changed) -> bool:
    return hook.project in (None, found.project) and hook.experiment in (None, found.public_id)


def _of_experiment(found: _Changed, before: _Place) -> Iterator[_Occurrence]:
    """Yield the events of the experiment itself: its start, its pause and its end."""
    now, data = found.now, {"experiment": _shown_experiment(found)}
    if now.started_at is not None and before.started_at is None:
        yield _Occurrence("experiment.started", f"{found.public_id}:started", data)
    if now.state == ExperimentState.PAUSED != before.state:
        yield _Occurrence("experiment.paused", f"{found.public_id}:paused:{now.seq}", data)
    if read_state(ExperimentState, now.state).ended and (now.state, now.ended_at) != (before.state, before.ended_at):
        yield _Occurrence(f"experiment.{now.state}", f"{found.public_id}:{now.state}:{now.seq}", data)


def _of_trials(found: _Changed, failures: Sequence[Any]) -> Iterator[_Occurrence]:
    """Yield an event for each trial that failed for good."""
    for seq, number, reason in failures:
        trial = {"id": trial_id(found.public_id, number), "number": number, "reason": reason[:TEXT]}
        data = {"experiment": _shown_experiment(found), "trial": trial}
        yield _Occurrence("trial.failed", f"{found.public_id}:trial:{seq}", data)


def _of_objective(
    cursor: Cursor, found: _Changed, hook: WebhookRecord, since: int, until: int
) -> Iterator[_Occurrence]:
    """Yield an event for the first value of the objective that reaches the threshold of this webhook."""
    if hook.threshold is None or "objective.reached" not in hook.events:
        return
    for metric, mode in stored_objectives(cursor, found.id)[:1]:
        highest = mode == "max"
        for (value,) in cursor.rows(_BEST, (found.id, metric, since, until)):
            if value >= hook.threshold if highest else value <= hook.threshold:
                reached = {"metric": metric, "mode": mode, "value": value, "threshold": hook.threshold}
                data = {"experiment": _shown_experiment(found), "objective": reached}
                yield _Occurrence("objective.reached", f"{found.public_id}:reached:{hook.threshold!r}", data)
                return


def _shown_experiment(found: _Changed) -> dict[str, Any]:
    return {
        "id": found.public_id,
        "name": found.name,
        "project": found.project,
        "state": found.now.state,
        "reason": found.reason[:TEXT],
        "error": None if found.error is None else found.error[:TEXT],
    }


def _advance(cursor: Cursor, found: _Changed, place: _Place) -> bool:
    """Move the cursor of an experiment to `place`. Return False if another process has moved it in the meantime."""
    if found.before is None:
        cursor.execute(_BEGIN, (found.id, *place))
    else:
        cursor.execute(_ADVANCE, (*place, found.id, found.before.seq, found.before.state))
    return cursor.rowcount == 1


def _changed(row: Sequence[Any]) -> _Changed:
    before = None if row[10] is None else _Place(*row[10:])
    return _Changed(row[0], row[1], row[2], row[3], row[4], row[5], _Place(*row[6:10]), before)


def _due(row: Sequence[Any]) -> Due:
    return Due(
        id=row[0],
        public_id=row[1],
        webhook=row[2],
        event=row[3],
        data=json.loads(row[4]),
        attempts=row[5] + 1,
        created_at=row[6],
        url=row[7],
        format=row[8],
        secret=row[9],
    )


def _webhook(row: Any) -> WebhookRecord:
    return WebhookRecord(
        id=row.id,
        public_id=row.public_id,
        url=row.url,
        events=tuple(row.events),
        project=row.project,
        experiment=row.experiment,
        format=row.format,
        threshold=row.threshold,
        created_at=row.created_at,
        secret=row.secret,
    )
