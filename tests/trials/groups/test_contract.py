"""The contract of both executors: trials of one process behave alike on Ray and in processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trials.checks import failed, gone, pid_of, until
from tests.trials.conftest import Bench, LocalBench
from tests.trials.functions import dies, goes_on, hangs, report, reports_twice
from tuner.domain.segments import Verdict

Either = Bench | LocalBench


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def either(request: pytest.FixtureRequest) -> Either:
    bench: Either = request.getfixturevalue({"local": "local_bench", "ray": "bench"}[request.param])
    return bench


def raises_at_once(config: dict[str, Any]) -> None:
    raise KeyError("lr")


def raises_later(config: dict[str, Any]) -> None:
    report(pid=os.getpid())
    print("shapes: 3 x 4")
    raise ValueError("mat1 and mat2 shapes cannot be multiplied")


def closes_all_files(config: dict[str, Any]) -> None:
    report(a=1)
    os.closerange(3, 4096)
    report(a=2)


def exits_hard(config: dict[str, Any]) -> None:
    report(a=1)
    os._exit(3)


def ignores_the_stop(config: dict[str, Any]) -> None:
    while True:
        try:
            report(a=1)
        except BaseException:
            time.sleep(1000)


def never_reports(config: dict[str, Any]) -> None:
    pass


def starts_a_child(config: dict[str, Any]) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    Path(config["note"]).write_text(str(child.pid))
    report(a=1)
    os.kill(os.getpid(), signal.SIGKILL)


def leaves_a_thread(config: dict[str, Any]) -> None:
    threading.Thread(target=time.sleep, args=(1000,), name="left", daemon=True).start()
    report(pid=os.getpid())


def counts(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import get_checkpoint

    start = 0
    if (found := get_checkpoint()) is not None:
        with found.as_directory() as folder:
            start = int(Path(folder, "count").read_text())
    for count in range(start + 1, config["until"] + 1):
        report(lambda folder, n=count: Path(folder, "count").write_text(str(n)), count=count, factor=config["factor"])


def fills_its_cgroup(config: dict[str, Any]) -> None:
    report(a=1)
    print("loading the data set")
    Path(config["cgroup"], "cgroup.procs").write_text(str(os.getpid()))
    kept = [bytearray(os.urandom(2**20)) * 32 for _ in range(32)]
    raise AssertionError(f"this process has {len(kept)} times 32 MiB, but was not killed")


def prints(config: dict[str, Any]) -> None:
    print("from Python")
    subprocess.run(["echo", "from a child"], check=True)
    os.write(2, b"from C\n")
    report(a=1)


def test_a_process_runs_one_trial_after_the_other(either: Either) -> None:
    first, second = (either.launch(reports_twice, params={"name": name}) for name in ("one", "two"))
    for launch in (first, second):
        outcome = either.run(launch)
        assert (outcome.kind, outcome.reports) == ("returned", 2)
    assert either.started(second)["warm"]
    pids = {report.metrics["pid"] for launch in (first, second) for report in either.reports(launch)}
    assert pids == {pid_of(either, first)} == {pid_of(either, second)}
    assert os.getpid() not in pids
    assert either.log(first) == "trial one\n", "each segment has a log of its own"


def test_a_trial_that_asks_for_new_processes_gets_them(either: Either) -> None:
    first, second = (either.launch(reports_twice, scaling={"reuse_workers": False}) for _ in range(2))
    for launch in (first, second):
        assert either.run(launch).kind == "returned"
        until(lambda launch=launch: gone(pid_of(either, launch)))
    assert pid_of(either, first) != pid_of(either, second)


def test_an_exception_says_where_and_only_one_before_any_report_leaves_the_process_warm(
    either: Either,
) -> None:
    early, again, late = (either.launch(function) for function in (raises_at_once, raises_at_once, raises_later))
    failure = failed(either, early)
    assert (failure.kind, failure.cause, failure.message) == ("user", "exception", "KeyError: 'lr'")
    assert 'raise KeyError("lr")' in failure.traceback
    failed(either, again)
    assert pid_of(either, early) == pid_of(either, again)
    failure = failed(either, late)
    assert "in raises_later" in failure.traceback
    assert "shapes: 3 x 4" in failure.log_tail
    until(lambda: gone(pid_of(either, late)))


@pytest.mark.parametrize(
    ("function", "params", "cause", "message"),
    [
        (exits_hard, {}, "exit", "called os._exit(3)"),
        (dies, {"signal": int(signal.SIGKILL)}, "signal", "SIGKILL"),
        (dies, {"signal": int(signal.SIGSEGV)}, "signal", "killed by SIGSEGV"),
        (never_reports, {}, "no_report", "without calling tuner.report"),
    ],
)
def test_how_a_process_ended(either: Either, function: Any, params: dict[str, Any], cause: str, message: str) -> None:
    launch = either.launch(function, params=params)
    failure = failed(either, launch)
    assert (failure.kind, failure.cause) == ("user", cause)
    assert message in failure.message
    assert failure.pid == pid_of(either, launch)
    if function is dies:
        assert "the last words" in failure.traceback


def test_training_code_that_closes_all_files_is_told_so(local_bench: LocalBench) -> None:
    """After 10 s, it was said to be killed by SIGKILL, since its process could not hand its error over."""
    failure = failed(local_bench, local_bench.launch(closes_all_files))
    assert (failure.kind, failure.cause) == ("user", "exit")
    assert failure.message.startswith("the training code has closed the process's connection to the driver")
    assert "report 2 did not reach the driver: OSError: [Errno 9]" in failure.traceback, "its last words"


def test_a_hang_and_a_stop_that_is_ignored_show_the_stack(either: Either) -> None:
    failure = failed(either, either.launch(hangs, limits={"hang_timeout_s": 0.5}))
    assert failure.cause == "hang"
    assert "in hangs" in failure.stacks["0"]
    stop = {1: Verdict(action="stop")}
    failure = failed(either, either.launch(ignores_the_stop, limits={"stop_grace_s": 0.3}), stop)
    assert failure.cause == "stop_ignored"
    assert "in ignores_the_stop" in failure.stacks["0"]


def test_what_a_trial_has_started_goes_with_it(either: Either, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    assert failed(either, either.launch(starts_a_child, params={"note": str(note)})).cause == "signal"
    until(lambda: gone(int(note.read_text())))


def test_a_dirty_process_is_replaced_and_nobody_notices(either: Either) -> None:
    first, second = either.launch(leaves_a_thread), either.launch(leaves_a_thread)
    assert either.run(first).kind == either.run(second).kind == "returned"
    assert pid_of(either, first) != pid_of(either, second)


def test_an_entrypoint_that_is_not_there(either: Either) -> None:
    failure = failed(either, either.launch("nowhere_to_be_found:train"))
    assert failure.kind == "spec"
    assert "there is no module 'nowhere_to_be_found'" in failure.message


def test_pause_resume_and_exploit(either: Either) -> None:
    first = either.launch(counts, params={"until": 5, "factor": 1})
    assert either.run(first, {2: Verdict(action="pause", save_checkpoint=True)}).kind == "left"
    (saved,) = either.checkpoints(first)[-1:]
    assert saved.step == 2
    assert (saved.node is None) == isinstance(either, LocalBench)
    second = either.launch(counts, params={"until": 4, "factor": 3}, start_iteration=2, checkpoint=saved, segment=2)
    assert either.run(second).kind == "returned"
    found = [(report.metrics["count"], report.metrics["factor"]) for report in either.reports(second)]
    assert found == [(3, 3), (4, 3)], "it goes on from the checkpoint, with another configuration"


def test_an_interrupt_is_answered_at_the_next_report(either: Either) -> None:
    launch = either.launch(goes_on, first_milestone=None)
    running = either.begin(launch)
    either.wait_for_report(launch)
    either.interrupt(launch, "pause")
    outcome = either.end_of(running)
    assert outcome.kind == "left"
    assert outcome.reports == either.reports(launch)[-1].report_no


def test_stacks_and_figures_of_a_running_trial_and_its_end_by_a_kill(either: Either) -> None:
    launch = either.launch(hangs)
    running = either.begin(launch)
    either.wait_for_report(launch)
    assert "in hangs" in either.call("stacks", launch.segment_id)["0"]
    assert either.call("usage", launch.segment_id)["0"]["rss_bytes"] > 2**20
    either.call("kill", launch.segment_id, "the user is impatient")
    outcome = either.end_of(running)
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.failure.message) == ("killed", "the user is impatient")
    until(lambda: gone(pid_of(either, launch)))


def test_the_log_has_what_python_children_and_c_have_written(either: Either) -> None:
    launch = either.launch(prints)
    assert either.run(launch).kind == "returned"
    assert sorted(either.log(launch).splitlines()) == ["from C", "from Python", "from a child"]


def test_a_process_that_exceeds_the_memory_limit_of_its_cgroup(either: Either, cgroup: Path) -> None:
    launch = either.launch(fills_its_cgroup, params={"cgroup": str(cgroup)})
    failure = failed(either, launch)
    assert (failure.kind, failure.cause) == ("user", "oom")
    assert "killed by the kernel because memory ran out" in failure.message
    assert "loading the data set" in failure.log_tail
    until(lambda: gone(pid_of(either, launch)))
