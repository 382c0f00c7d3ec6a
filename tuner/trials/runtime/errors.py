"""Describe a rank's errors for the driver."""

from __future__ import annotations

import contextlib
import errno
import re
import traceback
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType

from tuner.domain.segments import IN_SAVE, NO_SPACE, NOT_MOUNTED, UNWRITABLE
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
_SYSTEM = f"{NO_SPACE}|Disk quota exceeded"
_HALF_WRITTEN = r"inline_container\.cc.{0,80}unexpected pos \d+ vs \d+|\b\d+ requested and \d+ written\b"
_FULL = re.compile(f"{_SYSTEM}|{_HALF_WRITTEN}")
"""Matches the text of an error that says that a disk is full.

`torch.save` and numpy's `tofile` say only that less was written than they had asked for, without the reason.
"""
_LED_TO = "^(?:During handling of the above exception|The above exception was the direct)"
_LED_TO_ANOTHER = re.compile(rf"(?:{_SYSTEM}).*\n+{_LED_TO}", re.MULTILINE)
"""Matches an error about a full disk in a traceback that continues with another error, to which it led."""

_RANK = re.compile(r"^\[rank\d+\]: ", re.MULTILINE)
"""Matches what torch writes before each line of a traceback once the ranks of a script are connected."""

_FRAME_OF_TORCH = "frame #"  # some versions of torch print its C++ stack after the message

MESSAGE, TRACEBACK = 10_000, 200_000
"""The maximum number of characters of a message and of a traceback. They are stored with the trial, and shown in many places."""

PROBABLY_FULL = "the file could not be written as a whole: its disk is probably full, or a quota is used up"


def describe(error: BaseException, log_tail: str) -> RankError:
    if isinstance(error, ScriptFailed):
        return _of_script(error, log_tail)
    cause, notes = _cause(error), [*_led_to_exit(error, log_tail), *_notes(error)]
    if cause in ("disk_full", "storage"):  # the docs about this cause say more than those about the error's class
        notes = [note for note in notes if not note.startswith(WHAT_TO_DO)]
    return RankError(
        type=type(error).__name__,
        message=_cut(_COLOUR.sub("", _explained("; ".join((text_of(error) or type(error).__name__, *notes)))), MESSAGE),
        traceback=_cut(_COLOUR.sub("", _readable(error)), TRACEBACK),
        log_tail=log_tail,
        cause=cause,
        communication=any(
            isinstance(e, PeerLost) or rendezvous.is_echo(e) for e in (error, error.__cause__) if e is not None
        ),
    )


def _of_script(error: ScriptFailed, log_tail: str) -> RankError:
    """Describe a script's failure by what it wrote to stderr.

    tuner's own traceback is left out, since it is of no use to anyone.
    """
    left_out = (WHAT_TO_DO, IN_SAVE, _FRAME_OF_TORCH)
    lines = [line for line in error.said.split("\n") if not _RANK.sub("", line).startswith(left_out)]
    last = lines[-1].strip() if lines else ""
    message = _explained(f"{error.what}: {last}" if last else error.what)
    is_full = _FULL.search(last) or _led_to_end(_RANK.sub("", error.said))
    cause = "disk_full" if is_full else "storage" if UNWRITABLE in last else error.cause
    said = _cut(error.said, TRACEBACK)
    return RankError(type="", message=_cut(message, MESSAGE), traceback=said, log_tail=log_tail, cause=cause)


def _cut(text: str, most: int) -> str:
    """Return a text of at most `most` characters. A longer one loses its middle: its end has notes, and what to do."""
    if len(text) <= most:
        return text
    kept = most // 2 - 50
    return f"{text[:kept]}... [{len(text) - 2 * kept} characters are left out] ...{text[-kept:]}"


def _led_to_end(said: str) -> bool:
    """Return whether an error about a full disk led to the one that ended a script, and not only to one that it has logged."""
    for found in _LED_TO_ANOTHER.finditer(said):
        rest = said[found.end() :]
        led = len(re.findall(_LED_TO, rest, re.MULTILINE))
        if len(re.findall(r"^Traceback \(", rest, re.MULTILINE)) <= led + 1:
            return True
    return False


def _explained(message: str) -> str:
    """Add the probable reason to the message of a library that has written only a part of a file and does not say why."""
    return (
        f"{message}; {PROBABLY_FULL}"
        if re.search(_HALF_WRITTEN, message) and not re.search(_SYSTEM, message)
        else message
    )


def not_saved(error: Exception) -> RankError:
    """Describe an error that kept a checkpoint from being saved or from being reported to the driver."""
    described = describe(error, "")
    root = error.__cause__ or error
    known = isinstance(root, ReportsLost | DriverSilent) or _is_full_disk(root) or _is_of_storage(root)
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
    if _is_of_storage(error):
        return "storage"
    return "spec" if isinstance(error, EntrypointError) else "exception"


def _is_full_disk(error: BaseException) -> bool:
    """Return whether an error, or what caused it, says that a disk or a quota is full.

    Libraries wrap the error of the operating system, or raise another one while they handle it. So its text is looked for, too.
    """
    return any(
        (isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT))
        or _FULL.search("\n".join((text_of(e), *_notes(e))))
        for e in _with_causes(error)
    )


def _is_of_storage(error: BaseException) -> bool:
    """Return whether an error, or what caused it, says that the storage of the checkpoints cannot be written, or is not there."""
    return any(words in text_of(e) for e in _with_causes(error) for words in (UNWRITABLE, NOT_MOUNTED))


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it, as a traceback shows them."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        yield found
        seen.add(id(found))
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _notes(error: BaseException) -> list[str]:
    with contextlib.suppress(Exception):  # user code may set the attribute to anything
        return [text_of(note) for note in getattr(error, "__notes__", ())]
    return []


def _led_to_exit(error: BaseException, log_tail: str) -> list[str]:
    """Return what led to the end of a process by a parser of command lines, whose error itself says only ``SystemExit: 2``.

    This is the error that the parser has handled or, if there is none, the last line that it has printed.
    """
    if not isinstance(error, SystemExit):
        return []
    if (before := error.__context__) is not None:
        return [f"after {type(before).__name__}: {text_of(before)}"]
    printed = log_tail.strip().rpartition("\n")[2].strip()
    return [f"after the output {printed!r}"] if printed and isinstance(error.code, int) else []


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
        return text_of("".join(traceback.format_exception(type(error), error, trace)))
    except Exception:  # an attribute of the error raises
        return "".join((*traceback.format_tb(trace), f"{type(error).__name__}: {text_of(error)}\n"))
