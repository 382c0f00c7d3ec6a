"""The failure that is named if a rank fails, even while others still connect to it."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
import ray

from tuner.domain.experiment import Limits
from tuner.domain.segments import CheckpointInfo, Failure, Outcome
from tuner.trials.groups.failures import Findings
from tuner.trials.groups.segments import watch
from tuner.trials.groups.segments.segment_run import SegmentRun
from tuner.trials.groups.segments.watch import Watch
from tuner.trials.messages.launch import Placed
from tuner.trials.messages.lost import RankLost
from tuner.trials.messages.protocol import Progress, RankError, RankResult

RESET = RankError(type="DistNetworkError", message="Connection reset by peer", communication=True)
NOT_PREPARED = RankResult(
    kind="failed", error=RankError(type="RuntimeError", message="was not prepared", communication=True)
)


class Pool:
    async def on_node(self, node: str, function: Any, *arguments: Any) -> Findings:
        return Findings()


def answered(answer: Any) -> asyncio.Future[Any]:
    """Return a rank's pending answer: a value, an error, or ... if none comes."""
    future = asyncio.get_running_loop().create_future()
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    elif answer is not ...:
        future.set_result(answer)
    return future


def watch_over(ranks: int, limits: Limits | None = None) -> Watch:
    places = [Placed(rank=rank, node="node", host="host", ip="10.0.0.1", pid=100 + rank) for rank in range(ranks)]
    workers = [SimpleNamespace(node="node", oom_kills=0) for _ in range(ranks)]
    rank_0 = SimpleNamespace(send_reports=SimpleNamespace(remote=lambda: answered([])))
    group = cast(Any, SimpleNamespace(actors=[rank_0], workers=workers, placed=lambda: places))
    launch = cast(Any, SimpleNamespace(segment_id="seg", log_dir="", checkpoint=None, limits=limits or Limits()))
    return Watch(SegmentRun(launch, asyncio.get_running_loop().create_future(), group), group, Pool())


def named(ready: list[Any], trained: list[Any]) -> Failure:
    """Return the failure that is named if two ranks answer like this; see `answered`."""

    async def run() -> Failure:
        found = await watch_over(2).until_ready([*map(answered, ready)], [*map(answered, trained)])
        assert isinstance(found, Failure)
        return found

    return asyncio.run(run())


def test_a_rank_that_dies_in_the_function_while_another_connects_to_it() -> None:
    """The other rank's connection error was named, as if the user's code had raised it."""
    failure = named([0, RESET], [RankLost(-9), NOT_PREPARED])
    assert (failure.rank, failure.cause, failure.kind) == (0, "signal", "user")


def test_a_rank_that_raises_in_the_function_while_another_connects_to_it() -> None:
    raised = RankResult(kind="failed", error=RankError(type="ValueError", message="no such file"))
    failure = named([0, RESET], [raised, NOT_PREPARED])
    assert (failure.rank, failure.message) == (0, "ValueError: no such file")


def test_without_another_failure_the_connection_error_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_CAUSE_S", 0.05)
    failure = named([0, RESET], [..., NOT_PREPARED])
    assert (failure.rank, failure.kind, failure.cause) == (1, "system", "peer_lost"), "the code is not to blame"
    assert named([RESET, RESET], [NOT_PREPARED, NOT_PREPARED]).message.startswith("DistNetworkError")


def test_an_import_that_fails_on_all_ranks_is_a_mistake_in_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_CAUSE_S", 0.05)
    refused = RankError(
        type="EntrypointError", message="train cannot be imported: Connection refused", cause="spec", communication=True
    )
    assert named([refused, refused], [NOT_PREPARED, NOT_PREPARED]).kind == "spec"


