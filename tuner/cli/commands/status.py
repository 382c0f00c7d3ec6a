"""The exit status of a command that has failed."""

from __future__ import annotations

from tuner.errors import ClusterUnreachable, Conflict, NotAllowed, NotFound, Retryable, SpecError, TunerError

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (SpecError, 2),
    (NotFound, 3),
    (NotAllowed, 4),
    (Conflict, 5),
    (Retryable, 6),
    (ClusterUnreachable, 6),
)
"""(error class, exit status). The first matching class applies. For all other errors, the status is 1; see docs/cli.md."""


def exit_code(error: TunerError) -> int:
    """Return the exit status of a command that has raised this error."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)
