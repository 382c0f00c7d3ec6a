"""Refuse what needs the whole spec of an experiment if it has something that this version does not know."""

from __future__ import annotations

from tuner.errors import Conflict, NewerLog
from tuner.store import ExperimentRecord


def check_driven(record: ExperimentRecord) -> None:
    """Raise NewerLog if this version cannot read the whole spec, or the state: a driver would ignore what it cannot read."""
    if (why := record.why_undrivable) is not None:
        raise NewerLog(why)


def check_copied(record: ExperimentRecord) -> None:
    """Raise Conflict if this version cannot read the whole spec: a copy would lack what it cannot read."""
    if (why := record.why_incomplete) is not None:
        raise Conflict(f"{record.public_id}: {why}")