@pytest.mark.parametrize(
    ("ready", "trained", "before"),
    [
        ([RankLost(-9), ...], [..., ...], True),
        ([..., RESET], [RankLost(-9), NOT_PREPARED], True),  # the death is noticed late
        ([0, RankLost(-9)], [], True),  # nobody has been asked to train
        ([0, RankLost(-9)], [..., ...], False),
        ([0, RESET], [RankLost(-9), NOT_PREPARED], False),  # in the training function
    ],
)
def test_a_process_that_dies_once_a_rank_may_train_was_not_lost_before(
    ready: list[Any], trained: list[Any], before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment then ran again in another warm group, although the reports of its training counted."""
    monkeypatch.setattr(watch, "_CAUSE_S", 0.05)

    async def run() -> tuple[bool, bool]:
        over = watch_over(2)
        assert isinstance(await over.until_ready([*map(answered, ready)], [*map(answered, trained)]), Failure)
        return over.lost_rank, over.lost_before_training

    assert asyncio.run(run()) == (True, before)


UNAVAILABLE = ray.exceptions.ActorUnavailableError("the connection was lost", None)
FULL = ray.exceptions.OutOfMemoryError("1 worker(s) were killed due to the node running low on memory.")


@pytest.mark.parametrize(
    ("answers", "kind", "cause"),
    [
        ([UNAVAILABLE, TimeoutError(), FULL], "user", "oom"),
        ([UNAVAILABLE, Progress(3, 0.1, False, False)], "system", "actor_unavailable"),
    ],
)
def test_a_death_that_ray_learns_of_late_is_not_taken_for_a_lost_connection(
    answers: list[Any], kind: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, a trial that used too much memory was started again and again, whatever `max_failures` said."""

    async def ask(run: SegmentRun, question: str, ranks: Any = None) -> dict[int, Any]:
        return {0: answers.pop(0)}

    monkeypatch.setattr(SegmentRun, "ask", ask)

    async def failure() -> Failure | None:
        return (await watch_over(1).until_ended([answered(UNAVAILABLE)])).failure

    found = asyncio.run(failure())
    assert found is not None
    assert (found.kind, found.cause) == (kind, cause)
    assert answers == []


def test_a_segment_that_has_to_end_does_not_wait_for_the_cause_of_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def ask(run: SegmentRun, question: str, ranks: Any = None) -> dict[int, Any]:
        asked.append(question)
        run.end("failed", "killed by a user")
        return {0: TimeoutError()}

    monkeypatch.setattr(SegmentRun, "ask", ask)

    async def failure() -> Failure | None:
        return (await watch_over(1).until_ended([answered(UNAVAILABLE)])).failure

    found = asyncio.run(failure())
    assert found is not None
    assert (found.cause, asked) == ("actor_unavailable", ["progress"])


def test_a_rank_that_cannot_be_reached_while_it_saves_is_not_said_to_ignore_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One lost answer failed the trial, as if the ranks had not reported equally often."""

    async def run() -> Outcome:
        saved = asyncio.get_running_loop().create_future()
        asked = 0

        async def ask(run: SegmentRun, question: str, ranks: Any = None) -> dict[int, Any]:
            nonlocal asked
            asked += 1
            if asked == 2 and question == "progress":
                saved.set_result(RankResult(kind="left", reports=2))
            return {0: UNAVAILABLE} if question == "progress" else {}

        monkeypatch.setattr(SegmentRun, "ask", ask)
        limits = Limits(stop_grace_s=0.05)
        return await watch_over(2, limits).until_ended([saved, answered(RankResult(kind="left", reports=2))])

    outcome = asyncio.run(run())
    assert (outcome.kind, outcome.failure) == ("left", None)


REFUSED = RankError(type="RuntimeError", message="cannot fetch the data: Connection refused", communication=True)


def test_the_connection_error_of_a_single_rank_is_its_own() -> None:
    """It counted as the loss of another rank, so the trial was started again ten times, whatever `max_failures` said."""

    async def run() -> list[Any]:
        ended = await watch_over(1).until_ended([answered(RankResult(kind="failed", reports=3, error=REFUSED))])
        assert ended.reports == 3
        return [ended.failure, await watch_over(1).until_ready([answered(REFUSED)], [answered(...)])]

    for failure in asyncio.run(run()):
        assert (failure.kind, failure.cause) == ("user", "exception")


def test_ranks_that_do_not_answer_hang_only_if_the_last_report_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial was killed 20 s after the first question that no rank answered, although it had reported just before."""
    monkeypatch.setattr(watch, "_UNRESPONSIVE_S", 0.05)
    monkeypatch.setattr(watch, "LOOK_S", 0.02)
    reported_at: list[float] = []

    async def ask(run: SegmentRun, question: str, ranks: Any = None) -> dict[int, Any]:
        if question == "progress" and not reported_at:
            run.reported_at = time.monotonic()
            reported_at.append(run.reported_at)
        return {0: TimeoutError()} if question == "progress" else {}

    async def failure_and_seconds() -> tuple[Failure | None, float]:
        watching = watch_over(1, Limits(hang_timeout_s=1.0))
        outcome = await asyncio.wait_for(watching.until_ended([answered(...)]), 30)
        return outcome.failure, time.monotonic() - reported_at[0]

    monkeypatch.setattr(SegmentRun, "ask", ask)
    failure, seconds = asyncio.run(failure_and_seconds())
    assert failure is not None
    assert failure.cause == "hang"
    assert seconds >= 1.0, "no report for 1 s"


def test_the_time_for_which_the_driver_was_stopped_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `docker pause`, or SIGSTOP to all processes, each trial was killed and failed with "no report for ... s"."""
    stopped = [0.0]
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + stopped[0]))

    async def run(idle: float) -> Failure | None:
        stopped[0] = 0.0
        watching, rank = watch_over(1, Limits(hang_timeout_s=2.0)), answered(...)

        async def ask(run: SegmentRun, question: str, ranks: Any = None) -> dict[int, Any]:
            if question == "progress" and not rank.done():
                rank.set_result(RankResult(kind="returned", reports=3))
                return {0: Progress(reports=3, idle_s=idle, waiting=False)}
            return {}

        monkeypatch.setattr(SegmentRun, "ask", ask)
        asyncio.get_running_loop().call_later(0.1, stopped.__setitem__, 0, 30.0)
        return (await watching.until_ended([rank])).failure

    assert asyncio.run(run(31.0)) is None, "for a second"
    failure = asyncio.run(run(32.5))
    assert failure is not None
    assert failure.cause == "hang", "before the stop, too"


def test_a_rank_that_did_not_answer_before_a_stop_has_more_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = [0.0]
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + stopped[0]))
    monkeypatch.setattr(watch, "LOOK_S", 0.5)
    asked = 0

    async def run() -> Failure | None:
        watching, rank = watch_over(1, Limits(hang_timeout_s=1.0)), answered(...)

        async def ask(run: SegmentRun, question: str, ranks: Any = None) -> dict[int, Any]:
            nonlocal asked
            asked += question == "progress"
            if asked == 1:
                asyncio.get_running_loop().call_later(0.1, stopped.__setitem__, 0, 30.0)
            elif not rank.done():
                rank.set_result(RankResult(kind="returned", reports=3))
            return {0: TimeoutError()}

        monkeypatch.setattr(SegmentRun, "ask", ask)
        return (await watching.until_ended([rank])).failure

    assert asyncio.run(run()) is None
    assert asked == 2


def test_ranks_that_get_ready_have_more_time_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = [0.0]
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + stopped[0]))
    monkeypatch.setattr(watch, "_READY_S", 3.0)

    async def run() -> Any:
        first, second = answered(...), answered(...)
        loop = asyncio.get_running_loop()
        loop.call_later(0.1, stopped.__setitem__, 0, 30.0)
        loop.call_later(0.2, first.set_result, 0)
        loop.call_later(0.3, second.set_result, 0)
        return await watch_over(2, Limits(hang_timeout_s=None)).until_ready([first, second], [])

    assert asyncio.run(run()) is None


def test_only_oom_kills_since_the_start_of_the_segment_explain_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has run for long had been called killed for lack of memory because another one was, days before."""

    async def run(kills: int) -> Failure:
        over = watch_over(1)
        monkeypatch.setattr(Pool, "on_node", AsyncMock(return_value=Findings(oom_kills=kills)))
        assert await over.until_ready([answered(3)], []) is None
        failure = (await over.until_ended([answered(RankLost(-9))])).failure
        assert failure is not None
        return failure

    assert asyncio.run(run(3)).cause == "signal"
    assert asyncio.run(run(4)).cause == "oom"


@pytest.mark.parametrize("killed", [False, True])
def test_rank_0_of_a_failed_segment_has_time_to_save_unless_the_trial_is_killed(
    monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """It was stopped after two seconds, and its last checkpoint was lost."""
    monkeypatch.setattr(watch, "ANSWER_S", 0.01)
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    raised = RankResult(kind="failed", error=RankError(type="ValueError", message="no such file"))
    info = CheckpointInfo(id="ckp", uri="/checkpoints/ckp", step=1)

    async def outcome() -> Outcome:
        over, saved, looks = watch_over(2), answered(...), 0

        async def ask(run: SegmentRun, question: str, ranks: Any = None) -> dict[int, Any]:
            nonlocal looks
            looks += 1
            if looks == 3:
                run.end("left", "killed") if killed else saved.set_result([info])
            return {0: Progress(1, 0.0, False, True)}

        monkeypatch.setattr(SegmentRun, "ask", ask)
        cast(Any, over._group).actors[0].send_reports.remote = lambda: saved
        return await over.until_ended([answered(...), answered(raised)])

    assert asyncio.run(outcome()).uploading == (() if killed else (info,))


@pytest.mark.parametrize(("arrives", "named"), [(True, (0, "exception")), (False, (1, "peer_lost"))])
def test_the_error_behind_a_lost_connection_has_time_to_arrive(
    monkeypatch: pytest.MonkeyPatch, arrives: bool, named: tuple[int, str]
) -> None:
    monkeypatch.setattr(watch, "_CAUSE_S", 60.0 if arrives else 0.02)
    raised = RankResult(kind="failed", error=RankError(type="ValueError", message="no such file"))
    reset = RankResult(kind="failed", error=RESET)

    async def run() -> Failure | None:
        first = answered(...)
        if arrives:
            asyncio.get_running_loop().call_later(0.05, first.set_result, raised)
        return (await watch_over(2).until_ended([first, answered(reset)])).failure

    failure = asyncio.run(run())
    assert failure is not None
    assert (failure.rank, failure.cause) == named


def test_a_rank_that_waits_for_long_is_no_hang_while_another_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> Failure | None:
        ranks = [answered(...), answered(...)]

        async def ask(run: SegmentRun, question: str, ranks_asked: Any = None) -> dict[int, Any]:
            for rank in ranks:
                if question == "progress" and not rank.done():
                    rank.set_result(RankResult(kind="returned", reports=3))
            return {rank: Progress(reports=3, idle_s=60.0 * rank, waiting=False) for rank in (0, 1)}

        monkeypatch.setattr(SegmentRun, "ask", ask)
        return (await watch_over(2, Limits(hang_timeout_s=0.05)).until_ended(ranks)).failure

    assert asyncio.run(run()) is None


def test_a_rank_whose_node_cannot_say_why_it_died_is_lost_with_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "on_node", AsyncMock(side_effect=OSError("no route to host")))

    async def run() -> Failure | None:
        return (await watch_over(1).until_ended([answered(RankLost(-9))])).failure

    failure = asyncio.run(run())
    assert failure is not None
    assert (failure.kind, failure.cause) == ("system", "node_lost")
