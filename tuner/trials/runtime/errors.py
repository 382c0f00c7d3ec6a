"""Describe a rank's errors for the driver."""

from __future__ import annotations

import contextlib
import errno
import re
import traceback
from dataclasses import replace
from types import TracebackType

from tuner.domain.segments import NO_SPACE
from tuner.errors import (
    WHAT_TO_DO,
    CheckpointLost,
    CheckpointUnreachable,
    DriverSilent,
    EntrypointError,
    ReportsLost,
    text_of,
)
from tuner.trials.messages.channel import PeerLost
from tuner.trials.messages.lost import unavailable_errors
from tuner.trials.messages.protocol import RankError
from tuner.trials.runtime import rendezvous
from tuner.trials.runtime.sending.logs import OWN
from tuner.trials.training.script import ScriptFailed

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # an escape code for colors in terminals; Ray's messages contain some
_FULL = re.compile(f"{NO_SPACE}|Disk quota exceeded")


def describe(error: BaseException, log_tail: str) -> RankError:
    if isinstance(error, ScriptFailed):
        return _of_script(error, log_tail)
    return RankError(
        type=type(error).__name__,
        message=_COLOUR.sub("", "; ".join((text_of(error) or type(error).__name__, *_notes(error)))),
        traceback=_COLOUR.sub("", _readable(error)),
        log_tail=log_tail,
        cause=_cause(error),
        communication=any(
            isinstance(e, PeerLost) or rendezvous.is_echo(e) for e in (error, error.__cause__) if e is not None
        ),
    )


def _of_script(error: ScriptFailed, log_tail: str) -> RankError:
    """Describe a script's failure by what it wrote to stderr.

    tuner's own traceback is left out, since it is of no use to anyone.
    """
    lines = [line for line in error.said.split("\n") if not line.startswith(WHAT_TO_DO)]
    last = lines[-1].strip() if lines else ""
    message = f"{error.what}: {last}" if last else error.what
    cause = "disk_full" if _FULL.search(last) else error.cause
    return RankError(type="", message=message, traceback=error.said, log_tail=log_tail, cause=cause)


def not_saved(error: Exception) -> RankError:
    """Describe an error that kept a checkpoint from being saved or from being reported to the driver."""
    described = describe(error, "")
    root = error.__cause__ or error
    known = isinstance(root, ReportsLost | DriverSilent) or _is_full_disk(root)
    return replace(described, cause=_cause(root) if known else "checkpoint")


def _cause(error: BaseException) -> str:
    if isinstance(error, CheckpointLost):
        return "disk_lost" if error.node is not None else "checkpoint_lost"
    if isinstance(error, ReportsLost | DriverSilent):
        return "driver_lost"
    if isinstance(error, unavailable_errors()):
        return "actor_unavailable"
    if isinstance(error, CheckpointUnreachable):
        return "checkpoint_unreachable"
    if _is_full_disk(error):
        return "disk_full"
    return "spec" if isinstance(error, EntrypointError) else "exception"


def _is_full_disk(error: BaseException) -> bool:
    """Return whether an error, or what caused it, says that a disk or a quota is full.

    Libraries wrap the error of the operating system, so its text is looked for, too.
    """
    return any(
        (isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT))
        or _FULL.search("\n".join((text_of(e), *_notes(e))))
        for e in (error, error.__cause__)
        if e is not None
    )


def _notes(error: BaseException) -> list[str]:
    with contextlib.suppress(Exception):  # user code may set the attribute to anything
        return [text_of(note) for note in getattr(error, "__notes__", ())]
    return []


def _readable(error: BaseException) -> str:
    """Return the traceback of an error as text, without any leading frames in `tuner.trials`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(OWN):
        trace = trace.tb_next
    return _formatted(error, trace)


def as_text(error: BaseException) -> str:
    """Return an error and its whole traceback as text. This never raises, whatever the error's own methods do."""
    return f"{type(error).__name__}: {text_of(error)}\n{_formatted(error, error.__traceback__)}"


def _formatted(error: BaseException, trace: TracebackType | None) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except Exception:  # an attribute of the error raises
        return "".join((*traceback.format_tb(trace), f"{type(error).__name__}: {text_of(error)}\n"))
