"""The state of Python before and after a trial; each case in a separate process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def twice(trial: str, *, before: str = "", path: Path | None = None) -> str:
    """Run a trial's code twice in a process that is cleaned up after each. Return what it printed."""
    code = (
        "import gc, logging, multiprocessing, os, socket, sys, tempfile\n"
        f"{textwrap.dedent(before)}\n"
        "from tuner.trials.runtime.python_state import PythonState\n"
        "state = PythonState()\n"
        "def trial():\n"
        f"{textwrap.indent(textwrap.dedent(trial), '    ')}\n"
        "for number in range(2):\n"
        "    state.note_loggers()\n"
        "    trial()\n"
        "    state.restore()\n"
        "print('end', flush=True)\n"
    )
    path = str(path) if path is not None else ""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r})\n{code}"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("read", "change"),
    [
        ("multiprocessing.get_start_method(allow_none=True)", "multiprocessing.set_start_method('spawn')"),
        ("sys.getrecursionlimit()", "sys.setrecursionlimit(5000)"),
        ("gc.isenabled()", "gc.disable()"),
        ("gc.get_threshold()", "gc.set_threshold(1, 1, 1)"),
        ("socket.getdefaulttimeout()", "socket.setdefaulttimeout(3)"),
        ("tempfile.tempdir", "tempfile.tempdir = '/nowhere'"),
        ("logging.root.manager.disable", "logging.disable(logging.CRITICAL)"),
        ("oct(os.umask(0o77))", "os.umask(0o2)"),
        ("sys.stdout.name", "sys.stdout = open(os.devnull, 'w')"),
    ],
)
def test_settings_are_those_of_the_first_trial_again(read: str, change: str) -> None:
    """Some can be set only once in a process, such as the start method: a second trial that sets it would fail."""
    first, second, end = twice(f"print({read})\n{change}").splitlines()
    assert (second, end) == (first, "end")


def test_print_is_not_wrapped_again_by_each_trial() -> None:
    """Let only rank 0 print, as many DDP scripts do, by a function around `print`."""
    wrapped = """
    import builtins
    inner = builtins.print
    print(inner is first)
    builtins.print = lambda *words: inner("rank 0:", *words)
    print("hello")
    """
    found = twice(wrapped, before="first = print")
    assert found == "True\nrank 0: hello\n" * 2 + "end\n"


SETS_UP_A_LOGGER = """
logger = logging.getLogger({name!r})
logger.setLevel(logging.INFO)
logger.addHandler(logging.StreamHandler(sys.stdout))
logger.info("a line")
"""


def test_a_logger_that_each_trial_sets_up_logs_each_line_once() -> None:
    assert twice(SETS_UP_A_LOGGER.format(name="mine.train")) == "a line\na line\nend\n"


def test_a_logger_that_a_module_sets_up_keeps_its_handler(tmp_path: Path) -> None:
    """The second trial does not run the module's code again, so it must find the logger as the module has set it up."""
    (tmp_path / "with_logger.py").write_text(f"import logging, sys\n{SETS_UP_A_LOGGER.format(name='with_logger')}")
    trial = "import with_logger\nlogging.getLogger('with_logger').info('again')"
    assert twice(trial, path=tmp_path) == "a line\nagain\nagain\nend\n"
    assert twice(trial, path=tmp_path, before="import with_logger") == "a line\nagain\nagain\nend\n"


def test_a_logger_of_an_installed_library_keeps_its_handler() -> None:
    """Libraries set up their logger once, perhaps only when they are first used."""
    name = "numpy.lazily"
    trial = f"logger = logging.getLogger({name!r})\nif not logger.handlers:\n" + textwrap.indent(
        SETS_UP_A_LOGGER.format(name=name), "    "
    )
    found = twice(f"{trial}\nlogger.info('used')", before="import numpy")
    assert found == "a line\nused\nused\nend\n"
