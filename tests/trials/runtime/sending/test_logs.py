from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.trials.runtime.sending.logs import SIGTERM_NOTE, tail


def script(text: str, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run Python code, with the path of a log as its argument. Its output is buffered unless an option says otherwise."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, *options, "-c", text, str(tmp_path / "log")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_output_to_the_original_streams_of_the_process_is_in_the_log(tmp_path: Path) -> None:
    """`keep_printing` replaces the streams, and what they had buffered came after the segment."""
    done = script(
        "import sys\n"
        "from tuner.trials.runtime.sending.logs import Capture, keep_printing\n"
        "keep_printing(); capture = Capture(sys.argv[1]); capture.begin()\n"
        "sys.__stdout__.write('no newline'); capture.end(); print('after')\n",
        tmp_path,
    )
    assert (done.stdout, done.stderr, (tmp_path / "log").read_text()) == ("after\n", "", "no newline")


def test_output_goes_to_the_file_and_back_again(tmp_path: Path) -> None:
    done = script(
        "import os, sys\n"
        "from tuner.trials.runtime.sending.logs import Capture\n"
        "print('before')\n"
        "capture = Capture(sys.argv[1]); capture.begin()\n"
        "print('python'); print('error', file=sys.stderr); os.system('echo child')\n"
        "capture.end(); capture.end(); print('after')\n",
        tmp_path,
    )
    assert done.stdout.split() == ["before", "after"], done.stderr
    assert sorted((tmp_path / "log").read_text().split()) == ["child", "error", "python"]


AS_RAY_DOES = """
import sys
class Unbuffered:
    def __init__(self, stream): self.stream = stream
    def write(self, text): self.stream.write(text); self.stream.flush()
    def __getattr__(self, name): return getattr(self.stream, name)
sys.stdout, sys.stderr = Unbuffered(sys.stdout), Unbuffered(sys.stderr)
"""


WITH_ROOM = """
import resource, sys
from tuner.trials.runtime.sending.logs import Capture, keep_printing
def room(size): resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
keep_printing(); capture = Capture(sys.argv[1]); capture.begin()
"""


@pytest.mark.parametrize(("options", "begin"), [([], ""), (["-u"], ""), ([], AS_RAY_DOES)])
def test_output_for_which_the_disk_has_no_room_is_dropped_and_said(
    tmp_path: Path, options: list[str], begin: str
) -> None:
    """A full disk failed every trial that printed something."""
    text = (
        f"{begin}{WITH_ROOM}"
        "print('first'); room(len('first\\n'))\n"
        "print('x' * 99); print('y' * 9, file=sys.stderr); print('z' * 99)\n"
        "room(10_000); print('later'); print('last'); print('error', file=sys.stderr)\n"
        "capture.end(); print('after')\n"
    )
    done = script(text, tmp_path, *options)
    assert (done.stdout, done.stderr) == ("after\n", "")
    said = [line for line in (tmp_path / "log").read_text().splitlines() if line]
    of_stdout, of_stderr = (f"[{size} bytes of output are missing, since the disk was full]" for size in (200, 10))
    assert said == ["first", of_stdout, "later", "last", of_stderr, "error"]


@pytest.mark.parametrize(("options", "begin"), [([], ""), (["-u"], ""), ([], AS_RAY_DOES)])
def test_what_is_missing_includes_the_rest_of_a_line_that_is_cut(
    tmp_path: Path, options: list[str], begin: str
) -> None:
    text = (
        f"{begin}{WITH_ROOM}"
        "room(20); sys.stdout.write('x' * 50 + '\\n')\n"
        "room(30); sys.stdout.write('y' * 9 + '\\n')\n"
        "room(10_000); sys.stdout.write('later\\n')\n"
        "capture.end()\n"
    )
    done = script(text, tmp_path, *options)
    assert (done.stdout, done.stderr) == ("", "")
    cut, later, end = "\n[31 bytes", "\n[41 bytes of output are missing, since the disk was full]\n", "later\n"
    assert (tmp_path / "log").read_text() == "x" * 20 + cut + later + end


@pytest.mark.parametrize("take_rest", [False, True])
def test_a_log_says_what_is_missing_even_if_the_disk_stays_full_until_it_ends(tmp_path: Path, take_rest: bool) -> None:
    """The log looked complete, and the next trial of the process was said to lack this output."""
    text = (
        f"{WITH_ROOM}"
        "from tuner.domain.logs import LogLimit\n"
        "from tuner.trials.runtime.sending.log_shipper import LogShipper\n"
        "sent = []\n"
        "def ship(): return LogShipper(capture.path, 'seg_1', 0, LogLimit.of(1 << 20), lambda _, chunks: sent.extend(chunks))\n"
        "capture.ship(first := ship()); print('first'); room(len('first\\n')); print('x' * 99)\n"
        f"sent += capture.end(take_rest={take_rest}); first.join(30); room(10_000)\n"
        "capture = Capture(sys.argv[1] + '2'); capture.begin(); print('next'); capture.end()\n"
        "print(b''.join(chunk.content() for chunk in sent).decode(), [chunk.start for chunk in sent])\n"
    )
    done = script(text, tmp_path)
    said = "first\n\n[100 bytes of output are missing, since the disk was full]\n"
    assert (done.stdout, done.stderr) == (f"{said} [0, {len(said)}]\n", "")
    assert (tmp_path / "log2").read_text() == "next\n"


@pytest.mark.parametrize("take_rest", [False, True])
def test_a_disk_too_full_for_a_log_does_not_fail_the_trial(tmp_path: Path, take_rest: bool) -> None:
    """Its log was empty, as if it had printed nothing."""
    done = script(
        "import errno, os, sys\n"
        "from tuner.domain.logs import LogLimit\n"
        "from tuner.trials.runtime.sending.log_shipper import LogShipper\n"
        "from tuner.trials.runtime.sending.logs import Capture\n"
        "def full(*_, **__): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "os.makedirs = full\n"
        "sent = []\n"
        "shipper = LogShipper(sys.argv[1], 'seg_1', 0, LogLimit.of(1 << 20), lambda _, chunks: sent.extend(chunks))\n"
        "capture = Capture(sys.argv[1]); capture.begin(); capture.ship(shipper); print('python')\n"
        f"sent += capture.end(take_rest={take_rest}); shipper.join(30); print('after')\n"
        "print(b''.join(chunk.content() for chunk in sent).decode(), end='')\n",
        tmp_path,
    )
    assert done.stdout == "after\n[the output is missing, since the disk was too full for a file]\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("end", "noted"),
    [
        ("os.kill(os.getpid(), 15)", True),
        ("capture.end(); os.kill(os.getpid(), 15)", False),
        ("os.kill(os.getpid(), 9)", False),
        ("child = os.fork() or os.kill(os.getpid(), 15); os.waitpid(child, 0)", False),  # as a pool ends its workers
    ],
)
def test_an_end_by_sigterm_leaves_a_stack_in_the_log(tmp_path: Path, end: str, noted: bool) -> None:
    done = script(
        "import os, sys\n"
        "from tuner.trials.runtime.sending.logs import Capture\n"
        f"capture = Capture(sys.argv[1]); capture.begin(); print('the last words', flush=True); {end}\n",
        tmp_path,
    )
    assert done.returncode == (-signal.SIGKILL if ", 9" in end else 0 if "fork" in end else -signal.SIGTERM)
    said = tail(str(tmp_path / "log"), 50)
    assert said.startswith("the last words")
    assert bool(SIGTERM_NOTE.search(said)) == noted
    assert noted or said == "the last words"


