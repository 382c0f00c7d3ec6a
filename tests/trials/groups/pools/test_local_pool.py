"""Trials in processes of this machine: the same group manager as on Ray, and failures that say why."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.trials.checks import failed, gone, pid_of, until
from tests.trials.conftest import LocalBench
from tests.trials.functions import dies, goes_on, hangs, report, reports_twice
from tuner.errors import Conflict, SpecError
from tuner.trials.groups.pools import local_pool
from tuner.trials.messages.launch import Launch
from tuner.trials.messages.profiling import ProfileRequest


def computes(config: dict[str, Any]) -> None:
    while True:
        sum(number * number for number in range(20_000))
        report(profiled=any(thread.name == "tuner-profile" for thread in threading.enumerate()))


def refused_of(bench: LocalBench, launch: Launch) -> str:
    """Return why rank 0 cannot be profiled, or an empty string."""
    try:
        bench.call("profile", launch.segment_id, 0, ProfileRequest(duration_s=0.1))
    except Conflict as error:
        return str(error)
    return ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])
def test_a_signal_that_leaves_no_trace_is_named(local_bench: LocalBench, number: signal.Signals) -> None:
    """On Ray, such a signal is unknown, because Ray's processes are the parents of the ranks."""
    failure = failed(local_bench, local_bench.launch(dies, params={"signal": int(number)}))
    assert (failure.kind, failure.cause) == ("user", "signal")
    assert f"killed by {number.name}" in failure.message


def test_profiles_of_a_running_trial(local_bench: LocalBench) -> None:
    launch = local_bench.launch(computes)
    running = local_bench.begin(launch)
    local_bench.wait_for_report(launch)
    long = local_bench.submit(
        local_bench.host.call("profile", launch.segment_id, 0, ProfileRequest(kind="memory", duration_s=60))
    )

    assert "rank 0 is already being profiled, for " in refused_of(local_bench, launch)
    until(lambda: local_bench.reports(launch)[-1].metrics["profiled"])
    with pytest.raises(SpecError, match="the trial has one rank, 0"):
        local_bench.call("profile", launch.segment_id, 1, ProfileRequest())
    assert local_bench.call("profile", "seg_of_another_host", 0, ProfileRequest()) is None
    local_bench.wait(local_bench.host.interrupt(launch.segment_id, "pause"))
    assert running.result(60).kind == "left"
    memory = long.result(60)
    assert (memory["kind"], memory["complete"]) == ("memory", False), "it ended with the segment"
    assert memory["memory"]["rss_end_bytes"] > 2**20

    again = local_bench.launch(computes)
    running = local_bench.begin(again)
    local_bench.wait_for_report(again)
    assert pid_of(local_bench, again) == pid_of(local_bench, launch), "a profile does not stop the process's reuse"
    cpu = local_bench.call("profile", again.segment_id, 0, ProfileRequest(duration_s=0.3))
    names = [frame["name"] for frame in cpu["speedscope"]["shared"]["frames"]]
    assert names[0] == "_code.<locals>.dispatch", "without the frames of this package around it"
    assert "computes" in names
    assert cpu["speedscope"]["name"] == f"trial {again.trial_number}, rank 0"
    lost = local_bench.submit(local_bench.host.call("profile", again.segment_id, 0, ProfileRequest(duration_s=60)))
    assert "rank 0 is already being profiled, for " in refused_of(local_bench, again)
    until(lambda: local_bench.reports(again)[-1].metrics["profiled"])
    os.kill(pid_of(local_bench, again), signal.SIGKILL)
    with pytest.raises(Conflict, match="rank 0 exited while it was being profiled"):
        lost.result(60)
    assert running.result(60).kind == "failed"


def test_a_rank_that_does_not_answer_is_not_profiled(local_bench: LocalBench) -> None:
    launch = local_bench.launch(hangs)
    running = local_bench.begin(launch)
    local_bench.wait_for_report(launch)
    os.kill(pid_of(local_bench, launch), signal.SIGSTOP)
    with pytest.raises(Conflict, match="rank 0 does not answer: the process is stopped, or a C call holds the GIL"):
        local_bench.call("profile", launch.segment_id, 0, ProfileRequest())
    local_bench.call("kill", launch.segment_id, "seen enough")
    assert running.result(60).kind == "failed"


