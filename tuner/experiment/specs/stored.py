"""Refuse what needs the whole spec of an experiment if a newer version has written options that this one does not know."""

from __future__ import annotations

from tuner.errors import Conflict, NewerLog, unknown_options
from tuner.store import ExperimentRecord


def check_driven(record: ExperimentRecord) -> None:
    """Raise NewerLog if the spec has options that this version does not know: a driver of this version would ignore them."""
    if record.unknown:
        raise NewerLog(unknown_options(record.unknown))


def check_copied(record: ExperimentRecord) -> None:
    """Raise Conflict if the spec has options that this version does not know: a copy would lack them."""
    if record.unknown:
        raise Conflict(f"{record.public_id}: {unknown_options(record.unknown)}")
