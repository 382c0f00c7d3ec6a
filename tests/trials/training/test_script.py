"""A script as a training function, in real processes, with a session in place of the driver."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tuner.domain.events import CheckpointInfo
from tuner.domain.segments import Failure, Report, Verdict
from tuner.errors import WrongArgument
from tuner.trials.checkpoints.checkpoints import Checkpoint
from tuner.trials.runtime.errors import describe
from tuner.trials.runtime.sending.logs import Capture
from tuner.trials.training import oom, session
from tuner.trials.training.script import Script, ScriptFailed, filled
from tuner.trials.training.session import Context, LeaveTrial, Session


class Driver:
    """Keeps the reports; the verdict of each milestone is to continue until `last`, and then to stop."""

    def __init__(self, last: int | None = None, saves: bool = False) -> None:
        self.reports: list[Report] = []
        self.last, self.saves = last, saves

    def put(self, message: Report) -> None:
        self.reports.append(message)

    def ask(self, message: Report) -> Verdict:
        self.reports.append(message)
        if self.last is not None and message.report_no >= self.last:
            return Verdict(action="stop", reason="it is worse than the others", save_checkpoint=self.saves)
        return Verdict(next_milestone=message.report_no + 1)


class Saver:
    """Keeps the content of `state` in each checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states: list[tuple[int, str]] = []

    def take(self, source: Any, report_no: int, iteration: int, *, at_end: bool = False) -> CheckpointInfo | None:
        if callable(source):
            self.folder.mkdir(exist_ok=True)
            source(str(self.folder))
            source = self.folder
        self.states.append((report_no, Path(source, "state").read_text()))
        return None

    def passed(self, report_no: int) -> None:
        pass


Start = Callable[..., tuple[Session, Driver, Saver]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Start]:
    """Make a session of one rank the session of this process."""

    def start(last: int | None = None, saves: bool = False, **options: Any) -> tuple[Session, Driver, Saver]:
        driver, saver = Driver(last, saves), Saver(tmp_path / "saved")
        context = Context(
            experiment_id="exp_1",
            trial_id="trl_1",
            trial_number=7,
            segment_id="seg_1",
            world_size=1,
            world_rank=0,
            local_rank=0,
            local_world_size=1,
            node_rank=0,
            config={"lr": 0.5},
            trial_dir=str(tmp_path),
        )
        running = Session(context, reports=driver, peers=None, saver=saver, objective="loss", **options)
        session.activate(running)
        return running, driver, saver

    yield start
    session.activate(None)


def script(tmp_path: Path, text: str, *arguments: str, **options: Any) -> Script:
    path = tmp_path / "train.py"
    path.write_text(text)
    return Script(str(path), text.encode(), arguments, "loss", **{"grace_s": 20.0, **options})


