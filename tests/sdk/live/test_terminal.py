"""Tests that a search continues if its output cannot be written."""

import io
import os

import pytest

from tuner.sdk.live import terminal
from tuner.sdk.live.terminal import LastingConsole, tell


class Full(io.StringIO):
    """A stream whose disk is full."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_told", set())


def test_output_for_a_full_disk_is_dropped_and_stderr_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    full = Full()
    console = LastingConsole(file=full)
    console.print("running")
    console.print("completed")
    tell("a note", full)
    assert capsys.readouterr().err == "the search continues, but its output is lost: No space left on device\n"


def test_a_device_without_room_raises_nothing_when_it_is_flushed() -> None:
    with open(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0) as device:
        full = io.TextIOWrapper(io.BufferedWriter(device), encoding="utf-8")
        LastingConsole(file=full).print("running")
        tell("a note", full)
        with pytest.raises(OSError, match="No space left"):  # what is buffered
            full.close()


def test_characters_that_the_encoding_lacks_are_escaped() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    LastingConsole(file=stream).print("süß")
    tell("Größe", stream)
    assert written.getvalue() == b"s\\xfc\\xdf\nGr\\xf6\\xdfe\n"


def test_output_for_a_stream_that_the_script_has_closed_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    closed = io.StringIO()
    closed.close()
    LastingConsole(file=closed).print("running")
    tell("a note", closed)
    assert capsys.readouterr().err == "the search continues, but its output is lost: I/O operation on closed file\n"


def test_what_comes_later_is_written_again_once_there_is_room() -> None:
    written = io.StringIO()
    console = LastingConsole(file=Full())
    console.print("lost")
    console.file = written
    console.print("kept")
    assert written.getvalue() == "kept\n"
