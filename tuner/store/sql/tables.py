"""The tables, for SQLAlchemy. `migrations/` builds the same tables; a test compares the two.

Public ids (`public_id`) are opaque and have a prefix; internal ids are integers. Times are Unix timestamps, as
doubles. JSON is stored as text, so that both databases return exactly what was stored, including the order of keys and NaN.
The tables that grow with every report have no foreign keys, since only one writer fills them, and the checks would cost more
than the rows.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Container, Mapping
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.types import TypeEngine

from tuner.domain.states import ExperimentState, is_state
from tuner.store.records import TrialRecord

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


NO_REPORT = "kind <> 'reported'"
"""The condition of the index of events by kind. A query must contain it literally to use the index."""


def dumps(value: Any) -> str:
    """Return a value as JSON text. Tuples become lists; mappings and dataclasses become objects."""
    if _encode is None:
        return _encoder.encode(value)
    return "".join(_encode(value, 0))


@functools.cache
def _fields(kind: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass, or None if this is another type."""
    return tuple(each.name for each in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def _plain(value: Any) -> Any:
    if (names := _fields(value.__class__)) is not None:
        # `dataclasses.asdict` would also copy everything inside. The encoder converts the values inside when it reaches
        # them.
        return {name: getattr(value, name) for name in names}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "item"):  # a scalar of numpy or torch
        return value.item()
    raise TypeError(f"cannot be stored as JSON: {value!r} of type {type(value).__name__}")


_encoder = json.JSONEncoder(separators=(",", ":"), default=_plain)  # `json.dumps` would make an encoder for each call
_in_c = json.encoder.c_make_encoder  # type: ignore[attr-defined]
# `JSONEncoder.encode` makes the encoder in C for each call, which takes longer than encoding a few metrics.
_encode = _in_c and _in_c(
    None, _plain, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, _encoder.allow_nan
)


class JsonText(TypeDecorator[Any]):
    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str | None:
        return None if value is None else dumps(value)

    def process_result_value(self, value: str | None, dialect: Any) -> Any:
        return None if value is None else json.loads(value)


Id: TypeEngine[int] = BigInteger().with_variant(Integer, "sqlite")  # in SQLite, only INTEGER is an alias for the rowid
Real: TypeEngine[float] = Double().with_variant(Float, "sqlite")


class Choice(TypeDecorator[str]):
    """The value of an enum, as text. A value that only another version knows is read as the text itself."""

    impl = String(16)
    cache_ok = True

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        return value if value is None or not is_state(self.kind, value) else self.kind(value)


def columns_of(record: type, *own: Column[Any], leave_out: Container[str] = ()) -> list[Column[Any]]:
    """Return a column for each field of a record, in the order of the fields.

    The field's annotation gives the type of its column, and whether the column allows NULL.

    Args:
        record: a dataclass.
        own: columns that need further properties, such as keys. Each replaces the column of the field with the same name.
        leave_out: names of fields that are not columns of this table.
    """
    hints = get_type_hints(record)
    special = {column.name: column for column in own}
    return [
        special[name] if name in special else Column(name, _type_of(hints[name]), nullable=_may_be_none(hints[name]))
        for name in (field.name for field in dataclasses.fields(record))
        if name not in leave_out
    ]


