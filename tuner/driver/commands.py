"""Turn users' commands into events for the driver's loop."""

from __future__ import annotations

import time
from typing import cast

from tuner.domain.events import Amended, Command, Commanded, Enqueued, Event, Pinned
from tuner.store.records import CommandRecord


def as_event(command: CommandRecord) -> Event:
    """Return the event that tells an experiment's core about a user's command, with the current time."""
    if command.command == "amend":
        return Amended(time=time.time(), changes=command.payload, reason=command.reason)
    if command.command == "enqueue":
        return Enqueued(time=time.time(), points=command.payload["points"], reason=command.reason)
    if command.command == "pin":
        payload = command.payload
        return Pinned(time=time.time(), checkpoint=payload["checkpoint"], pinned=payload["pinned"])
    name = cast("Command", command.command)
    for_trials = bool(command.payload.get("for_trials"))
    return Commanded(time=time.time(), command=name, trial=command.trial, reason=command.reason, for_trials=for_trials)
