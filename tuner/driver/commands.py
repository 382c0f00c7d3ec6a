"""Turn the commands of users into events for the driver's loop."""

from __future__ import annotations

import time
from typing import cast

from tuner.domain.events import Amended, Command, Commanded, Event
from tuner.store.records import CommandRecord


def as_event(command: CommandRecord) -> Event:
    """Return the event of a command, dated now."""
    if command.command == "amend":
        return Amended(time=time.time(), changes=command.payload, reason=command.reason)
    name = cast("Command", command.command)
    return Commanded(time=time.time(), command=name, trial=command.trial, reason=command.reason)