@pytest.mark.parametrize("where", ["", f"a folder of a batch job {'x' * 80}"])
def test_lines_are_reports_and_arguments_are_filled(
    tmp_path: Path, begin: Start, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """With a long TMPDIR, each trial failed with "AF_UNIX path too long"."""
    _, driver, _ = begin()
    (tmp_path / where).mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / where))
    text = "import os, sys\nfor i in range(3): print(f'loss={float(sys.argv[1]) * i} port={os.environ[\"MASTER_PORT\"]}')\n"
    script(tmp_path, text, "{lr}")({"lr": 0.5})
    assert [report.metrics["loss"] for report in driver.reports] == [0.0, 0.5, 1.0]
    assert driver.reports[0].metrics["port"] > 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_names_of_metrics_are_read_in_any_locale(
    tmp_path: Path, begin: Start, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    _, driver, _ = begin()
    script(tmp_path, "print('loss=0.5 größe=2')")({})
    assert driver.reports[0].metrics == {"loss": 0.5, "größe": 2.0}


def test_lines_stay_whole_in_the_log(tmp_path: Path, begin: Start) -> None:
    _, driver, _ = begin()
    text = """
import sys, time
print("loss=1", end="", flush=True)
print("from stderr", file=sys.stderr, flush=True)
time.sleep(0.2)
print("5")
sys.stdout.write("10%\\r20%\\r\\nloss=2")
"""
    log = Capture(str(tmp_path / "rank0.log"))
    log.begin()
    try:
        script(tmp_path, text)({})
    finally:
        log.end()
    assert (tmp_path / "rank0.log").read_bytes() == b"from stderr\nloss=15\n10%\r20%\r\nloss=2"
    assert [report.metrics["loss"] for report in driver.reports] == [15.0, 2.0]


def test_a_pattern_reads_the_lines(tmp_path: Path, begin: Start) -> None:
    _, driver, _ = begin()
    script(tmp_path, "print('loss=9'); print('validation loss 0.25')", pattern=r"validation loss (\S+)")({})
    assert [report.metrics for report in driver.reports] == [{"loss": 0.25}]


def test_a_script_that_imports_tuner_reports_by_itself(tmp_path: Path, begin: Start) -> None:
    _, driver, _ = begin()
    text = """
import tuner
context = tuner.get_context()
print("loss=1e9")
tuner.report({"loss": context.get_config()["lr"], "trial": context.get_trial_number()}, step=40)
"""
    script(tmp_path, text)({"lr": 0.5})
    assert [(report.metrics, report.step) for report in driver.reports] == [({"loss": 0.5, "trial": 7.0}, 40)]


def test_checkpoints_of_a_script(tmp_path: Path, begin: Start) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "state").write_text("41")
    text = """
import os, pathlib, tuner
with tuner.get_checkpoint().as_directory() as folder:
    state = int(pathlib.Path(folder, "state").read_text())
for _ in range(3):
    state += 1
    tuner.report({"loss": 1.0}, checkpoint=lambda folder: pathlib.Path(folder, "state").write_text(str(state)))
"""
    _, _, saver = begin(
        checkpoint=Checkpoint(str(tmp_path / "before")),
        checkpoint_every=2,
        checkpoint_at_end=True,
        first_milestone=None,
    )
    script(tmp_path, text)({})
    assert saver.states == [(2, "43"), (3, "44")]


def test_a_process_that_a_script_has_started_may_use_tuner_and_end_before_the_script(
    tmp_path: Path, begin: Start
) -> None:
    """Its end had been taken for that of the script, which was to save its last checkpoint meanwhile: both had waited."""
    text = """
import pathlib, subprocess, sys, tuner
for state in range(2):
    tuner.report({"loss": 1.0}, checkpoint=lambda folder: pathlib.Path(folder, "state").write_text(str(state)))
    subprocess.run([sys.executable, "-c", "import tuner; tuner.get_context()"], check=True, timeout=60)
"""
    _, driver, saver = begin(checkpoint_at_end=True, first_milestone=None)
    script(tmp_path, text)({})
    assert (saver.states, len(driver.reports)) == ([(2, "1")], 2)


@pytest.mark.parametrize(
    ("raised", "cause"),
    [("OSError(28, 'No space left on device')", "disk_full"), ("ValueError('the weights are gone')", "script")],
)
def test_a_script_that_cannot_save_its_last_checkpoint_fails(
    tmp_path: Path, begin: Start, raised: str, cause: str
) -> None:
    """The trial had completed without a checkpoint and without a word."""
    _, driver, saver = begin(checkpoint_at_end=True, first_milestone=None)
    text = f"""
import atexit, pathlib, tuner
atexit.register(lambda: pathlib.Path({str(tmp_path / "exited")!r}).touch())
def save(folder):
    raise {raised}
tuner.report({{"loss": 1.0}}, checkpoint=save)
"""
    with pytest.raises(ScriptFailed) as caught:
        script(tmp_path, text)({})
    described = describe(caught.value, "")
    assert re.match(r"train\.py could not save its last checkpoint: (OS|Value)Error: ", described.message)
    assert (described.cause, saver.states, len(driver.reports)) == (cause, [], 1)
    assert (tmp_path / "exited").exists(), "the script has exited by itself"


