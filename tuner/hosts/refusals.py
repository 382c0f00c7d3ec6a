"""Pass an error that a host raises to the service that asked it, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.errors import Conflict, DriverSilent, Gone, NotFound, SpecError

REFUSALS = (SpecError, Gone, NotFound, Conflict, DriverSilent)
"""The errors with which a host may answer a request that a service has passed on."""


def refusal(error: Exception) -> dict[str, Any]:
    """Return an answer that contains an error. `raised` turns it back into the error."""
    if isinstance(error, SpecError):
        return {"error": "SpecError", "errors": error.errors}
    return {"error": type(error).__name__, "detail": str(error)}


def raised(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer that `AgentGroups.answer` or `Host.profile` gave. If it contains an error, raise that error instead."""
    match answer.get("error"):
        case None:
            return answer
        case "SpecError":
            raise SpecError([(str(pointer), str(message)) for pointer, message in answer["errors"]])
        case "NotFound":
            raise NotFound(answer["detail"])
        case "Gone":
            raise Gone(answer["detail"])
        case "DriverSilent":
            raise DriverSilent(answer["detail"])
        case _:
            raise Conflict(answer["detail"])