def test_a_trial_that_waits_is_not_profiled(local_bench: LocalBench) -> None:
    first = local_bench.launch(hangs, scaling={"resources_per_worker": {"CPU": 2}})
    second = local_bench.launch(hangs, scaling={"resources_per_worker": {"CPU": 2}})
    running = [local_bench.begin(first)]
    local_bench.wait_for_report(first)
    running.append(local_bench.begin(second))
    until(lambda: local_bench.call("waiting"))
    with pytest.raises(Conflict, match="the trial is not training yet: it is waiting for resources"):
        local_bench.call("profile", second.segment_id, 0, ProfileRequest())
    for launch in (second, first):
        local_bench.call("kill", launch.segment_id, "seen enough")
    assert [one.result(60).kind for one in running] == ["failed", "failed"]


def test_what_does_not_fit_waits_and_says_for_what(local_bench: LocalBench) -> None:
    whole = {"resources_per_worker": {"CPU": 2}, "reuse_workers": False}
    first, second, third = (local_bench.launch(goes_on, scaling=whole) for _ in range(3))
    running = local_bench.begin(first)
    local_bench.wait_for_report(first)
    waiting, cancelled = local_bench.begin(second), local_bench.begin(third)
    local_bench.wait(local_bench.host.until_waiting(second.segment_id))
    assert local_bench.host.inbox.waits[-1] == "waits for 2 CPU: 0 of 2 are free"
    local_bench.wait(local_bench.host.until_waiting(third.segment_id))
    assert [one.segment_id for one in local_bench.call("waiting")] == [second.segment_id, third.segment_id]
    local_bench.wait(local_bench.host.interrupt(third.segment_id, "cancel"))
    assert cancelled.result(60).kind == "left"
    for launch, outcome in ((first, running), (second, waiting)):
        local_bench.wait_for_report(launch)
        local_bench.wait(local_bench.host.interrupt(launch.segment_id, "stop"))
        assert outcome.result(60).kind == "left"
    assert local_bench.host.inbox.waits[-1] == "waits until its new processes have loaded its code"
    assert local_bench.call("held") == []


def test_a_trial_starts_when_a_larger_one_that_waits_before_it_is_cancelled(local_bench: LocalBench) -> None:
    """It stayed in the queue until some trial ended, although there was room for it."""
    half, whole = ({"resources_per_worker": {"CPU": cpus}} for cpus in (1, 2))
    first, large, small = (local_bench.launch(hangs, scaling=scaling) for scaling in (half, whole, half))
    running = [local_bench.begin(first)]
    local_bench.wait_for_report(first)
    for launch in (large, small):
        running.append(local_bench.begin(launch))
        local_bench.wait(local_bench.host.until_waiting(launch.segment_id))
    local_bench.wait(local_bench.host.interrupt(large.segment_id, "cancel"))
    local_bench.wait_for_report(small)
    for launch in (first, small):
        local_bench.call("kill", launch.segment_id, "seen enough")
    assert [one.result(60).kind for one in running] == ["failed", "left", "failed"]


@pytest.mark.parametrize(
    ("scaling", "reason"),
    [
        ({"num_workers": 2}, "without Ray, a trial is a single process, but num_workers is 2"),
        ({"use_gpu": True}, "without Ray, trials get only CPUs, but GPU is requested"),
        ({"resources_per_worker": {"CPU": 3}}, "3 CPU are requested, but this machine has 2"),
    ],
)
def test_what_can_never_run_is_refused(local_bench: LocalBench, scaling: dict[str, Any], reason: str) -> None:
    failure = failed(local_bench, local_bench.launch(reports_twice, scaling=scaling))
    assert failure.kind == "placement"
    assert reason in failure.message


def worker_pid(factor: int) -> int:
    return factor * os.getpid()


def raises_oddly() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise AttributeError

    raise Odd


