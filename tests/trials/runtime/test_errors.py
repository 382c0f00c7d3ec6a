"""The driver gets an error of a rank as plain text."""

from __future__ import annotations

import argparse
import contextlib
import errno
from typing import Any

import pytest

from tuner.domain.segments import IN_SAVE, NO_SPACE, UNWRITABLE
from tuner.errors import CheckpointError
from tuner.trials.runtime.errors import MESSAGE, TRACEBACK, describe, not_saved
from tuner.trials.training.script import ScriptFailed


class Odd(Exception):
    def __str__(self) -> str:
        return str(self.nowhere)  # type: ignore[attr-defined]


class OddNotes(Exception):
    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no notes")


def with_notes(notes: Any) -> Exception:
    error = ValueError("badly")
    error.__notes__ = notes
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Odd(), "<Odd.__str__ raised AttributeError>"),
        (with_notes([1, "two", Odd()]), "badly; 1; two; <Odd.__str__ raised AttributeError>"),
        (with_notes(7), "badly"),
        (ValueError("no \udce9.txt"), r"no \udce9.txt"),
    ],
    ids=["text", "notes", "no list", "surrogate"],
)
def test_an_error_with_an_odd_text_or_odd_notes_is_described(error: Exception, message: str) -> None:
    try:
        raise error
    except Exception as raised:
        found = describe(raised, "")
    assert (found.type, found.message) == (type(error).__name__, message)
    assert "in test_an_error_with_an_odd_text_or_odd_notes_is_described" in found.traceback
    assert type(error).__name__ in found.traceback
    assert found.traceback.encode(), "it can be stored and shown"


def test_a_parser_of_command_lines_that_ends_the_process_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """The trial's error was only "2". What the parser had written was in the log, far above the end of the traceback."""
    parser = argparse.ArgumentParser(prog="train")
    parser.add_argument("--lr", type=float)
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["--lr=fast"])
    printed = capsys.readouterr().err
    message = describe(caught.value, printed).message
    assert message == "2; after ArgumentError: argument --lr: invalid float value: 'fast'"
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["--rate=1"])
    printed = capsys.readouterr().err
    message = describe(caught.value, printed).message
    assert message == "2; after the output 'train: error: unrecognized arguments: --rate=1'"
    assert describe(SystemExit("no data"), printed).message == "no data"


def test_a_huge_error_keeps_its_begin_and_its_end() -> None:
    """A message of 20 MB, such as a printed array, was stored and shown as a whole. The search took 17 s for it."""
    try:
        raise with_notes(["save less"]) from ValueError("x" * 1_000_000)
    except ValueError as raised:
        raised.args = ("y" * 1_000_000,)
        found = describe(raised, "")
    script = describe(ScriptFailed("exit status 1", f"Traceback\n{'z' * 1_000_000}: bad"), "")
    for one, begin, end in ((found, "yyy", "; save less"), (script, "exit status 1: zzz", "zzz: bad")):
        assert len(one.message) <= MESSAGE
        assert (one.message.startswith(begin), one.message.endswith(end)) == (True, True)
        assert " characters are left out] ..." in one.message
        assert len(one.traceback) <= TRACEBACK
        assert one.traceback.rstrip("\n").endswith(end.removeprefix("; "))


def test_an_error_whose_notes_raise_is_described() -> None:
    found = None
    try:
        raise OddNotes("badly")
    except OddNotes as raised:
        with contextlib.suppress(RuntimeError):  # pytest cannot show such an error
            found = describe(raised, "")
    assert found is not None
    assert found.message == "badly"
    assert "in test_an_error_whose_notes_raise_is_described" in found.traceback
    since_3_13 = "Ignored error getting __notes__: RuntimeError('no notes')\n"
    shown = found.traceback.removesuffix(since_3_13)
    assert shown.endswith("OddNotes: badly\n")


def test_codes_for_colours_of_a_terminal_are_left_out() -> None:
    try:
        raise RuntimeError("\x1b[36mray::Actor.__init__()\x1b[39m (pid=7) died\n\x1b[1;31mbadly\x1b[0m")
    except RuntimeError as error:
        found = describe(error, "")
    assert found.message == "ray::Actor.__init__() (pid=7) died\nbadly"
    assert "\x1b" not in found.traceback
    assert found.traceback.endswith("RuntimeError: ray::Actor.__init__() (pid=7) died\nbadly\n"), found.traceback


def caused(error: Exception, by: Exception) -> Exception:
    error.__cause__ = by
    return error


def met(error: Exception, before: Exception) -> Exception:
    error.__context__ = before
    return error


TORCH = "[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"
DURING = "During handling of the above exception, another exception occurred:\nTraceback (most recent call last):"