def test_a_hard_exit_says_where_it_was_called(tmp_path: Path) -> None:
    done = script(
        "import os, sys\n"
        "from tuner.trials.runtime.sending.logs import note_exits\n"
        "note_exits()\n"
        "def give_up():\n    os._exit(7)\n"
        "if os.fork() == 0: os._exit(0)\n"  # a child's exit is its own affair
        "os.wait(); give_up()\n",
        tmp_path,
    )
    assert done.returncode == 7
    assert done.stderr.count("tuner: os._exit(7) was called") == 1
    assert "os._exit(0)" not in done.stderr
    assert "in give_up" in done.stderr


def test_the_tail_is_what_a_terminal_shows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(
        b"first\n"
        b"10%|#    |\r50%|##   |\r100%|#####|\n"
        b"[2026-11-20 11:16:32,401 E 13178 13178] logging.cc:474:     @  0x7f  frame\n"
        b"broken \xff byte\n"
        b"last"
    )
    assert tail(str(path), 50).split("\n") == ["first", "100%|#####|", "broken � byte", "last"]
    assert tail(str(path), 1) == "last"
    assert tail(str(tmp_path / "none"), 5) == ""
    path.write_text("x" * 100_000 + "\nend\n")
    assert tail(str(path), 1) == "end"
    assert os.path.getsize(path) > 64 * 1024


def test_a_hard_exit_says_so_in_the_users_frames_only(tmp_path: Path) -> None:
    done = script(
        "import os\n"
        "from tuner.trials.runtime.sending.logs import note_exits\n"
        "from tuner.trials.checkpoints.objects import with_parameters\n"
        "def inner():\n    os._exit(7)\n"
        "def train(config, big):\n    inner()\n"
        "note_exits()\n"
        "with_parameters(train, big=1)({})\n",
        tmp_path,
    )
    assert done.returncode == 7
    assert [line.split(", in ")[1] for line in done.stderr.splitlines() if ", in " in line] == ["train", "inner"]
    assert done.stderr.endswith("tuner: os._exit(7) was called\n")