def test_a_function_of_the_driver_may_raise_an_error_that_cannot_be_shown(local_bench: LocalBench) -> None:
    """The helper died of it, and so did the next two, in which the function was called again."""
    with pytest.raises(RuntimeError, match="Odd: <Odd.__str__ raised AttributeError>"):
        local_bench.wait(local_bench.host.pool.offload([str(Path(__file__).parents[4])], raises_oddly))


def test_functions_of_the_driver_run_in_a_helper_that_is_replaced_when_it_dies(local_bench: LocalBench) -> None:
    pool = local_bench.host.pool
    root = [str(Path(__file__).parents[4])]
    pid = local_bench.wait(pool.offload(root, worker_pid, 1))
    assert pid != os.getpid()
    assert local_bench.wait(pool.offload(root, worker_pid, 2)) == 2 * pid
    with pytest.raises(RuntimeError, match="ValueError: invalid literal"):
        local_bench.wait(pool.offload(root, int, "x"))
    os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid))
    assert local_bench.wait(pool.offload(root, worker_pid, 1)) not in (pid, os.getpid())


@pytest.fixture
def own_bench(tmp_path: Path) -> Iterator[LocalBench]:
    bench = LocalBench(tmp_path, idle_timeout_s=0.2)
    yield bench
    bench.close()


def test_idle_processes_end_after_a_while_and_closing_leaves_nothing(tmp_path: Path) -> None:
    bench = LocalBench(tmp_path, idle_timeout_s=0.2)
    idle, running = bench.launch(reports_twice), bench.launch(hangs)
    bench.run(idle)
    until(lambda: gone(pid_of(bench, idle)))
    outcome = bench.begin(running)
    bench.wait_for_report(running)
    server = psutil.Process(bench.host.pool._server.pid)
    processes = [server, *server.children(recursive=True)]
    bench.close()
    assert outcome.result(60).failure is not None
    assert pid_of(bench, running) in [process.pid for process in processes]
    until(lambda: all(gone(process.pid) for process in processes))


def test_trials_go_on_in_new_processes_when_the_server_is_killed(own_bench: LocalBench) -> None:
    running = own_bench.launch(hangs)
    outcome = own_bench.begin(running)
    own_bench.wait_for_report(running)
    psutil.Process(pid_of(own_bench, running)).parent().kill()
    failure = outcome.result(60).failure
    assert failure is not None
    assert failure.kind == "system"
    until(lambda: gone(pid_of(own_bench, running)))
    assert own_bench.run(own_bench.launch(reports_twice)).kind == "returned"


_NO_FORK = """
import errno, os

fork = os.fork

def refuse():
    if os.path.exists({mark!r}):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()

os.fork = refuse
"""
"""A module that Python imports when the server starts. Its forks fail as if the container had too many processes."""


@contextlib.contextmanager
def no_more_processes(mark: Path) -> Iterator[None]:
    mark.touch()
    yield
    mark.unlink()


