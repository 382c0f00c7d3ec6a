"""The state of Python before and after a trial; each case in a separate process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def twice(trial: str, *, before: str = "", imports: str = "", path: Path | None = None) -> str:
    """Run a trial's code twice in a process that is cleaned up after each. Return what it printed.

    before: code that runs before the state is read.
    imports: the code of the user's module, which runs once, before the first trial.
    """
    code = (
        "import gc, logging, multiprocessing, os, signal, socket, sys, tempfile, time\n"
        f"{textwrap.dedent(before)}\n"
        "from tuner.trials.runtime.python_state import PythonState\n"
        "state = PythonState()\n"
        "settings = state.read()\n"
        f"{textwrap.dedent(imports)}\n"
        "state.adopt(settings)\n"
        "def trial():\n"
        f"{textwrap.indent(textwrap.dedent(trial), '    ')}\n"
        "for number in range(2):\n"
        "    state.handlers.begin_trial()\n"
        "    trial()\n"
        "    result = state.restore() or 'restored'\n"
        "    print(result, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(path or '')!r})\n{code}"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


SETTINGS = [
    ("multiprocessing.get_start_method(allow_none=True)", "multiprocessing.set_start_method('spawn')"),
    ("sys.getrecursionlimit()", "sys.setrecursionlimit(5000)"),
    ("gc.isenabled()", "gc.disable()"),
    ("gc.get_threshold()", "gc.set_threshold(1, 1, 1)"),
    ("socket.getdefaulttimeout()", "socket.setdefaulttimeout(3)"),
    ("tempfile.tempdir", "tempfile.tempdir = '/nowhere'"),
    ("logging.root.manager.disable", "logging.disable(logging.CRITICAL)"),
    ("logging.root.level", "logging.basicConfig(level=1)"),
    ("'of-the-trial' in sys.path", "sys.path.append('of-the-trial')"),
    ("sys.argv[1:]", "sys.argv.append('of-the-trial')"),
    ("os.environ.get('OF_THE_TRIAL')", "os.environ['OF_THE_TRIAL'] = 'x'"),
    ("sys.displayhook.__name__", "sys.displayhook = len"),
    ("time.localtime(0).tm_hour", "os.environ['TZ'] = 'XYZ-9'; time.tzset()"),
    ("os.umask(0o077)", "os.umask(0o077)"),
    ("signal.getitimer(signal.ITIMER_REAL)[0] > 0", "signal.alarm(1000)"),
    ("signal.getitimer(signal.ITIMER_PROF)[0] > 0", "signal.setitimer(signal.ITIMER_PROF, 1000, 1000)"),
]


@pytest.mark.parametrize(("read", "change"), SETTINGS)
def test_a_setting_is_that_of_the_first_trial_again(read: str, change: str) -> None:
    """Some can be set only once in a process, such as the start method: a second trial that sets it would fail."""
    first, restored, second, _ = twice(f"print({read})\n{change}").splitlines()
    assert (second, restored) == (first, "restored")


@pytest.mark.parametrize(("read", "change"), SETTINGS)
def test_a_setting_that_a_module_makes_when_it_is_imported_stays(read: str, change: str) -> None:
    """The module is imported once for all trials of the process."""
    first, restored, second, _ = twice(f"print({read})", imports=f"default = {read}\n{change}").splitlines()
    assert (second, restored) == (first, "restored")
    default, _, _, _ = twice(f"print({read})").splitlines()
    assert first != default


STREAMS = [
    "sys.stdout = open(os.devnull, 'w')",
    "sys.stdout = open(sys.stdout.fileno(), 'w', buffering=1, closefd=False)",
    "import io; sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8', line_buffering=True)",
    "sys.stdout = os.fdopen(sys.stdout.fileno(), 'w', 1)",
]


@pytest.mark.parametrize("change", STREAMS)
def test_a_stream_that_a_trial_replaces_is_restored_and_works(change: str) -> None:
    """A wrapper that is freed would close the file that it shares with the stream that is restored."""
    assert twice(f"print('hello', flush=True)\n{change}") == "hello\nrestored\n" * 2


@pytest.mark.parametrize("change", STREAMS[1:])
def test_a_stream_that_a_module_replaces_stays(change: str) -> None:
    assert twice("print('hello', flush=True)", imports=change) == "hello\nrestored\n" * 2


def test_a_process_whose_output_a_trial_has_detached_is_not_used_again() -> None:
    found = twice("if number == 0:\n    sys.stderr.detach()")
    assert found.startswith("its sys.stderr cannot be used any more (")


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
    assert found == "True\nrank 0: hello\nrestored\n" * 2


SETS_UP_A_LOGGER = """
logger = logging.getLogger({name!r})
logger.setLevel(logging.INFO)
logger.addHandler(logging.StreamHandler(sys.stdout))
logger.info("a line")
"""


def test_a_logger_that_each_trial_sets_up_logs_each_line_once() -> None:
    assert twice(SETS_UP_A_LOGGER.format(name="mine.train")) == "a line\nrestored\n" * 2


def test_a_trial_may_add_several_handlers_to_a_logger() -> None:
    both = SETS_UP_A_LOGGER.format(name="mine.train") + SETS_UP_A_LOGGER.format(name="mine.train")
    assert twice(both) == ("a line\n" * 3 + "restored\n") * 2


def test_a_handler_of_an_earlier_trial_that_cannot_be_flushed_is_removed(tmp_path: Path) -> None:
    trial = f"""
    with open({str(tmp_path / "log")!r}, "a") as file:
        logging.getLogger("x").addHandler(hdlr=logging.StreamHandler(file))
        logging.getLogger("x").warning("line")
    """
    assert twice(trial) == "restored\n" * 2
    assert (tmp_path / "log").read_text() == "line\n" * 2


def test_a_logger_that_a_module_sets_up_keeps_its_handler() -> None:
    trial = "logging.getLogger('mine').info('again')"
    assert twice(trial, imports=SETS_UP_A_LOGGER.format(name="mine")) == "a line\n" + "again\nrestored\n" * 2


def test_a_logger_that_is_set_up_in_the_first_trial_for_all_trials_keeps_its_handler(tmp_path: Path) -> None:
    """Libraries do so when they are first used or imported, and functions whose result is cached."""
    (tmp_path / "with_logger.py").write_text(f"import logging, sys\n{SETS_UP_A_LOGGER.format(name='of-a-library')}")
    trial = "import with_logger\nlogging.getLogger('of-a-library').info('again')"
    assert twice(trial, path=tmp_path) == "a line\nagain\nrestored\nagain\nrestored\n"
    cached = """
    import functools

    @functools.cache
    def get_logger():
        logger = logging.getLogger("cached")
        logger.setLevel(logging.INFO)
        logger.addHandler(logging.StreamHandler(sys.stdout))
        return logger
    """
    assert twice("get_logger().info('a line')", imports=cached) == "a line\nrestored\n" * 2


def test_a_process_is_used_again_although_its_first_working_directory_is_deleted(tmp_path: Path) -> None:
    """A host that is kept between two searches forks processes in the directory of the first, such as a temporary one."""
    first, trials = tmp_path / "first", tmp_path / "trials"
    first.mkdir()
    trials.mkdir()
    trial = f"print(os.getcwd())\nos.chdir({str(trials)!r})"
    gone = f"os.chdir({str(first)!r})\nos.rmdir({str(first)!r})"
    assert twice(trial, before=gone) == "/\nrestored\n" * 2
    first.mkdir()
    assert twice(f"{trial}\nif number == 0: os.rmdir({str(first)!r})", before=f"os.chdir({str(first)!r})") == (
        f"{first}\nrestored\n/\nrestored\n"
    )


def test_a_traceback_that_a_trial_wants_later_does_not_end_the_next_trial() -> None:
    cancelled = "import faulthandler\nfaulthandler.cancel_dump_traceback_later = lambda: print('cancelled')"
    assert twice("faulthandler.dump_traceback_later(1000, exit=True)", before=cancelled) == "cancelled\nrestored\n" * 2
