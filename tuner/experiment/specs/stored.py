"""Refuse what needs the whole spec of an experiment if it has something that this version does not know."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.errors import Conflict, NewerLog
from tuner.store import ExperimentRecord


def check_driven(record: ExperimentRecord) -> None:
    """Raise NewerLog if this version cannot read the whole spec, or the state: a driver would ignore what it cannot read."""
    if (why := record.why_undrivable) is not None:
        raise NewerLog(why)


def check_changed(record: ExperimentRecord, changes: Iterable[str]) -> None:
    """Raise Conflict if this version cannot read an option or a section to be changed, or cannot read the spec at all."""
    if {"spec", "changes"}.intersection(record.damaged) or set(changes).intersection(record.unknown):
        raise Conflict(f"{record.public_id} cannot be changed: {record.why_incomplete}")


def check_copied(record: ExperimentRecord) -> None:
    """Raise Conflict if this version cannot read the whole spec: a copy would lack what it cannot read."""
    if (why := record.why_incomplete) is not None:
        raise Conflict(f"{record.public_id}: {why}")
