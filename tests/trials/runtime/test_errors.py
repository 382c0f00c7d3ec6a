"""The driver gets an error of a rank as plain text."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tuner.trials.runtime.errors import describe


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
    ],
    ids=["text", "notes", "no list"],
)
def test_an_error_with_an_odd_text_or_odd_notes_is_described(error: Exception, message: str) -> None:
    try:
        raise error
    except Exception as raised:
        found = describe(raised, "")
    assert (found.type, found.message) == (type(error).__name__, message)
    assert "in test_an_error_with_an_odd_text_or_odd_notes_is_described" in found.traceback
    assert type(error).__name__ in found.traceback


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
