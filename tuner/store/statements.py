"""What anybody may write: experiments, code, commands, leases, samples. Each function is part of a transaction of its caller."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tuner.domain.experiment import SPEC_VERSION, Spec
from tuner.domain.states import ExperimentState
from tuner.errors import Conflict, LostLease, NotFound
from tuner.store.records import CodeRecord, UsageSample
from tuner.store.tables import dumps
from tuner.store.writer import Cursor, clean

_ENDED = ", ".join(f"'{state}'" for state in ExperimentState if state.ended)

_EXPERIMENT = """
INSERT INTO experiment (public_id, name, state, spec, spec_version, seed, source, idempotency_key, code_hash, driver_epoch,
  last_event_seq, counts, reason, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, '{}', '', ?) ON CONFLICT (idempotency_key) DO NOTHING"""
_CODE = """
INSERT INTO code (hash, blob, space_blob, parts_blob, python, packages, sys_path, working_dir, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
_CLAIM = f"""
UPDATE experiment SET driver_epoch = driver_epoch + 1, driver_owner = ?, lease_until = ?
WHERE id = ? AND state NOT IN ({_ENDED}) AND (lease_until IS NULL OR lease_until <= ? OR driver_owner = ?)
RETURNING driver_epoch"""
_RENEW = "UPDATE experiment SET lease_until = ? WHERE id = ? AND driver_epoch = ?"
_RELEASE = "UPDATE experiment SET lease_until = NULL, driver_owner = NULL WHERE id = ? AND driver_epoch = ?"
# The newest command about the same thing counts: a pause after a resume is a pause once more.
_COMMAND_FIND = """
SELECT id FROM command WHERE experiment_id = ? AND state = 'pending' AND command = ? AND COALESCE(trial_number, -1) = ?
AND id = (SELECT MAX(id) FROM command WHERE experiment_id = ? AND COALESCE(trial_number, -1) = ?)"""
_COMMAND = """
INSERT INTO command (experiment_id, command, trial_number, reason, state, created_at)
VALUES (?, ?, ?, ?, 'pending', ?) RETURNING id"""
_SEGMENT = """
SELECT s.id FROM segment s JOIN trial t ON t.id = s.trial_id
WHERE t.experiment_id = ? AND t.number = ? AND s.ordinal = ?"""

_USAGE = """
INSERT INTO rank_usage
  (segment_id, rank, sample_no, time, cpu_s, rss_bytes, gpu_bytes, gpu_reserved_bytes, gpu_percent)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
_USAGE_THIN = "DELETE FROM rank_usage WHERE segment_id = ? AND sample_no - (sample_no / ?) * ? <> 0"


_NOT_ASKED = {"code": None, "resolved": None}
"""What of a stored spec is no part of the request."""


def create(
    cursor: Cursor, spec: Spec, public_id: str, code: CodeRecord | None, source: str, key: str | None, now: float
) -> str:
    """The public id: a new one, or that of the experiment that has this idempotency key."""
    if code is not None:
        put_code(cursor, code, now)
    name, spec_json = clean(spec.name), dumps(spec.to_json())
    state, version = ExperimentState.PENDING.value, SPEC_VERSION
    values = (public_id, name, state, spec_json, version, spec.seed, source, clean(key), spec.code, now)
    cursor.execute(_EXPERIMENT, values)
    if cursor.rowcount == 1:
        return public_id
    [(found, stored)] = cursor.rows("SELECT public_id, spec FROM experiment WHERE idempotency_key = ?", (clean(key),))
    # The files of the code may have been edited since; the request is the same.
    if {**json.loads(stored), **_NOT_ASKED} != {**json.loads(spec_json), **_NOT_ASKED}:
        raise Conflict(f"the idempotency key {key!r} was used before, with another spec")
    return str(found)


def put_code(cursor: Cursor, record: CodeRecord, now: float) -> None:
    cursor.execute(
        _CODE,
        (
            record.hash,
            record.blob,
            record.space_blob,
            record.parts_blob,
            record.python,
            dumps(record.packages),
            dumps(list(record.sys_path)),
            clean(record.working_dir),
            now,
        ),
    )


def adopt(cursor: Cursor, experiment: int) -> None:
    cursor.execute("UPDATE experiment SET source = 'adopted' WHERE id = ? AND source = 'python'", (experiment,))


def claim(cursor: Cursor, experiment: int, owner: str, lease_s: float, now: float) -> int:
    epoch = cursor.value(_CLAIM, (owner, now + lease_s, experiment, now, owner))
    if epoch is not None:
        return int(epoch)
    rows = cursor.rows("SELECT public_id, state, driver_owner FROM experiment WHERE id = ?", (experiment,))
    if not rows:
        raise NotFound(f"no experiment with the internal id {experiment}")
    public, state, holder = rows[0]
    if ExperimentState(state).ended:
        raise Conflict(f"{public} is {state}")
    raise Conflict(f"{public} is driven by {holder}, whose lease has not run out")


def renew(cursor: Cursor, experiment: int, epoch: int, until: float) -> None:
    cursor.execute(_RENEW, (until, experiment, epoch))
    if cursor.rowcount != 1:
        raise LostLease(f"experiment {experiment}: another driver has taken it over (ours was number {epoch})")


def release(cursor: Cursor, experiment: int, epoch: int) -> None:
    cursor.execute(_RELEASE, (experiment, epoch))


def add_command(cursor: Cursor, experiment: int, name: str, trial: int | None, reason: str, now: float) -> int:
    about = -1 if trial is None else trial
    found = cursor.value(_COMMAND_FIND, (experiment, name, about, experiment, about))
    if found is None:
        found = cursor.value(_COMMAND, (experiment, name, trial, clean(reason), now))
    return int(found)


def add_usage(
    cursor: Cursor, experiment: int, samples: Sequence[UsageSample], keep: Mapping[tuple[int, int], int]
) -> None:
    wanted = {(s.trial, s.segment) for s in samples} | keep.keys()
    ids = {key: cursor.value(_SEGMENT, (experiment, *key)) for key in wanted}
    for key, every in keep.items():
        if ids[key] is not None:
            cursor.execute(_USAGE_THIN, (ids[key], every, every))
    rows = [
        (
            ids[s.trial, s.segment],
            s.rank,
            s.sample_no,
            s.time,
            s.cpu_s,
            s.rss_bytes,
            s.gpu_bytes,
            s.gpu_reserved_bytes,
            s.gpu_percent,
        )
        for s in samples
        if ids[s.trial, s.segment] is not None
    ]
    if rows:
        cursor.executemany(_USAGE, rows)
