"""Trials that are killed in every possible way: the failure says which rank and why, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from tests.slow_storage import SlowStorage
from tests.trials.conftest import Bench, listening, remains
from tuner.domain.events import Failure
from tuner.domain.segments import Verdict
from tuner.trials.checkpoints import checkpoints
from tuner.trials.messages.launch import Launch

pytestmark = pytest.mark.ray


NO_TORCH = {"backend": "none"}
"""For functions that need no process group: their ranks start in half the time."""


def _rank() -> int:
    from tuner.trials.training.session import get_context

    return get_context().world_rank


def _report(**metrics: float) -> None:
    from tuner.trials.training.session import report

    report(metrics)


def _wait_for_the_others() -> None:
    """Block in a collective, which never ends without the others. Ranks without a process group sleep."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_initialized():
        time.sleep(1000)
        return
    import torch

    dist.all_reduce(torch.ones(1))


def raises(config: dict[str, Any]) -> None:
    _report(a=1)
    if _rank() == 1:
        print("shapes: 3 x 4")
        raise ValueError("mat1 and mat2 shapes cannot be multiplied")
    _wait_for_the_others()


def raises_after_a_checkpoint(config: dict[str, Any]) -> None:
    from tests import slow_storage
    from tuner.trials.checkpoints import checkpoints
    from tuner.trials.training.session import report

    slow_storage.install()
    commit = checkpoints.commit

    def slow_commit(*args: Any) -> None:
        time.sleep(0.5)
        commit(*args)

    checkpoints.commit = slow_commit  # the process is killed afterwards
    report({"a": 1}, checkpoint=lambda folder: Path(folder, f"part{_rank()}").touch())
    if _rank() == 1:
        raise ValueError("after the checkpoint")
    _wait_for_the_others()


def raises_after_reports(config: dict[str, Any]) -> None:
    made = Path(config["made"])
    for number in range(1 if _rank() else 4):
        _report(a=number)
    if _rank() == 0:
        made.touch()
        time.sleep(1000)
    while not made.exists():
        time.sleep(0.001)
    raise ValueError("the other rank has just made three reports more")


def loses_its_peer(config: dict[str, Any]) -> None:
    if _rank() == 1:
        _report(a=0)
        raise RuntimeError("Connection closed by peer")
    for number in range(1_000_000):
        _report(a=number)
        Path(config["made"] + ".new").write_text(str(number))
        os.replace(config["made"] + ".new", config["made"])  # the rank may be killed while it writes
        time.sleep(0.005)


def raises_everywhere(config: dict[str, Any]) -> None:
    raise KeyError("lr")


def exits_hard(config: dict[str, Any]) -> None:
    _report(a=1)
    if _rank() == 1:
        os._exit(3)
    _wait_for_the_others()


def exits_softly(config: dict[str, Any]) -> None:
    if _rank() == 1:
        sys.exit("bad luck")
    _wait_for_the_others()


def dies(config: dict[str, Any]) -> None:
    _report(a=1)
    if _rank() == 1:
        print("the last words")
        if config["signal"] in (signal.SIGSEGV, signal.SIGABRT):
            signal.raise_signal(config["signal"])  # in this thread, as a real one
        os.kill(os.getpid(), config["signal"])
        time.sleep(100)
    _wait_for_the_others()


def dies_before_its_child(config: dict[str, Any]) -> None:
    _report(a=1)
    child = os.fork()
    if child == 0:
        time.sleep(100)
        Path(config["ended"]).touch()
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(config: dict[str, Any]) -> None:
    _report(a=1)
    if _rank() == 1:
        _stuck_in_here()
    _wait_for_the_others()


def _stuck_in_here() -> None:
    time.sleep(1000)


def stops_itself(config: dict[str, Any]) -> None:
    _report(a=1)
    if _rank() == 1:
        signal.raise_signal(signal.SIGSTOP)  # os.kill may stop it a little later, when it has met the others
    _wait_for_the_others()


def ignores_the_stop(config: dict[str, Any]) -> None:
    while True:
        try:
            _report(a=1)
        except BaseException:
            time.sleep(0.01)


def reports_on_rank_0_only(config: dict[str, Any]) -> None:
    for _ in range(5):
        if _rank() == 0:
            _report(a=1)
    if _rank() == 1:
        time.sleep(1000)


