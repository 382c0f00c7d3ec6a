"""An event, a decision, an action or a command that is handled nowhere is a type error."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.domain import decisions, events

PACKAGE = Path(events.__file__).parents[1]


@pytest.mark.parametrize(("module", "union"), [(events, events.Event), (decisions, decisions.Decision)])
def test_everything_with_a_kind_is_in_the_union_and_can_be_read_back(module: object, union: object) -> None:
    classes = {thing for name, thing in vars(module).items() if hasattr(thing, "KIND") and not name.startswith("_")}
    assert classes == set(union.__args__)  # type: ignore[attr-defined]
    assert {cls.KIND for cls in classes} == set(module._KINDS)  # type: ignore[attr-defined]


NEWCOMERS = [
    (
        "domain/events.py",
        "Event = (\n    DriverStarted",
        'class NewEvent(_Event):\n    KIND = "new"\n\n\nEvent = (\n    NewEvent\n    | DriverStarted',
    ),
    (
        "domain/events.py",
        'Command = Literal["pause",',
        'Command = Literal["new", "pause",',
    ),
    (
        "domain/decisions.py",
        "Decision = Start |",
        'class NewDecision(_Decision):\n    KIND = "new"\n    trial: int\n\n\nDecision = NewDecision | Start |',
    ),
    (
        "driver/core/actions.py",
        "Action = RunSegment |",
        "class NewAction:\n    pass\n\n\nAction = NewAction | RunSegment |",
    ),
]
EXPECTED = {
    ("NewEvent", "driver/core/state/state.py"),
    ("NewEvent", "driver/core/decider.py"),
    ("NewDecision", "driver/core/state/state.py"),
    ("NewEvent | NewDecision", "driver/loop.py"),
    ("NewAction", "driver/loop.py"),
    ("NewAction", "driver/virtual_loop.py"),
    ("Literal['new']", "driver/core/state/commands.py"),
    ("Literal['new']", "driver/core/rules/commands.py"),
}


@pytest.mark.slow
def test_mypy_names_every_place_that_does_not_handle_a_newcomer(tmp_path: Path) -> None:
    """Add a member to each union in a copy of the package, and run mypy on the copy."""
    shutil.copytree(PACKAGE, tmp_path / "tuner", ignore=shutil.ignore_patterns("_web", "__pycache__"))
    for path, old, new in NEWCOMERS:
        file = tmp_path / "tuner" / path
        before = file.read_text()
        assert before.count(old) == 1, f"{old!r} is written differently in {path}"
        file.write_text(before.replace(old, new))
    said = _mypy(tmp_path)
    pattern = r'tuner/(\S+?):\d+: error: Argument 1 to "assert_never" has incompatible type "(.+?)"; expected "Never"'
    assert {(kind, path) for path, kind in re.findall(pattern, said)} == EXPECTED, said


def _mypy(root: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version=3.11", "--follow-imports=skip"]
    targets = ["tuner/domain", "tuner/driver/core", "tuner/driver/loop.py", "tuner/driver/virtual_loop.py"]
    done = subprocess.run(
        [*command, *targets], cwd=root, env={"PATH": "", "MYPYPATH": "."}, capture_output=True, text=True
    )
    return done.stdout + done.stderr