LOGGED = f"OSError: [Errno 28] {NO_SPACE}\n{DURING}\nRuntimeError: the cache cannot be written"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOSPC, "Kein Platz mehr"), "disk_full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk_full"),
        (RuntimeError("write(): fd 3 failed with No space left on device"), "disk_full"),
        (caused(RuntimeError("not saved"), OSError(errno.ENOSPC, "No space left on device")), "disk_full"),
        (with_notes(["No space left on device: 0 bytes are left on the disk of /scratch"]), "disk_full"),
        (OSError(errno.EACCES, "Permission denied"), "exception"),
        (MemoryError("no space left"), "exception"),
        (ScriptFailed("exit status 1", "Traceback ...\nOSError: [Errno 28] No space left on device"), "disk_full"),
        (ScriptFailed("exit status 1", "No space left on device, so I wait\nValueError: no"), "script"),
        (RuntimeError(TORCH), "disk_full"),
        (OSError("200000 requested and 8176 written"), "disk_full"),
        (ScriptFailed("exit status 1", f"Traceback ...\nRuntimeError: {TORCH}\nframe #0: c10::Throw"), "disk_full"),
        (ScriptFailed("exit status 1", "Traceback ...\nOSError: 200000 requested and 8176 written"), "disk_full"),
        (met(RuntimeError("not saved"), OSError(errno.ENOSPC, "No space left on device")), "disk_full"),
        (ScriptFailed("exit status 1", f"OSError: [Errno 28] {NO_SPACE}\n{DURING}\nRuntimeError: not"), "disk_full"),
        (ScriptFailed("exit status 1", f"{LOGGED}\nTraceback (most recent call last):\nValueError: no"), "script"),
        (ScriptFailed("exit status 1", f"{LOGGED}\n{DURING}\nValueError: no"), "disk_full"),
        (met(ValueError("no"), MemoryError("no space left")), "exception"),
    ],
)
def test_a_full_disk_is_a_cause_of_its_own(error: Exception, cause: str) -> None:
    assert describe(error, "").cause == cause


def test_a_checkpoint_that_finds_no_room_has_this_cause_too() -> None:
    full = caused(CheckpointError("not saved"), OSError(errno.ENOSPC, "No space left on device"))
    assert (not_saved(full).cause, not_saved(CheckpointError("torn")).cause) == ("disk_full", "checkpoint")


def test_a_storage_that_cannot_be_written_is_a_cause_of_its_own() -> None:
    refused = OSError(f"[Errno 30] Read-only file system: '/nfs/a'; {UNWRITABLE} /nfs")
    assert describe(refused, "").cause == "storage"
    later = caused(CheckpointError(f"a checkpoint could not be saved: {refused}"), refused)
    assert (not_saved(later).cause, describe(later, "").cause) == ("storage", "storage")
    assert describe(later, "").message == str(later), "it names no other section of the docs"
    assert describe(ScriptFailed("exit status 1", f"Traceback ...\nRuntimeError: {refused}"), "").cause == "storage"
    assert describe(ScriptFailed("exit status 1", f"{refused}\nValueError: no"), "").cause == "script"


def test_the_error_of_a_script_is_found_before_which_torch_has_written_the_rank() -> None:
    """The note on an error of a save function took the place of its message, and hid that the disk was full."""
    said = ["Traceback ...", f"OSError: [Errno 28] {NO_SPACE}", IN_SAVE]
    found = describe(ScriptFailed("exit status 1", "\n".join(f"[rank0]: {line}" for line in said)), "")
    assert (found.message, found.cause) == (f"exit status 1: [rank0]: {said[1]}", "disk_full")
    said = [f"OSError: [Errno 28] {NO_SPACE}", *DURING.split("\n"), "RuntimeError: not saved"]
    found = describe(ScriptFailed("exit status 1", "\n".join(f"[rank0]: {line}" for line in said)), "")
    assert found.cause == "disk_full"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(TORCH),
        ScriptFailed("exit status 1", f"Traceback ...\nRuntimeError: {TORCH}\nframe #0: c10::Throw"),
        OSError("200000 requested and 8176 written"),
    ],
)
def test_a_file_that_was_half_written_says_that_its_disk_is_probably_full(error: Exception) -> None:
    """It said only "unexpected pos 576 vs 534"."""
    said = "the file could not be written as a whole: its disk is probably full, or a quota is used up"
    assert describe(error, "").message.endswith(f"; {said}")
    error.add_note(f"{NO_SPACE}: 0 bytes are left on the disk of /scratch")
    if not isinstance(error, ScriptFailed):
        assert said not in describe(error, "").message
