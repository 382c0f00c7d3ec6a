from __future__ import annotations

import pytest
import ray

from tuner.trials.groups.failures import Findings, from_death, from_error, unequal_reports
from tuner.trials.messages.launch import Placed
from tuner.trials.messages.lost import RankLost
from tuner.trials.messages.protocol import RankError, RankResult

PLACE = Placed(rank=3, node="abc", host="gpu-7", ip="10.0.0.7", pid=4242)
CRASH = "The actor is dead because its worker process has died. Worker unexpectedly exits with a connection error."


SIGTERM_STACK = 'epoch 2\nStack (most recent call first):\n  File "worker.py", line 7 in main_loop'
FRAMES = '\n  File "model.py", line 7 in forward' * 100


class Preempted(Exception):
    preempted = True


@pytest.mark.parametrize(
    ("error", "found", "kind", "cause", "words"),
    [
        (Exception(CRASH), Findings(), "user", "signal", "left no trace, most likely SIGKILL"),
        (Exception(CRASH), Findings(oom_kills=6), "user", "oom", "killed by the kernel because memory ran out"),
        (Exception(CRASH), Findings(log_end=SIGTERM_STACK), "system", "killed", "the process was killed by SIGTERM"),
        (Exception(CRASH), Findings(log_end=f"{SIGTERM_STACK}\nepoch 3"), "user", "signal", "most likely SIGKILL"),
        (Exception(CRASH), Findings(log_end=SIGTERM_STACK + FRAMES), "system", "killed", "killed by SIGTERM"),
        (
            Exception(CRASH),
            Findings(log_end=f"Fatal Python error: Aborted\n\nThread{FRAMES}\n\nThread{FRAMES}"),
            "user",
            "signal",
            "SIGABRT",
        ),
        (
            Exception(CRASH),
            Findings(log_end="x\nFatal Python error: Segmentation fault\n\nThread"),
            "user",
            "signal",
            "SIGSEGV",
        ),
        (
            Exception(CRASH),
            Findings(log_end="tuner: os._exit(-1) was called"),
            "user",
            "exit",
            "the process called os._exit(-1)",
        ),
        (Exception(CRASH), Findings(node_alive=False), "system", "node_lost", "its node was lost"),
        (
            Exception("The actor died because its node has died. Node Id: 1"),
            Findings(),
            "system",
            "node_lost",
            "its node was lost",
        ),
        (
            Exception("1 worker(s) were killed due to the node running low on memory."),
            Findings(),
            "user",
            "oom",
            "running out of memory",
        ),
        (Exception("killed by `ray.kill`"), Findings(), "system", "killed", "through Ray"),
        (
            ray.exceptions.ActorUnavailableError(CRASH, None),
            Findings(oom_kills=6),
            "system",
            "actor_unavailable",
            "Ray could not reach the process for a while",
        ),
        (
            ray.exceptions.ActorUnavailableError(CRASH, None),
            Findings(node_alive=False),
            "system",
            "node_lost",
            "its node was lost",
        ),
        # another process on the machine was killed for lack of memory
        (RankLost(-15), Findings(oom_kills=6), "system", "killed", "killed by SIGTERM"),
        (RankLost(-11), Findings(oom_kills=6), "user", "signal", "killed by SIGSEGV"),
        (RankLost(3), Findings(oom_kills=6), "user", "exit", "exit code 3"),
        (RankLost(-9), Findings(oom_kills=6), "user", "oom", "killed by the kernel because memory ran out"),
        (RankLost(-9), Findings(oom_kills=5), "user", "signal", "killed by SIGKILL"),
        (Exception(CRASH), Findings(log_end=SIGTERM_STACK, oom_kills=6), "system", "killed", "killed by SIGTERM"),
        (Exception("killed by `ray.kill`"), Findings(oom_kills=6), "system", "killed", "through Ray"),
        (Preempted(CRASH), Findings(), "system", "preempted", "its node was preempted"),
        (Exception("something new\nin two lines"), Findings(), "system", "lost", "was lost: in two lines"),
    ],
)
def test_why_a_process_died(error: Exception, found: Findings, kind: str, cause: str, words: str) -> None:
    failure = from_death(error, PLACE, 5, found)
    assert (failure.kind, failure.cause) == (kind, cause)
    assert words in failure.message
    assert (failure.rank, failure.node, failure.pid) == (3, "gpu-7", 4242)
    assert failure.headline(12).startswith("trial 12, rank 3 on gpu-7: ")


def test_a_process_that_leaves_no_traceback_leaves_its_last_lines_instead() -> None:
    """`result.trials[i].traceback` shows which rank failed, with which exit code, and what it printed last."""
    printed = [*(f"step {n}" for n in range(40)), "  in train", "tuner: os._exit(3) was called"]
    failure = from_death(Exception(CRASH), PLACE, 5, Findings(log_end="\n".join(printed)))
    head, *lines = failure.traceback.splitlines()
    assert head == (
        "no traceback: rank 3 (process 4242 on gpu-7) raised nothing, the process called os._exit(3); "
        "the last lines of its log:"
    )
    assert [line.removeprefix("  ") for line in lines] == printed[-20:]
    silent = from_death(Exception(CRASH), PLACE, 5, Findings()).traceback
    assert silent.endswith("most likely SIGKILL; it printed nothing\n")
    gone = from_death(Exception("The node has died."), PLACE, 0, Findings(node_alive=False)).traceback
    assert gone.endswith("its node was lost; its log cannot be read\n")


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ([5, 5, 5], ""),
        ([5], ""),
        ([0, 0], ""),
        ([5, 6, 5, 0], "rank 0 5, rank 1 6, rank 3 0; every rank must call tuner.report the same number of times"),
        ([2] + [1] * 12, "rank 8 1 and 4 more ranks with other counts; every rank"),
    ],
)
def test_ranks_that_report_more_or_less_often_than_rank_0(counts: list[int], says: str) -> None:
    found = unequal_reports({rank: RankResult(kind="returned", reports=count) for rank, count in enumerate(counts)})
    assert says in found
    assert bool(says) == bool(found)


def test_ranks_that_leave_at_a_verdict_are_even_and_one_that_returned_before_it_is_not() -> None:
    left = RankResult(kind="left", reports=7)
    assert unequal_reports({1: left, 0: left}) == ""
    assert "rank 0 7, rank 1 3;" in unequal_reports({0: left, 1: RankResult(kind="returned", reports=3)})


def test_only_rank_0_need_return_a_value() -> None:
    value, nothing = RankResult(kind="returned", reports=1, as_value=True), RankResult(kind="returned")
    assert unequal_reports({0: value, 1: nothing, 2: value}) == ""
    assert "rank 0 1, rank 1 2;" in unequal_reports({0: value, 1: RankResult(kind="returned", reports=2)})
    assert "rank 0 1, rank 1 0;" in unequal_reports({0: RankResult(kind="returned", reports=1), 1: nothing})


def test_an_error_of_the_user() -> None:
    failure = from_error(RankError(type="ValueError", message="no", traceback="Traceback", log_tail="log"), PLACE)
    assert (failure.kind, failure.cause, failure.message) == ("user", "exception", "ValueError: no")
    assert (failure.traceback, failure.log_tail) == ("Traceback", "log")
    assert from_error(RankError(type="KeyError", message="KeyError"), PLACE).message == "KeyError"
    spec = from_error(RankError(type="EntrypointError", message="gone", cause="spec"), PLACE)
    assert spec.kind == "spec"