def test_a_script_that_cannot_save_after_a_verdict_fails_in_its_save_function(tmp_path: Path, begin: Start) -> None:
    """Nothing said that the last checkpoint of a trial that was stopped is missing."""
    begin(last=2, saves=True)
    text = """
import tuner
def save(folder):
    raise PermissionError("no way in")
while True:
    tuner.report({"loss": 1.0}, checkpoint=save)
"""
    with pytest.raises(ScriptFailed) as caught:
        script(tmp_path, text)({})
    described = describe(caught.value, "")
    assert described.message == "train.py ended with exit status 1: PermissionError: no way in"
    assert Failure(kind="user", message="", traceback=described.traceback).in_save


def test_a_script_hands_back_the_checkpoint_that_it_got(tmp_path: Path, begin: Start) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "state").write_text("41")
    _, _, saver = begin(checkpoint=Checkpoint(f"fsspec+file://{tmp_path}/before"))
    script(tmp_path, "import tuner; tuner.report({'loss': 1.0}, checkpoint=tuner.get_checkpoint())")({})
    assert saver.states == [(1, "41")]


def test_a_verdict_ends_a_script_that_reports_with_its_finally_blocks(tmp_path: Path, begin: Start) -> None:
    running, driver, _ = begin(last=2)
    text = """
import pathlib, tuner
try:
    while True:
        try:
            tuner.report({"loss": 1.0})
        except Exception:
            pass
finally:
    pathlib.Path("cleaned").write_text("")
"""
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        with pytest.raises(LeaveTrial):
            script(tmp_path, text)({})
    finally:
        os.chdir(before)
    assert len(driver.reports) == 2
    assert running.left is not None
    assert (tmp_path / "cleaned").exists()


def test_a_verdict_ends_a_script_that_prints_with_all_it_has_started(tmp_path: Path, begin: Start) -> None:
    begin(last=3)
    text = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
for i in range(10_000):
    print(f"loss={i}")
    time.sleep(0.01)