@contextlib.contextmanager
def no_more_files(mark: Path) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The numbers of the standard streams only: files that earlier tests have left open make no room when they are closed.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_trials_go_on_when_the_server_has_too_many_requests_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some 280 trials that began while the server imported filled its connection. The next one killed it and all trials."""
    monkeypatch.setattr(local_pool, "_AGAIN_S", 0.05)
    bench = LocalBench(tmp_path)
    running = bench.launch(hangs)
    outcome = bench.begin(running)
    bench.wait_for_report(running)
    server = bench.host.pool._server
    os.kill(server.pid, signal.SIGSTOP)
    with socket.fromfd(server._control.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as control:
        control.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, 1
        )  # holds few requests, so that the test forks few ranks

    async def forks() -> None:
        while True:
            server.fork()

    with pytest.raises(BlockingIOError):
        bench.wait(forks())
    late = bench.launch(reports_twice)
    started = bench.begin(late)
    bench.wait(bench.host.until_waiting(late.segment_id))
    os.kill(server.pid, signal.SIGCONT)
    assert started.result(60).kind == "returned"
    assert not outcome.done()
    bench.call("kill", running.segment_id, "seen enough")
    assert outcome.result(60).failure is not None
    bench.close()


@pytest.mark.parametrize(
    ("limit", "why"),
    [(no_more_processes, "Resource temporarily unavailable"), (no_more_files, "Too many open files")],
)
def test_trials_go_on_when_no_further_process_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Callable[[Path], Any], why: str
) -> None:
    """All of them were killed. Later, a new trial failed at once, and so did each of its retries."""
    mark = tmp_path / "full"
    (tmp_path / "sitecustomize.py").write_text(_NO_FORK.format(mark=str(mark)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(local_pool, "_AGAIN_S", 0.05)
    bench = LocalBench(tmp_path)
    running = bench.launch(hangs)
    outcome = bench.begin(running)
    bench.wait_for_report(running)
    with limit(mark):
        late = bench.launch(reports_twice)
        started = bench.begin(late)
        bench.wait(bench.host.until_waiting(late.segment_id))
        failure = failed(bench, bench.launch(reports_twice, limits={"placement_timeout_s": 0.1}))
    assert (failure.kind, failure.cause) == ("system", "placement_timeout")
    assert failure.message.endswith(f"{why}; this was tried for 0.1 s")
    assert bench.host.inbox.waits[-1].startswith("no worker process can be started: ")
    assert started.result(60).kind == "returned"
    assert not outcome.done()
    bench.call("kill", running.segment_id, "seen enough")
    assert outcome.result(60).failure is not None
    bench.close()


def test_the_newest_trial_is_killed_when_memory_runs_out(tmp_path: Path) -> None:
    used = [0.5]
    bench = LocalBench(tmp_path, memory=lambda: used[0])
    old, new = bench.launch(goes_on), bench.launch(goes_on)
    first = bench.begin(old)
    bench.wait_for_report(old)
    second = bench.begin(new)
    bench.wait_for_report(new)
    used[0] = 0.96
    failure = second.result(60).failure
    used[0] = 0.5
    assert failure is not None
    assert (failure.kind, failure.cause) == ("user", "oom")
    assert "by the local executor because the memory of this machine was running out" in failure.message
    bench.wait(bench.host.interrupt(old.segment_id, "stop"))
    assert first.result(60).kind == "left", "it is not killed"
    bench.close()


def tells_threads(config: dict[str, Any]) -> None:
    report(threads=float(os.environ["OMP_NUM_THREADS"]))


@pytest.mark.parametrize("given", [None, 5])
def test_a_trial_has_as_many_threads_as_cpus_unless_the_user_has_set_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int | None
) -> None:
    """Libraries such as PyTorch read the variable. Ray sets it likewise, and here each trial computed with one thread."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", str(given))
    bench = LocalBench(tmp_path)
    for cpus in (2, 0.5):
        launch = bench.launch(tells_threads, scaling={"resources_per_worker": {"CPU": cpus}})
        assert bench.run(launch).kind == "returned"
        assert bench.reports(launch)[0].metrics["threads"] == (given or max(1, int(cpus)))
    bench.close()


def leaves_a_process(config: dict[str, Any]) -> None:
    """End with a process in a session of its own, as servers and daemons start."""
    report(pid=subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
    if config["end"] == "exits":
        os._exit(3)
    if config["end"] == "raises":
        raise ValueError("a mistake")
    time.sleep(1000)


@pytest.mark.parametrize("end", ["exits", "raises", "is killed"])
def test_a_process_in_a_session_of_its_own_ends_with_the_trial_that_has_started_it(
    local_bench: LocalBench, end: str
) -> None:
    other, launch = (local_bench.launch(leaves_a_process, params={"end": how}) for how in ("hangs", end))
    running = [local_bench.begin(one) for one in (other, launch)]
    local_bench.wait_for_report(other)
    local_bench.wait_for_report(launch)
    if end == "is killed":
        local_bench.call("kill", launch.segment_id, "seen enough")
    assert running[1].result(60).kind == "failed"
    kept, ended = (int(local_bench.reports(one)[0].metrics["pid"]) for one in (other, launch))
    until(lambda: gone(ended))
    assert not gone(kept), "its trial runs"
    local_bench.call("kill", other.segment_id, "seen enough")
    assert running[0].result(60).kind == "failed"
    until(lambda: gone(kept))