def _may_be_none(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _type_of(hint: Any) -> TypeEngine[Any]:
    plain = next((part for part in get_args(hint) if part is not type(None)), hint) if _may_be_none(hint) else hint
    plain = get_origin(plain) or plain
    if issubclass(plain, StrEnum):
        return Choice(plain)
    known: dict[type, TypeEngine[Any]] = {
        bool: Boolean(),
        int: Integer(),
        float: Real,
        str: Text(),
        Mapping: JsonText(),
    }
    return known[plain]


code = Table(
    "code",
    metadata,
    Column("hash", String(80), primary_key=True),
    Column("blob", LargeBinary),  # cloudpickle of the trainable; NULL if it is imported
    Column("space_blob", LargeBinary),  # cloudpickle of choices that JSON cannot express
    Column("parts_blob", LargeBinary),  # cloudpickle of a scheduler, searcher or stopper that JSON cannot express
    Column("python", String(40), nullable=False),
    Column("packages", JsonText, nullable=False),
    Column("sys_path", JsonText, nullable=False),
    Column("working_dir", Text, nullable=False),
    Column("created_at", Real, nullable=False),
)

bundle = Table(
    "bundle",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("used_at", Real, nullable=False),
    Column("deleting_since", Real),  # when the deletion of its files began; NULL: it can be used
)

package = Table(
    "package",
    metadata,
    Column("uri", Text, primary_key=True),
    Column("used_at", Real, nullable=False),
    Column("deleting_since", Real),  # when its deletion began; NULL: it can be used
)

experiment = Table(
    "experiment",
    metadata,
    Column("id", Id, primary_key=True),
    Column("public_id", String(64), nullable=False, unique=True),
    Column("name", Text, nullable=False, index=True),
    Column("state", Choice(ExperimentState), nullable=False, index=True),
    Column("spec", JsonText, nullable=False),
    Column("spec_version", Integer, nullable=False),
    Column("seed", BigInteger, nullable=False),
    # python | api | study | adopted | import; see ExperimentRecord.source
    Column("source", String(16), nullable=False),
    Column("idempotency_key", Text, unique=True),
    Column("code_hash", ForeignKey("code.hash")),
    Column("driver_epoch", Integer, nullable=False),  # counts the drivers; only the newest may write
    Column("driver_owner", Text),
    Column("lease_until", Real),
    Column("last_event_seq", Id, nullable=False),
    Column("best", JsonText),
    Column("counts", JsonText),
    Column("reason", Text, nullable=False),
    Column("error", Text),
    Column("created_at", Real, nullable=False),
    Column("started_at", Real),
    Column("ended_at", Real),
    Column("project", String(100), nullable=False, server_default="default"),
    Index(None, "project", "id"),
    Column("archived_at", Real),
    Column("changes", JsonText),  # users' later changes to `spec`; see Spec.amended
    Column("revision", Integer, nullable=False, server_default="0"),  # counts the changes
    Column("gpu_hours", Real, nullable=False, server_default="0"),
    Column("gpu_hours_saved", Real, nullable=False, server_default="0"),
    Column("cpu_hours", Real, nullable=False, server_default="0"),
    # [[start, end], ...]: when it was not running; NULL: unknown, since an older version wrote the row
    Column("pauses", JsonText),
    Column("paused_s", Real, nullable=False, server_default="0"),  # the total length of the pauses that have ended
    Column("tags", JsonText),  # the tags of the changed spec, for filtering
    Column("thinned_at", Real),  # when most of its points were deleted; NULL: all points are kept
    Column("thinned_upto", Id),  # during the deletion: the last segment that was thinned; otherwise NULL
    # the share of the training budget that is spent; NULL: there is none, or an older version wrote the row
    Column("budget_spent", Real),
)

trial = Table(
    "trial",
    metadata,
    *columns_of(
        TrialRecord,
        Column("id", Id, primary_key=True),
        Column("public_id", String(64), nullable=False, unique=True),
        Column("experiment_id", Id, ForeignKey("experiment.id"), nullable=False),
        Column("space_revision", Integer, nullable=False, server_default="0"),
        Column("best_params", JsonText),  # NULL if the current params are the same
        leave_out=("experiment", "segments"),
    ),
    UniqueConstraint("experiment_id", "number"),
    Index("ix_trial_state", "experiment_id", "state", "number"),
)

segment = Table(
    "segment",
    metadata,
    Column("id", Id, primary_key=True),
    Column("public_id", String(64), nullable=False, unique=True),
    Column("trial_id", Id, ForeignKey("trial.id"), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("cause", String(16), nullable=False),
    Column("start_step", Integer, nullable=False),
    Column("config", JsonText, nullable=False),
    Column("source_checkpoint", String(64)),  # the checkpoint's public_id, since its experiment may have been deleted
    Column("placement", JsonText),
    Column("warm", Boolean),
    Column("startup_s", Real),
    Column("created_at", Real, nullable=False),
    Column("started_at", Real),
    Column("ended_at", Real),
    Column("outcome", String(16)),
    Column("held_s", Real),  # the part of startup_s after the worker group got its resources
    Column("workers", Integer),  # NULL: a version without elastic trials wrote the row, so the spec's number applies
    UniqueConstraint("trial_id", "ordinal"),
)

metric_key = Table(
    "metric_key",
    metadata,
    Column("id", Id, primary_key=True),
    Column("experiment_id", Id, ForeignKey("experiment.id"), nullable=False),
    Column("name", Text, nullable=False),
    UniqueConstraint("experiment_id", "name"),
)

metric_point = Table(
    "metric_point",
    metadata,
    # In this order the points of one curve are adjacent.
    Column("segment_id", Id, primary_key=True, autoincrement=False),
    Column("key_id", Id, primary_key=True, autoincrement=False),
    Column("report_no", Integer, primary_key=True, autoincrement=False),
    Column("step", Integer, nullable=False),
    Column("time", Real, nullable=False),
    Column("value", Real),  # NULL if `kind` is not 0
    Column("kind", SmallInteger, nullable=False),  # 0 finite, 1 NaN, 2 +inf, 3 -inf
    Column("user_step", BigInteger),  # the training code's own count; `step` is the training_iteration
    sqlite_with_rowid=False,
)

metric_bucket = Table(
    "metric_bucket",
    metadata,
    Column("segment_id", Id, primary_key=True, autoincrement=False),
    Column("key_id", Id, primary_key=True, autoincrement=False),
    Column("level", SmallInteger, primary_key=True, autoincrement=False),
    Column("chunk", Integer, primary_key=True, autoincrement=False),  # the index of these 8 buckets, from 0
    Column("last_no", Integer, nullable=False),  # the newest report in them
    Column("data", LargeBinary, nullable=False),  # see pyramid.RECORD
    sqlite_with_rowid=False,
)

best_point = Table(
    "best_point",
    metadata,
    # One row for each improvement of an objective, in the order of the log.
    Column("key_id", Id, primary_key=True, autoincrement=False),
    Column("event_seq", Id, primary_key=True, autoincrement=False),
    Column("time", Real, nullable=False),
    Column("value", Real, nullable=False),
    sqlite_with_rowid=False,
)

checkpoint = Table(
    "checkpoint",
    metadata,
    Column("id", Id, primary_key=True),
    Column("public_id", String(64), nullable=False, unique=True),
    Column("segment_id", Id, ForeignKey("segment.id"), nullable=False, index=True),
    Column("step", Integer, nullable=False),
    Column("uri", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),  # uploading | ready | deleted
    Column("node", String(64)),  # Ray's id of the node that wrote it to a path; NULL if it is at a URI
    Column("pinned", Boolean, nullable=False, server_default=false()),  # a user has pinned it
    Column("taken_at", Real),  # when training continued after the save; NULL if not known
    Column("took_s", Real),  # how long training waited for the save
)

event = Table(
    "event",
    metadata,
    Column("experiment_id", Id, primary_key=True, autoincrement=False),
    Column("event_seq", Id, primary_key=True, autoincrement=False),
    Column("time", Real, nullable=False),
    Column("kind", String(32), nullable=False),
    # The next four columns identify the metrics of a report in `metric_point`.
    Column("trial_number", Integer),
    Column("segment_id", Id),
    Column("report_no", Integer),
    Column("step", Integer),
    Column("payload", JsonText),
    # Most rows are reports. The index finds the others, and costs a report nothing. In PostgreSQL, migration 0025 gives it the
    # same condition. `postgresql_where` here would make every process load SQLAlchemy's modules for PostgreSQL, even with SQLite.
    Index(
        "ix_event_kind",
        "experiment_id",
        "kind",
        "event_seq",
        "trial_number",
        sqlite_where=text(NO_REPORT),
    ),
    sqlite_with_rowid=False,
)

decision = Table(
    "decision",
    metadata,
    Column("experiment_id", Id, primary_key=True, autoincrement=False),
    Column("event_seq", Id, primary_key=True, autoincrement=False),
    Column("time", Real, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("trial_number", Integer),
    Column("reason", Text, nullable=False),
    Column("state", String(16), nullable=False),  # pending | done | superseded
    Column("payload", JsonText, nullable=False),
    Index("ix_decision_trial", "experiment_id", "trial_number"),
    sqlite_with_rowid=False,
)

command = Table(
    "command",
    metadata,
    Column("id", Id, primary_key=True),
    Column("experiment_id", Id, ForeignKey("experiment.id"), nullable=False),
    Column("command", String(16), nullable=False),
    Column("trial_number", Integer),
    Column("reason", Text, nullable=False),
    Column("payload", JsonText),  # further data of the command
    Column("state", String(16), nullable=False),  # pending | done
    Column("created_at", Real, nullable=False),
    Column("done_at", Real),
    Column("idempotency_key", Text),  # of the user's request; only one of its commands has one
    Column("request", String(64)),  # hash of what the request with this key asks for
    Index("ix_command_open", "experiment_id", "state"),
)

rank_usage = Table(
    "rank_usage",
    metadata,
    Column("segment_id", Id, primary_key=True, autoincrement=False),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("sample_no", Integer, primary_key=True, autoincrement=False),  # evenly spaced; thinned if there are many
    Column("time", Real, nullable=False),
    Column("cpu_s", Real, nullable=False),  # CPU time used since the segment's start
    Column("rss_bytes", BigInteger, nullable=False),
    Column("gpu_bytes", BigInteger),  # the next three are NULL if no GPU is in use
    Column("gpu_reserved_bytes", BigInteger),
    Column("gpu_percent", Real),
    sqlite_with_rowid=False,
)

log_chunk = Table(
    "log_chunk",
    metadata,
    Column("segment_id", Id, primary_key=True, autoincrement=False),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("start", BigInteger, primary_key=True, autoincrement=False),  # offset in the file that the rank writes
    Column("size", Integer, primary_key=True, autoincrement=False),  # bytes of the file; 0 marks its end
    Column("time", Real, nullable=False),
    Column("data", LargeBinary, nullable=False),  # zlib
    sqlite_with_rowid=False,
)

token = Table(
    "token",
    metadata,
    Column("id", Id, primary_key=True),
    Column("public_id", String(64), nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("hash", String(64), nullable=False, unique=True),  # SHA-256 of the secret; the secret is not stored
    Column("role", String(16), nullable=False),  # agent | viewer | editor | admin
    Column("created_at", Real, nullable=False),
    Column("expires_at", Real),
    Column("revoked_at", Real),
    Column("used_at", Real),  # written at most once a minute
    Column("project", String(100)),  # NULL: all projects
)

session = Table(
    "session",
    metadata,
    Column("id", Id, primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),  # SHA-256 of the cookie's value; the value is not stored
    Column("token_id", Id, ForeignKey("token.id")),  # the session ends with this token; NULL: signed in without one
    Column("name", Text, nullable=False),
    Column("role", String(16), nullable=False),
    Column("project", String(100)),
    Column("created_at", Real, nullable=False),
    Column("expires_at", Real, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Id, primary_key=True),
    Column("time", Real, nullable=False),
    Column("actor", Text, nullable=False),  # name of the token, or "local"
    Column("token_id", String(64)),
    Column("method", String(16), nullable=False),
    Column("path", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("address", Text, nullable=False),
    Column("project", String(100)),  # of the token; NULL: all projects
    Column("created", String(64)),  # public id of what the request created
)

project = Table(
    "project",
    metadata,
    # Only projects whose settings differ from the defaults have a row.
    Column("name", String(100), primary_key=True),
    Column("warm_start", String(16), nullable=False),  # for new experiments that do not set their own: auto
    Column("changed_at", Real, nullable=False),
)

webhook = Table(
    "webhook",
    metadata,
    Column("id", Id, primary_key=True),
    Column("public_id", String(64), nullable=False, unique=True),
    Column("url", Text, nullable=False),
    Column("events", JsonText, nullable=False),
    Column("project", String(100)),  # NULL: all projects
    Column("experiment", String(64)),  # the public_id; NULL: all experiments of the project
    Column("format", String(16), nullable=False),  # json | slack
    Column("threshold", Real),
    Column("secret", Text, nullable=False),  # the key that signs deliveries, so it is not hashed
    Column("created_at", Real, nullable=False),
)

webhook_cursor = Table(
    "webhook_cursor",
    metadata,
    # The point up to which an experiment's changes have been turned into deliveries: its event_seq, and the row's values then.
    Column("experiment_id", Id, primary_key=True, autoincrement=False),
    Column("event_seq", Id, nullable=False),
    Column("state", String(16), nullable=False),
    Column("started_at", Real),
    Column("ended_at", Real),
)

webhook_delivery = Table(
    "webhook_delivery",
    metadata,
    Column("id", Id, primary_key=True),
    Column("public_id", String(64), nullable=False, unique=True),
    Column("webhook_id", Id, nullable=False),
    Column("occurrence", String(200), nullable=False),  # identifies the event, so that a webhook gets it only once
    Column("event", String(32), nullable=False),
    Column("experiment", String(64), nullable=False),
    Column("data", JsonText, nullable=False),
    Column("state", String(16), nullable=False),  # pending | delivered | failed
    Column("attempts", Integer, nullable=False),
    Column("next_at", Real, nullable=False),  # the next attempt; during an attempt, when another sender may take over
    Column("last_status", Integer),
    Column("last_error", Text),
    Column("created_at", Real, nullable=False),
    Column("ended_at", Real),
    UniqueConstraint("webhook_id", "occurrence"),
    Index("ix_webhook_delivery_due", "state", "next_at"),
)