def never_reports(config: dict[str, Any]) -> None:
    print("done already")


def reports_a_list(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import report

    report({"val": {"losses": [1, 2]}})  # type: ignore[dict-item]


def leaves_a_child(config: dict[str, Any]) -> None:
    import subprocess

    child = subprocess.Popen(["sleep", "1000"])
    Path(config["out"]).write_text(str(child.pid))
    raise RuntimeError("and the child lives on")


def run(bench: Bench, launch: Launch, verdicts: dict[int, Verdict] | None = None) -> Failure:
    """Run it to its failure and see that nothing is left: no process, no placement group, no port."""
    outcome = bench.run(launch, verdicts)
    assert outcome.kind == "failed"
    assert outcome.failure is not None
    starts = [start for start in ray.get(bench.host.events.remote())[1] if start["segment"] == launch.segment_id]
    pids = [rank["pid"] for start in starts for rank in start["ranks"]]
    ports = listening(pids)
    bench.call("rest", False)  # a worker whose function only raised is kept for the next trial
    bench.call("settle")
    assert bench.call("stats") == {"running": 0, "waiting": 0, "idle": 0}
    assert remains(pids) == {"processes": [], "placement_groups": []}
    assert not [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr.port in ports]
    return outcome.failure


def test_a_rank_that_raises(bench: Bench) -> None:
    failure = run(bench, bench.launch(raises, 2))
    assert (failure.kind, failure.cause, failure.rank) == ("user", "exception", 1)
    assert failure.message == "ValueError: mat1 and mat2 shapes cannot be multiplied"
    assert failure.node
    assert "in raises" in failure.traceback
    assert "tuner/trials" not in failure.traceback, "only the user's frames"
    assert "shapes: 3 x 4" in failure.log_tail


def test_the_reports_before_another_rank_raises_are_kept(bench: Bench) -> None:
    launch = bench.launch(raises_after_reports, 2, scaling=NO_TORCH, params={"made": str(bench.folder / "made")})
    assert run(bench, launch, {1: Verdict(next_milestone=None)}).rank == 1
    assert [report.metrics["a"] for report in bench.reports(launch)] == [0, 1, 2, 3]


def test_the_checkpoint_before_another_rank_raises_is_kept(bench: Bench) -> None:
    """Rank 0 was killed while it committed the checkpoint."""
    launch = bench.launch(raises_after_a_checkpoint, 2, scaling=NO_TORCH, checkpoint_every=1)
    assert run(bench, launch, {1: Verdict(next_milestone=None)}).rank == 1
    [info] = bench.checkpoints(launch)
    assert checkpoints.committed(info.uri).files.keys() == {"part0", "part1"}


def test_the_upload_before_another_rank_raises_goes_on(bench: Bench, tmp_path: Path) -> None:
    slow = SlowStorage(tmp_path)
    slow.hold()
    launch = bench.launch(raises_after_a_checkpoint, 2, scaling=NO_TORCH, checkpoint_every=1, storage=slow.uri)
    outcome = bench.run(launch, {1: Verdict(next_milestone=None)})
    assert outcome.failure is not None
    assert outcome.failure.rank == 1
    [info] = outcome.uploading
    slow.let_go()
    assert bench.call("upload_end", launch.segment_id, info.id).ready
    assert checkpoints.committed(info.uri).files.keys() == {"part0", "part1"}


def test_the_reports_before_a_failure_without_a_known_cause_are_kept(bench: Bench) -> None:
    made = bench.folder / "made until then"
    launch = bench.launch(loses_its_peer, 2, scaling=NO_TORCH, params={"made": str(made)})
    assert run(bench, launch, {1: Verdict(next_milestone=None)}).cause == "peer_lost"
    assert [report.metrics["a"] for report in bench.reports(launch)][-1] >= int(made.read_text())


def test_all_ranks_raise(bench: Bench) -> None:
    failure = run(bench, bench.launch(raises_everywhere, 2, scaling=NO_TORCH))
    assert (failure.cause, failure.message) == ("exception", "KeyError: 'lr'")


def test_os_exit(bench: Bench) -> None:
    failure = run(bench, bench.launch(exits_hard, 2, scaling=NO_TORCH))
    assert (failure.kind, failure.cause, failure.rank) == ("user", "exit", 1)
    assert failure.message == "the process called os._exit(3)"
    assert "in exits_hard" in failure.log_tail, "the stack of the call"
    assert failure.traceback.startswith("no traceback: rank 1 (process ")
    assert failure.traceback.endswith("  tuner: os._exit(3) was called\n")


def test_sys_exit(bench: Bench) -> None:
    failure = run(bench, bench.launch(exits_softly, 2, scaling=NO_TORCH))
    assert (failure.cause, failure.rank, failure.message) == ("exception", 1, "SystemExit: bad luck")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_a_signal(bench: Bench, number: signal.Signals) -> None:
    scaling = {} if number == signal.SIGKILL else NO_TORCH
    failure = run(bench, bench.launch(dies, 2, scaling=scaling, params={"signal": int(number)}))
    expected = ("system", "killed") if number == signal.SIGTERM else ("user", "signal")
    assert (failure.kind, failure.cause, failure.rank) == (*expected, 1)
    if number in (signal.SIGSEGV, signal.SIGABRT):
        assert number.name in failure.message
        assert "in dies" in failure.log_tail, "faulthandler's stack"
    else:
        assert number.name in failure.message
    assert "the last words" in failure.log_tail


def test_a_death_is_noticed_while_a_forked_child_lives(bench: Bench, tmp_path: Path) -> None:
    """The child inherits the connection by whose end Ray notices the death of a worker."""
    ended = tmp_path / "ended"
    failure = run(bench, bench.launch(dies_before_its_child, scaling=NO_TORCH, params={"ended": str(ended)}))
    assert (failure.cause, failure.rank) == ("signal", 0)
    assert not ended.exists()


def test_a_hang_shows_every_ranks_stack(bench: Bench) -> None:
    failure = run(bench, bench.launch(hangs, 2, limits={"hang_timeout_s": 2.0}))
    assert (failure.kind, failure.cause) == ("user", "hang")
    assert "no report for 2 s" in failure.message
    assert "_stuck_in_here" in failure.stacks["1"]
    assert "_wait_for_the_others" in failure.stacks["0"]


def test_a_rank_that_is_mute_for_a_while_does_not_hang(bench: Bench) -> None:
    params, no_group_stays = {"go": str(bench.folder / "go")}, {"reuse_workers": False}
    launch = bench.launch(sleeps_until_told, params=params, limits={"hang_timeout_s": 6.0}, scaling=no_group_stays)
    running = bench.begin(launch)
    bench.wait_for_report(launch)
    time.sleep(4.5)  # it is looked at after six seconds, and its answer is waited for
    rank = psutil.Process(bench.started(launch)["ranks"][0]["pid"])
    rank.suspend()
    done, _ = ray.wait([running], timeout=5.0)  # shorter than a hang
    (bench.folder / "go").touch()
    rank.resume()
    assert not done, "it was taken for a hang"
    assert ray.get(running, timeout=60).kind == "returned"


def sleeps_until_told(config: dict[str, Any]) -> None:
    _report(a=1)
    while not Path(config["go"]).exists():
        time.sleep(0.05)
        _report(a=1)


def test_a_stopped_process(bench: Bench) -> None:
    failure = run(bench, bench.launch(stops_itself, 2, scaling=NO_TORCH, limits={"hang_timeout_s": 2.0}))
    assert failure.cause == "hang"
    assert "no answer" in failure.stacks["1"]
    assert "_wait_for_the_others" in failure.stacks["0"]


def test_a_stop_that_is_ignored(bench: Bench) -> None:
    launch = bench.launch(ignores_the_stop, 2, scaling=NO_TORCH, limits={"stop_grace_s": 0.5})
    failure = run(bench, launch, {1: Verdict(action="stop")})
    assert failure.cause == "stop_ignored"
    assert "did not end within 0.5 s of being told to stop" in failure.message
    assert "ignores_the_stop" in failure.stacks["0"]


def test_a_rank_that_does_not_report_as_often(bench: Bench) -> None:
    launch = bench.launch(reports_on_rank_0_only, 2, scaling=NO_TORCH, limits={"stop_grace_s": 0.5})
    failure = run(bench, launch, {3: Verdict(action="stop")})
    assert (failure.cause, failure.rank) == ("stop_ignored", 1)
    assert "rank 1 has made 0 reports" in failure.message
    assert "the same number of times" in failure.message


def test_no_report(bench: Bench) -> None:
    failure = run(bench, bench.launch(never_reports, 2, scaling=NO_TORCH))
    assert (failure.kind, failure.cause) == ("user", "no_report")
    assert "without calling tuner.report" in failure.message
    assert failure.log_tail == "done already"


def test_a_metric_that_is_no_number(bench: Bench) -> None:
    failure = run(bench, bench.launch(reports_a_list, scaling=NO_TORCH))
    assert (failure.cause, failure.rank) == ("exception", 0)
    assert "metric 'val/losses' must be a number" in failure.message


def test_child_processes_go_with_their_rank(bench: Bench, tmp_path: Path) -> None:
    run(bench, bench.launch(leaves_a_child, scaling=NO_TORCH, params={"out": str(tmp_path / "pid")}))
    assert remains([int((tmp_path / "pid").read_text())])["processes"] == []


def test_an_entrypoint_that_is_not_there(bench: Bench) -> None:
    failure = run(bench, bench.launch("tuner.no_such_module:train", scaling=NO_TORCH))
    assert failure.kind == "spec"
    assert "tuner.no_such_module cannot be imported on this worker" in failure.message
    failure = run(bench, bench.launch("json:no_such_function"))
    assert failure.kind == "spec"
    assert "json has no no_such_function" in failure.message


def test_a_killed_segment(bench: Bench) -> None:
    launch = bench.launch(hangs, 2)
    running = bench.begin(launch)
    bench.wait_for_report(launch)
    pids = [rank["pid"] for rank in bench.started(launch)["ranks"]]
    bench.call("kill", launch.segment_id, "the lease was lost")
    failure = ray.get(running, timeout=30).failure
    assert (failure.kind, failure.cause, failure.message) == ("system", "killed", "the lease was lost")
    bench.call("settle")
    assert remains(pids) == {"processes": [], "placement_groups": []}


def test_closing_leaves_nothing(local_ray: None, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    idle, busy = bench.launch(ends, 2, scaling=NO_TORCH), bench.launch(hangs, 2, scaling=NO_TORCH)
    bench.run(idle)
    running = bench.begin(busy)
    bench.wait_for_report(busy)
    waiting = bench.begin(bench.launch(hangs, 8))
    pids = [rank["pid"] for launch in (idle, busy) for rank in bench.started(launch)["ranks"]]
    bench.close()
    assert {ray.get(ref, timeout=5).kind for ref in (running, waiting)} == {"failed"}
    assert remains(pids) == {"processes": [], "placement_groups": []}


def ends(config: dict[str, Any]) -> None:
    _report(a=1)


def test_a_killed_host_takes_its_groups_along(local_ray: None, tmp_path: Path) -> None:
    bench = Bench(tmp_path, detached=True)  # as a service runs it
    launch = bench.launch(hangs, 2, scaling=NO_TORCH)
    bench.begin(launch)
    bench.wait_for_report(launch)
    pids = [rank["pid"] for rank in bench.started(launch)["ranks"]]
    os.kill(bench.call("pid"), signal.SIGKILL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and any(remains(pids).values()):
        time.sleep(0.1)
    assert remains(pids) == {"processes": [], "placement_groups": []}


def test_a_rank_whose_node_cannot_be_reached(bench: Bench) -> None:
    """The node answers the checks, so that it is used again soon. tests/nodes has nodes that do not."""
    launch = bench.launch(hangs, 2, scaling=NO_TORCH)
    running = bench.begin(launch)
    ranks = bench.started(launch)["ranks"]
    bench.wait_for_report(launch)
    ray.get(bench.host.cut.remote(launch.segment_id, 1, "its node has not answered for 12 s"))
    failure = ray.get(running, timeout=60).failure
    assert (failure.kind, failure.cause, failure.rank) == ("system", "node_unreachable", 1)
    assert (failure.message, failure.pid) == ("its node has not answered for 12 s", ranks[1]["pid"])
    again = bench.run(bench.launch(raises_everywhere, 1, scaling=NO_TORCH)).failure
    assert again is not None
    assert again.cause == "exception", "the only node is used again, after it has answered"
    deadline = time.monotonic() + 30
    while remains([rank["pid"] for rank in ranks])["processes"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert remains([rank["pid"] for rank in ranks])["processes"] == []