"""
    with pytest.raises(LeaveTrial):
        script(tmp_path, text, "{trial_dir}/pid")({})
    pid = int((tmp_path / "pid").read_text())
    gone = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < gone
        time.sleep(0.02)


def test_a_failure_has_the_status_and_the_last_lines_of_stderr(tmp_path: Path, begin: Start) -> None:
    begin()
    with pytest.raises(ScriptFailed, match=r"(?s)train\.py ended with exit status 3:\nthe GPU is on fire$"):
        script(tmp_path, "import sys; print('loss=1'); print('the GPU is on fire', file=sys.stderr); sys.exit(3)")({})
    with pytest.raises(ScriptFailed, match="was killed by SIGKILL"):
        script(tmp_path, "import os; os.kill(os.getpid(), 9)")({})


def test_a_failure_is_described_by_what_the_script_said(tmp_path: Path, begin: Start) -> None:
    begin()
    with pytest.raises(ScriptFailed) as caught:
        script(tmp_path, "import sys; print('usage: x\\nno such option', file=sys.stderr); sys.exit(2)")({})
    described = describe(caught.value, "")
    assert (described.type, described.cause) == ("", "script")
    assert described.message == "train.py ended with exit status 2: no such option"
    assert described.traceback == "usage: x\nno such option"
    with pytest.raises(ScriptFailed) as caught:
        script(tmp_path, "import os; os.kill(os.getpid(), 9)")({})
    assert describe(caught.value, "").cause == "script_signal"


def test_a_failure_is_described_without_the_colors_of_its_traceback(tmp_path: Path, begin: Start) -> None:
    """Python 3.13 colors tracebacks if FORCE_COLOR is set."""
    begin()
    with pytest.raises(ScriptFailed) as caught:
        script(
            tmp_path,
            "import sys; sys.exit('  File \x1b[35m\"a.py\"\x1b[0m\\n\x1b[1;35mValueError\x1b[0m: \x1b[35mno such bucket\x1b[0m')",
        )({})
    assert caught.value.said == '  File "a.py"\nValueError: no such bucket'
    assert describe(caught.value, "").message == "train.py ended with exit status 1: ValueError: no such bucket"


def test_a_failure_under_torchrun_is_described_by_what_its_processes_said(
    tmp_path: Path, begin: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    # As for a script whose directory has the environment in it, torch is named by a path from a directory above its own.
    monkeypatch.setenv("PYTHONPATH", str(Path(torch.origin).parents[2]))
    begin()
    (tmp_path / "inner.py").write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    time.sleep(1000)  # torchrun ends it, so that the words of two processes do not mix\n"
        "raise SystemExit('the GPU is on fire')"
    )
    code = "import sys; from torch.distributed.run import main; main(['--nproc-per-node', '2', sys.argv[1]])"
    with pytest.raises(ScriptFailed) as caught:
        script(tmp_path, code, str(tmp_path / "inner.py"))({})
    assert "ChildFailedError" not in caught.value.said
    assert describe(caught.value, "").message == "train.py ended with exit status 1: the GPU is on fire"


def test_after_a_restart_by_torchrun_the_last_failure_is_told(tmp_path: Path, begin: Start) -> None:
    begin()
    (tmp_path / "inner.py").write_text(
        "import os\nraise SystemExit('attempt ' + os.environ['TORCHELASTIC_RESTART_COUNT'])"
    )
    code = "import sys; from torch.distributed.run import main; main(['--max-restarts', '1', sys.argv[1]])"
    with pytest.raises(ScriptFailed) as caught:
        script(tmp_path, code, str(tmp_path / "inner.py"))({})
    assert describe(caught.value, "").message == "train.py ended with exit status 1: attempt 1"


CGROUPS = Path("/sys/fs/cgroup/memory")
FILLS_ITS_MEMORY = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
print("loss=1")
filled = [bytearray(os.urandom(1 << 20)) for _ in range(1000)]
"""


@pytest.mark.skipif(
    not os.access(CGROUPS, os.W_OK), reason="it needs a writable memory cgroup (version 1), to limit it"
)
@pytest.mark.parametrize("shell", [False, True])
def test_a_script_that_the_kernel_kills_for_lack_of_memory(tmp_path: Path, begin: Start, shell: bool) -> None:
    begin()
    group = CGROUPS / f"tuner-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text("60M")
        run = script(tmp_path, FILLS_ITS_MEMORY, str(group))
        if shell:  # its status is 137, as the shell says that SIGKILL has ended its last command
            wrapper = f"#!/bin/sh\n'{sys.executable}' '{tmp_path / 'train.py'}' \"$1\"\nexit $?\n"
            (tmp_path / "train.sh").write_text(wrapper)
            (tmp_path / "train.sh").chmod(0o755)
            run = replace(run, path=str(tmp_path / "train.sh"))
        with pytest.raises(ScriptFailed, match="killed by the kernel because memory ran out") as caught:
            run({})
        assert describe(caught.value, "").cause == "oom"
    finally:
        group.rmdir()


@pytest.mark.parametrize(
    ("text", "kills", "cause"),
    [
        ("import os; os.kill(os.getpid(), 9)", 1, "oom"),
        ("import sys; sys.exit(137)", 1, "oom"),
        ("import os; os.kill(os.getpid(), 9)", 0, "script_signal"),
        ("import sys; sys.exit(137)", 0, "script"),
        ("import os; os.kill(os.getpid(), 15)", 1, "script_signal"),
        ("import sys; sys.exit(1)", 1, "script"),
    ],
)
def test_a_kill_while_the_kernel_kills_for_lack_of_memory(
    tmp_path: Path, begin: Start, monkeypatch: pytest.MonkeyPatch, text: str, kills: int, cause: str
) -> None:
    begin()
    count = itertools.count(4, kills) if kills else itertools.repeat(4)
    monkeypatch.setattr(oom, "oom_kills", lambda: next(count))
    with pytest.raises(ScriptFailed) as caught:
        script(tmp_path, text)({})
    assert describe(caught.value, "").cause == cause


