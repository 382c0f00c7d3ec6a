"""The driver gets an error of a rank as plain text."""

from __future__ import annotations

from tuner.trials.runtime.errors import describe


def test_codes_for_colours_of_a_terminal_are_left_out() -> None:
    try:
        raise RuntimeError("\x1b[36mray::Actor.__init__()\x1b[39m (pid=7) died\n\x1b[1;31mbadly\x1b[0m")
    except RuntimeError as error:
        found = describe(error, "")
    assert found.message == "ray::Actor.__init__() (pid=7) died\nbadly"
    assert "\x1b" not in found.traceback
    assert found.traceback.endswith("RuntimeError: ray::Actor.__init__() (pid=7) died\nbadly\n"), found.traceback