def test_a_mistake_in_a_report_is_raised_in_the_script(tmp_path: Path, begin: Start) -> None:
    begin()
    with pytest.raises(ScriptFailed, match="WrongArgument: metric 'loss' must be a number") as caught:
        script(tmp_path, "import tuner; tuner.report({'loss': 'high'})")({})
    said = describe(caught.value, "")
    assert said.message.endswith(
        "WrongArgument: metric 'loss' must be a number, or an array or tensor of one element, not str 'high'"
    )
    assert said.traceback.endswith("What to do: tuner docs WrongArgument")
    with pytest.raises(ScriptFailed, match="OSError: no room"):
        text = "import tuner\ndef save(folder): raise OSError('no room')\ntuner.report({'loss': 1}, checkpoint=save)"
        begin(checkpoint_every=1)
        script(tmp_path, text)({})


def test_a_script_without_a_report_is_an_error(tmp_path: Path, begin: Start) -> None:
    begin()
    with pytest.raises(ScriptFailed, match="ended without a report: no line of stdout has 'loss'"):
        script(tmp_path, "print('accuracy=1')")({})
    with pytest.raises(ScriptFailed, match=r"'epoch 1, loss: 0.5' on stdout has neither loss=NUMBER nor a JSON object"):
        script(tmp_path, "print('epoch 1, loss: 0.5')")({})
    with pytest.raises(ScriptFailed, match="'loss=0.5' is on stderr, and only stdout is read"):
        script(tmp_path, "import sys; print('loss=0.5', file=sys.stderr)")({})
    with pytest.raises(ScriptFailed, match="no line of stdout matches --metric-pattern 'loss is"):
        Script("/nowhere/train.py", b"print('loss=0.5')", (), "loss", r"loss is (\S+)")({})


def test_workers_without_the_file_run_what_was_sent(tmp_path: Path, begin: Start) -> None:
    _, driver, _ = begin()
    Script("/nowhere/train.py", b"print('loss=2')", (), "loss")({})
    assert [report.metrics for report in driver.reports] == [{"loss": 2.0}]


def test_scripts_that_databases_have_can_still_be_run() -> None:
    """Restore a script from the state that its pickles have had: a field that is added to it would be missing."""
    old = Script.__new__(Script)
    old.__setstate__(["/nowhere/train", b"", ("--lr", "{lr}"), "loss", None, 10.0, ()])  # type: ignore[attr-defined]
    assert old == Script("/nowhere/train", b"", ("--lr", "{lr}"), "loss")


def test_the_script_ends_with_its_rank(tmp_path: Path) -> None:
    """A rank that is killed, here a plain process, takes its script with it."""
    path = tmp_path / "train.py"
    path.write_text(f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)")
    rank = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys\n"
            "from tuner.trials.training.script import _LAUNCHER\n"
            "subprocess.run([sys.executable, '-I', '-S', '-c', _LAUNCHER, str(os.getpid()), *sys.argv[1:]])",
            sys.executable,
            str(path),
        ]
    )
    end = time.monotonic() + 30
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    pid = int((tmp_path / "pid").read_text())
    assert psutil.pid_exists(pid)
    rank.kill()
    rank.wait()
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_arguments_are_filled() -> None:
    values = {"lr": 0.1, "optimizer/name": "adam", "layers": [1, 2], "flag": True}
    assert filled("--lr={lr}", values) == "--lr=0.1"
    assert filled("{optimizer/name}-{layers}-{flag}", values) == "adam-[1, 2]-True"
    assert filled('{{lr}} {"a": {"b": 1}} {}', values) == '{lr} {"a": {"b": 1}} {}'
    with pytest.raises(WrongArgument, match="the configuration has no 'width'"):
        filled("{width}", values)
