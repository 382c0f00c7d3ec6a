"""The loop with a journal and groups in memory: it commits first, then answers and acts, and it survives errors."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import tuner
from tuner.domain import events as e
from tuner.domain.batch import Batch
from tuner.domain.decisions import Decision, Note
from tuner.domain.events import CheckpointInfo, Failure
from tuner.domain.experiment import CheckpointPolicy, Limits, Objective, Scaling, Spec
from tuner.domain.segments import Outcome, SegmentRef
from tuner.domain.states import ExperimentState
from tuner.domain.trial import Population
from tuner.driver import loop as module
from tuner.driver import pulse
from tuner.driver.assemble import Parts, assemble
from tuner.driver.core.state.usage import Usage
from tuner.driver.loop import ExperimentLoop, Stopped, runs_user_code
from tuner.errors import CheckpointUnreachable, LostLease, Retryable
from tuner.schedulers import FIFOScheduler
from tuner.schedulers.base import Fact
from tuner.schedulers.stoppers import MaximumIterationStopper
from tuner.search.base import Searcher, Suggestion
from tuner.search.random_search import RandomSearch
from tuner.space import Space


class Memory:
    """Imitates the journal and the groups. Each trial reports `reports` times. On request, every third call fails."""

    def __init__(self, reports: int = 3, checkpoints: bool = False) -> None:
        self.batches: list[Batch] = []
        self.reports, self.checkpoints = reports, checkpoints
        self.failures: list[Exception] = []
        self.offload_error: Exception | None = None
        self.deleted: list[str] = []
        self.pinned: set[str] = set()
        self.warning = ""
        self.loop: ExperimentLoop

    async def commit(self, batch: Batch) -> Collection[str]:
        if self.failures:
            raise self.failures.pop(0)
        self.batches.append(batch)
        return self.pinned.intersection(batch.deletes)

    @property
    def committed(self) -> set[tuple[int, int]]:
        """Return (trial, report_no) of the durable reports."""
        entries = (entry for batch in self.batches for _, entry in batch.log)
        return {(x.trial, x.report_no) for x in entries if isinstance(x, e.Reported)}

    async def run(self, segment: SegmentRef, milestone: int | None) -> Outcome:
        await self.loop.put(e.SegmentStarted(time=1.0, trial=segment.trial, segment=segment.ordinal))
        for count in range(1, self.reports + 1):
            info = (
                CheckpointInfo(id=f"c{segment.trial}-{count}", uri="memory:", step=count) if self.checkpoints else None
            )
            event = e.Reported(
                time=1.0 + count,
                trial=segment.trial,
                segment=segment.ordinal,
                report_no=count,
                iteration=count,
                metrics={"loss": 1 / count},
                checkpoint=info,
            )
            verdict = await self.loop.report([event])
            assert (segment.trial, count) in self.committed, "answered before it was committed"
            assert verdict is not None
            if verdict.action != "continue":
                return Outcome(kind="left", warning=self.warning)
        return Outcome(kind="returned", warning=self.warning)

    async def interrupt(self, segment: SegmentRef, why: str) -> None:
        pass

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        await asyncio.sleep(0.01)
        self.deleted.append(info.id)

    async def offload(self, function: Callable[..., Any], *args: Any) -> Any:
        if self.offload_error is not None:
            raise self.offload_error
        return function(*args)

    async def suggest(self, searcher: Searcher, number: int, trials: Population) -> Suggestion | None:
        if self.offload_error is not None:
            raise self.offload_error
        return searcher.suggest(number, trials)

    async def judge(self, number: int, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        return []


def driven(memory: Memory, **options: Any) -> ExperimentLoop:
    space = Space.from_python({"x": tuner.uniform(0, 1)})
    given = {"scheduler": {"type": "fifo"}, "search": {"type": "random"}, "num_samples": 3}
    given |= {"checkpoint": CheckpointPolicy(interval_s=None), **options}
    spec = Spec(
        name="loop",
        space=space.to_json(),
        objectives=(Objective("loss", "min"),),
        limits=Limits(max_concurrent_trials=2),
        **given,
    )
    memory.loop = ExperimentLoop(assemble(spec, space), memory, memory)
    return memory.loop


async def test_runs_to_the_end_and_answers_only_what_is_committed() -> None:
    memory = Memory()
    state = await driven(memory).run(epoch=1, slots=None)
    assert state is ExperimentState.COMPLETED
    assert memory.committed == {(n, c) for n in range(3) for c in range(1, 4)}
    numbers = [seq for batch in memory.batches for seq, _ in batch.log]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_a_driver_knows_at_its_takeover_what_users_have_requested_meanwhile() -> None:
    memory = Memory()
    state = await driven(memory).run(1, None, {1: e.Commanded(time=3.0, command="cancel")})
    assert state is ExperimentState.CANCELLED
    assert "start" not in [entry.KIND for batch in memory.batches for _, entry in batch.log]


async def test_only_reports_within_the_constraints_become_the_best() -> None:
    memory = Memory()
    await driven(memory, search={"type": "tpe", "constraints": {"loss": {"min": 0.4}}}).run(epoch=1, slots=None)
    best = {seq: values for batch in memory.batches for seq, values in (batch.best or {}).items()}
    entries = {seq: entry for batch in memory.batches for seq, entry in batch.log}
    found = [(getattr(entries[seq], "report_no", 0), values) for seq, values in best.items()]
    assert found == [(1, {"loss": 1.0}), (2, {"loss": 0.5})], "a loss of 1/3 is below 0.4"
    assert memory.batches[0].best is not None
    unconstrained = Memory()
    await driven(unconstrained).run(epoch=1, slots=None)
    assert {batch.best for batch in unconstrained.batches} == {None}


async def test_a_database_that_is_away_for_a_moment_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_COMMIT_S", (0.01, 0.01))
    memory = Memory()
    memory.failures = [OSError("away"), OSError("away")]
    assert await driven(memory).run(epoch=1, slots=None) is ExperimentState.COMPLETED
    assert len(memory.committed) == 9


class Away(Retryable):
    """The database is out of reach."""


async def test_a_database_that_is_away_for_long_costs_nothing_and_holds_up_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_COMMIT_S", (0.0,))
    away, other = Memory(), Memory()
    back, attempts = False, 0
    commit = away.commit

    async def fails(batch: Batch) -> None:
        nonlocal attempts
        if not back:
            attempts += 1
            raise Away("connection refused")
        await commit(batch)

    away.commit = fails  # type: ignore[method-assign]
    loop = driven(away)
    task = asyncio.create_task(loop.run(1, None))
    assert await driven(other).run(1, None) is ExperimentState.COMPLETED
    while attempts < 1000:
        await asyncio.sleep(0)
    assert not away.batches
    assert not task.done()
    assert not loop._launched, "nothing is started before it is committed that it shall be"
    back = True
    assert await asyncio.wait_for(task, 10) is ExperimentState.COMPLETED
    assert len(away.committed) == 9


async def test_an_outage_may_be_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_COMMIT_S", (0.0,))
    memory = Memory()

    async def fails(batch: Batch) -> None:
        raise Away("connection refused")

    memory.commit = fails  # type: ignore[method-assign]
    loop = driven(memory)
    loop.outage_s = 0.05
    with pytest.raises(Away):
        await loop.run(epoch=1, slots=None)
    assert memory.batches == []


async def test_an_error_that_does_not_pass_is_soon_final(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_COMMIT_S", (0.0,))
    memory = Memory()
    memory.failures = [ValueError("no such column") for _ in range(10)]
    with pytest.raises(ValueError, match="no such column"):
        await driven(memory).run(epoch=1, slots=None)
    assert len(memory.failures) == 10 - module.TRIES


async def test_a_lost_lease_ends_the_loop_at_once() -> None:
    memory = Memory()
    memory.failures = [LostLease("another driver")]
    with pytest.raises(LostLease):
        await driven(memory).run(epoch=1, slots=None)
    assert memory.batches == []


async def test_a_report_that_cannot_be_committed_gets_the_error_as_its_answer() -> None:
    """Whoever waited for its verdict, such as the request of an agent, had waited forever."""
    memory, made = Memory(), list[asyncio.Task[Any]]()

    async def run(segment: SegmentRef, milestone: int | None) -> Outcome:
        about: dict[str, Any] = {"trial": 0, "segment": 1}
        await memory.loop.put(e.SegmentStarted(time=1.0, **about))
        memory.failures = [LostLease("another driver")]
        report = e.Reported(time=2.0, report_no=1, iteration=1, metrics={"loss": 1.0}, **about)
        made.append(asyncio.create_task(memory.loop.report([report])))
        await asyncio.sleep(3600)
        return Outcome(kind="returned")

    memory.run = run  # type: ignore[method-assign]
    with pytest.raises(LostLease):
        await driven(memory, num_samples=1).run(epoch=1, slots=None)
    with pytest.raises(LostLease):
        await asyncio.wait_for(made[0], 1)


async def test_whoever_reports_to_a_loop_that_is_cancelled_is_not_cancelled() -> None:
    """The driver loses its lease to another one: an agent's request had ended without an answer."""
    memory = Memory()
    begun = asyncio.Event()

    async def commit(batch: Batch) -> Collection[str]:
        begun.set()
        await asyncio.sleep(3600)
        return ()

    memory.commit = commit  # type: ignore[method-assign]
    loop = driven(memory)
    running = asyncio.create_task(loop.run(epoch=1, slots=None))
    await begun.wait()
    report = e.Reported(time=2.0, trial=0, segment=1, report_no=1, iteration=1, metrics={"loss": 1.0})
    waiting = asyncio.create_task(loop.report([report]))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for late in (waiting, loop.report([report])):
        with pytest.raises(Stopped):
            await late


class Untold(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


@pytest.mark.parametrize("untold", [False, True])
async def test_a_searcher_that_fails_is_replaced_by_chance_and_says_so(
    monkeypatch: pytest.MonkeyPatch, untold: bool
) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN_S", (0.01,))
    memory = Memory()
    memory.offload_error = Untold("singular matrix") if untold else RuntimeError("singular matrix")
    loop = driven(memory, search={"type": "gp"})
    assert await loop.run(epoch=1, slots=None) is ExperimentState.COMPLETED
    assert len(loop.core.trials) == 3
    said = "Untold: <Untold.__str__ raised KeyError>" if untold else "RuntimeError: singular matrix"
    assert all(said in reason for reason in starts(memory))


def starts(memory: Memory) -> list[str]:
    entries = (entry for batch in memory.batches for _, entry in batch.log)
    return [x.reason for x in entries if type(x).__name__ == "Start"]


async def test_deletions_that_are_under_way_at_the_end_are_finished_and_committed() -> None:
    memory = Memory(reports=5, checkpoints=True)
    loop = driven(memory, num_samples=1)
    await loop.run(epoch=1, slots=None)
    entries = [entry for batch in memory.batches for _, entry in batch.log]
    gone = [x.checkpoint for x in entries if isinstance(x, e.CheckpointDeleted)]
    assert sorted(gone) == sorted(memory.deleted)
    assert set(loop.core.trials[0].checkpoints) == {"c0-5"}


async def test_a_warning_of_a_group_is_a_note_about_its_trial_and_shown_once() -> None:
    memory = Memory()
    memory.warning = "the ranks made unequal numbers of reports: rank 0 3, rank 1 4"
    await driven(memory).run(epoch=1, slots=None)
    notes = [entry for batch in memory.batches for _, entry in batch.log if isinstance(entry, Note)]
    assert {note.trial for note in notes} == {0, 1, 2}
    assert [note.reason for note in notes] == [f"trial {note.trial}: {memory.warning}" for note in notes]
    assert [note.warning for note in notes] == [True, False, False], "every trial runs the same function"
    done = {seq for batch in memory.batches for seq in batch.carried_out}
    told = {seq for batch in memory.batches for seq, entry in batch.log if isinstance(entry, Note)}
    assert told <= done, "nothing is left to do for a note"


class Endless(Memory):
    """Runs segments that never end, with one report per turn of the event loop."""

    def __init__(self) -> None:
        super().__init__(reports=10**6)


async def until(happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not happened():
            await asyncio.sleep(0.001)


async def ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_commands_that_come_before_the_start_wait_for_it_and_keep_their_order() -> None:
    memory = Endless()
    loop = driven(memory)
    for seq, event in enumerate(
        [e.DriverStarted(time=1.0, epoch=1, slots=2), e.Commanded(time=2.0, command="pause")], start=1
    ):
        loop.core.fold(seq, event)
    later = loop.put(e.Commanded(time=4.0, command="pause"), command=2)
    state = await loop.run(2, 2, {1: e.Commanded(time=3.0, command="resume")})
    assert state is ExperimentState.PAUSED, "resume came first, then pause"
    assert later.done()
    log = [entry for batch in memory.batches for _, entry in batch.log]
    assert isinstance(log[0], e.DriverStarted)
    assert [x.command for x in log if isinstance(x, e.Commanded)] == ["resume", "pause"]
    assert [c for batch in memory.batches for c in batch.commands] == [1, 2]


async def test_the_time_without_a_driver_is_no_running_time(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Endless()
    loop = driven(memory)
    now, away = time.time(), 8 * 3600.0
    loop.core.experiment.spec = dataclasses.replace(
        loop.core.spec, limits=Limits(max_concurrent_trials=2, time_budget_s=3600.0)
    )
    first = assemble(loop.core.spec, Space.from_json(loop.core.spec.space))
    log = list(first.handle(e.DriverStarted(time=now - away - 60, epoch=1, slots=2)).log)
    log += first.handle(e.SegmentStarted(time=now - away - 50, trial=0, segment=1)).log
    log += first.handle(e.Waiting(time=now - away, trial=1, segment=1, reason="")).log
    for seq, entry in log:
        loop.core.fold(seq, entry)
    assert loop.core.experiment.running_s == pytest.approx(50), "from the start of the first trial"
    loop.put(e.Commanded(time=now, command="resume"), command=2)
    task = asyncio.create_task(loop.run(2, 2, {}))
    await until(lambda: len(memory.committed) > 2)
    assert loop.core.experiment.running_s < 100
    assert loop.core.experiment.finishing is None
    await ended(task)


async def test_the_start_of_workers_takes_nothing_from_the_time_budget() -> None:
    """The time since the last check of the budget before that start had counted, too."""
    memory = Memory(reports=1)
    room = asyncio.Event()

    async def run(segment: SegmentRef, milestone: int | None) -> Outcome:
        await room.wait()
        await memory.loop.put(e.SegmentStarted(time=time.time(), trial=segment.trial, segment=segment.ordinal))
        await asyncio.sleep(3600)
        return Outcome(kind="returned")

    memory.run = run  # type: ignore[method-assign]
    loop = driven(memory)
    budget = 0.2
    loop.core.experiment.spec = dataclasses.replace(
        loop.core.spec, limits=Limits(max_concurrent_trials=2, time_budget_s=budget)
    )
    task = asyncio.create_task(loop.run(1, 2))
    await asyncio.sleep(1.5 * budget)
    assert not spent(memory)
    room.set()
    await until(lambda: spent(memory))
    assert loop.core.experiment.running_s >= budget
    await ended(task)


def spent(memory: Memory) -> bool:
    return any(isinstance(entry, e.BudgetSpent) for batch in memory.batches for _, entry in batch.log)


class Counting(Usage):
    """Count how often the GPU hours are looked at. Raise an error in an endless loop, which would hang the test."""

    looks = 0

    def gpu_hours(self, now: float) -> float:
        self.looks += 1
        assert self.looks < 10_000, "the GPU hours are looked at in an endless loop"
        return super().gpu_hours(now)


async def test_continue_after_the_limit_of_gpu_hours_does_not_hang_the_event_loop() -> None:
    memory = Memory()
    left = asyncio.Event()

    async def run(segment: SegmentRef, milestone: int | None) -> Outcome:
        await memory.loop.put(
            e.SegmentStarted(time=time.time(), trial=segment.trial, segment=segment.ordinal, held_s=3600.0)
        )
        await left.wait()
        return Outcome(kind="left")

    async def interrupt(segment: SegmentRef, why: str) -> None:
        left.set()

    commit = memory.commit

    async def slow(batch: Batch) -> None:
        await asyncio.sleep(0)  # lets the watcher of the GPU hours run, as a real database does
        await commit(batch)

    memory.run, memory.interrupt, memory.commit = run, interrupt, slow  # type: ignore[method-assign]

    def limited() -> ExperimentLoop:
        loop = driven(memory, num_samples=1, scaling=Scaling(use_gpu=True))
        experiment = loop.core.experiment
        experiment.spec = dataclasses.replace(loop.core.spec, limits=Limits(max_concurrent_trials=1, gpu_hours=0.5))
        experiment.usage = Counting(loop.core.spec.scaling)
        return loop

    assert await asyncio.wait_for(limited().run(1, None), 10) is ExperimentState.COMPLETED
    again = limited()
    for batch in memory.batches:
        for seq, entry in batch.log:
            again.core.fold(seq, entry)
    assert again.core.experiment.capped
    await asyncio.wait_for(again.run(2, None, {7: e.Commanded(time=time.time(), command="continue")}), 10)
    assert memory.batches[-1].commands == [7]
    usage = again.core.experiment.usage
    assert isinstance(usage, Counting)
    assert usage.looks < 100


async def test_an_experiment_that_ends_as_its_gpu_hours_do_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on until the deletions are done, and the watcher with it."""
    loop = driven(Memory())
    limits = Limits(max_concurrent_trials=2, gpu_hours=1.0)
    loop.core.experiment.spec = dataclasses.replace(loop.core.spec, limits=limits)
    loop.core.experiment.usage.gpus, loop.core.experiment.usage.ended_s = 1.0, 7200.0
    loop.core.experiment.state = ExperimentState.COMPLETED
    looks = 0

    def look() -> float:
        nonlocal looks
        looks += 1
        assert looks < 1000, "it looks again and again, and lets nothing else run"
        return 1.0

    monkeypatch.setattr(module, "time", SimpleNamespace(time=look, monotonic=lambda: 1.0))
    loop._clocks = (1.0, 1.0)
    watching = asyncio.create_task(loop._watch_gpu_hours())
    await until(lambda: looks)
    await asyncio.sleep(0)
    assert not watching.done()
    watching.cancel()


async def test_a_jump_of_the_clock_is_in_the_log_before_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, ahead = Memory(), 0.0
    clock = SimpleNamespace(time=lambda: time.time() + ahead, monotonic=time.monotonic)
    monkeypatch.setattr(module, "time", clock)
    reported = asyncio.Event()
    goes_on = asyncio.Event()

    async def run(segment: SegmentRef, milestone: int | None) -> Outcome:
        await memory.loop.put(e.SegmentStarted(time=clock.time(), trial=0, segment=1, held_s=1.0))
        for count in (1, 2):
            await memory.loop.report(
                [
                    e.Reported(
                        time=clock.time(),
                        trial=0,
                        segment=1,
                        report_no=count,
                        iteration=count,
                        metrics={"loss": 1.0},
                    )
                ]
            )
            reported.set()
            await goes_on.wait()
        return Outcome(kind="returned")

    memory.run = run  # type: ignore[method-assign]
    loop = driven(memory, num_samples=1, scaling=Scaling(use_gpu=True))
    experiment = loop.core.experiment
    experiment.spec = dataclasses.replace(loop.core.spec, limits=Limits(max_concurrent_trials=1, gpu_hours=0.5))
    running = asyncio.create_task(loop.run(1, None))
    await reported.wait()
    ahead = 7200.0
    goes_on.set()
    assert await asyncio.wait_for(running, 10) is ExperimentState.COMPLETED
    kinds = [entry.KIND for batch in memory.batches for _, entry in batch.log]
    assert kinds.count("clock_jumped") == 1
    assert "gpu_hours_spent" not in kinds
    assert kinds.index("clock_jumped") < len(kinds) - 1 - kinds[::-1].index("reported")
    assert loop.core.trials[0].running_s < 60


@pytest.mark.parametrize("limit", ["budget_spent", "gpu_hours_spent"])
@pytest.mark.parametrize("busy", [False, True])
async def test_the_time_for_which_the_process_was_stopped_counts_as_a_jump(
    busy: bool, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both clocks run on if the processes are stopped with SIGSTOP, or by `docker pause`. That had counted as training."""
    memory, ahead = Memory(), 0.0
    clock = SimpleNamespace(time=lambda: time.time() + ahead, monotonic=lambda: time.monotonic() + ahead)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(pulse, "time", clock)
    monkeypatch.setattr(pulse, "cpu_s", lambda: ahead if busy else ahead / 1000)
    monkeypatch.setattr(module, "PULSE", pulse.Pulse())  # the one of this process would remember the stop
    reported, goes_on = asyncio.Event(), asyncio.Event()

    def kinds() -> list[str]:
        return [entry.KIND for batch in memory.batches for _, entry in batch.log]

    async def run(segment: SegmentRef, milestone: int | None) -> Outcome:
        about: dict[str, Any] = {"trial": 0, "segment": 1}
        await memory.loop.put(e.SegmentStarted(time=clock.time(), **about))
        for count in (1, 2):
            event = e.Reported(time=clock.time(), report_no=count, iteration=count, metrics={"loss": 1.0}, **about)
            await memory.loop.report([event])
            reported.set()
            await goes_on.wait()
        return Outcome(kind="returned")

    memory.run = run  # type: ignore[method-assign]
    loop = driven(memory, num_samples=1, scaling=Scaling(use_gpu=True))
    hour = {"time_budget_s": 3600.0} if limit == "budget_spent" else {"gpu_hours": 1.0}
    limits = Limits(max_concurrent_trials=1, **hour)
    loop.core.experiment.spec = dataclasses.replace(loop.core.spec, limits=limits)
    running = asyncio.create_task(loop.run(1, None))
    await reported.wait()
    ahead = 7200.0
    if busy:  # it was not stopped, but had too much to do
        await until(lambda: limit in kinds())
        await ended(running)
    else:
        await until(lambda: "clock_jumped" in kinds())
        goes_on.set()
        assert await asyncio.wait_for(running, 10) is ExperimentState.COMPLETED
        assert loop.core.trials[0].running_s < 60
        assert loop.core.experiment.running_s < 60
    assert kinds().count("clock_jumped") == (0 if busy else 1)
    assert (limit in kinds()) == busy


async def test_a_segment_that_cannot_be_run_has_failed_for_a_reason_of_the_system() -> None:
    """Otherwise its trial would wait for it forever."""
    memory = Memory()
    errors, really = [OSError("no room")], memory.run

    async def run(segment: SegmentRef, milestone: int | None) -> Outcome:
        if errors:
            raise errors.pop()
        return await really(segment, milestone)

    memory.run = run  # type: ignore[method-assign]
    loop = driven(memory, num_samples=1)
    assert await asyncio.wait_for(loop.run(1, None), 10) is ExperimentState.COMPLETED
    log = [entry for batch in memory.batches for _, entry in batch.log]
    failures = [entry.failure for entry in log if isinstance(entry, e.SegmentEnded) and entry.failure is not None]
    assert [(failure.kind, failure.message) for failure in failures] == [("system", "OSError: no room")]


async def test_a_blocking_call_is_no_stop_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commits of a study block its loop. If one waited for its database, the training meanwhile did not count."""
    memory, ahead = Memory(), 0.0
    monkeypatch.setattr(
        module, "time", SimpleNamespace(time=lambda: time.time() + ahead, monotonic=lambda: time.monotonic() + ahead)
    )
    monkeypatch.setattr(pulse, "cpu_s", lambda: 0.0)

    def beats() -> bool:
        return any(thread.name == "tuner-pulse" for thread in threading.enumerate())

    async def run(segment: SegmentRef, milestone: int | None) -> Outcome:
        nonlocal ahead
        about: dict[str, Any] = {"trial": 0, "segment": 1}
        await memory.loop.put(e.SegmentStarted(time=time.time(), **about))
        assert beats()
        ahead = 60.0  # only the loop's clocks move: the thread of the pulse goes on meanwhile
        event = e.Reported(time=time.time() + ahead, report_no=1, iteration=1, metrics={"loss": 1.0}, **about)
        await memory.loop.report([event])
        return Outcome(kind="returned")

    memory.run = run  # type: ignore[method-assign]
    loop = driven(memory, num_samples=1)
    assert await asyncio.wait_for(loop.run(1, None), 10) is ExperimentState.COMPLETED
    assert not any(isinstance(entry, e.ClockJumped) for batch in memory.batches for _, entry in batch.log)
    assert loop.core.trials[0].running_s >= 60
    assert not beats(), "nobody needs it any more"


async def test_a_stop_function_sees_no_jump_of_the_clock_as_training(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, ahead = Memory(), 0.0
    clock = SimpleNamespace(time=lambda: time.time() + ahead, monotonic=time.monotonic)
    monkeypatch.setattr(module, "time", clock)
    seen: list[float] = []

    async def judge(number: int, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        seen.append(metrics["time_total_s"])
        return []

    async def run(segment: SegmentRef, milestone: int | None) -> Outcome:
        nonlocal ahead
        about: dict[str, Any] = {"trial": 0, "segment": 1}
        await memory.loop.put(e.SegmentStarted(time=clock.time(), **about))
        for count in (1, 2):
            event = e.Reported(time=clock.time(), report_no=count, iteration=count, metrics={"loss": 1.0}, **about)
            await memory.loop.report([event])
            ahead = 7200.0
        return Outcome(kind="returned")

    memory.judge, memory.run = judge, run  # type: ignore[method-assign]
    loop = driven(memory, num_samples=1)
    loop._outside = True
    assert await loop.run(1, None) is ExperimentState.COMPLETED
    assert len(seen) == 2
    assert max(seen) < 60


async def test_a_report_that_is_judged_while_the_clock_is_put_back_does_not_count_the_jump(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, ahead = Memory(), 0.0
    clock = SimpleNamespace(time=lambda: time.time() + ahead, monotonic=time.monotonic)
    monkeypatch.setattr(module, "time", clock)

    async def judge(number: int, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        nonlocal ahead
        ahead = -7200.0
        return []

    async def run(segment: SegmentRef, milestone: int | None) -> Outcome:
        about: dict[str, Any] = {"trial": 0, "segment": 1}
        await memory.loop.put(e.SegmentStarted(time=clock.time(), **about))
        event = e.Reported(time=clock.time(), report_no=1, iteration=1, metrics={"loss": 1.0}, **about)
        await memory.loop.report([event])
        return Outcome(kind="returned")

    memory.judge, memory.run = judge, run  # type: ignore[method-assign]
    loop = driven(memory, num_samples=1)
    loop._outside = True
    assert await loop.run(1, None) is ExperimentState.COMPLETED
    assert loop.core.trials[0].running_s < 60
    assert loop.core.experiment.running_s < 60


async def test_events_have_the_times_that_they_came_with_unless_the_clock_was_put_back() -> None:
    memory, later = Memory(), time.time() + 100.0

    async def run(segment: SegmentRef, milestone: int | None) -> Outcome:
        about: dict[str, Any] = {"trial": 0, "segment": 1}
        await memory.loop.put(e.SegmentStarted(time=later, **about))
        await memory.loop.report(
            [e.Reported(time=later + 10, report_no=1, iteration=1, metrics={"loss": 1.0}, **about)]
        )
        return Outcome(kind="returned")

    memory.run = run  # type: ignore[method-assign]
    loop = driven(memory, num_samples=1)
    assert await loop.run(1, None) is ExperimentState.COMPLETED
    assert loop.core.trials[0].running_s == pytest.approx(10)
    ended = loop.core.trials[0].ended_at
    assert ended == later + 10, "time is not set back for the trial"
    assert memory.batches[-1].time == ended, "nor for the experiment, which ended before its trial"


async def test_a_checkpoint_that_a_user_pins_before_its_deletion_is_committed_keeps_its_files() -> None:
    memory = Memory(reports=3, checkpoints=True)
    memory.pinned = {"c0-1"}
    policy = CheckpointPolicy(interval_s=None, keep_last=1, keep_best=0)
    assert await driven(memory, num_samples=1, checkpoint=policy).run(epoch=1, slots=None) is ExperimentState.COMPLETED
    assert [name for batch in memory.batches for name in batch.deletes] == ["c0-1", "c0-2"]
    assert memory.deleted == ["c0-2"]


async def test_a_deletion_that_fails_is_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The files stayed in a storage that was overloaded at that moment, although the database said that they were deleted."""
    monkeypatch.setattr("tuner.driver.loop.DELETE_AGAIN_S", (0.0, 0.0))
    memory, failures = Memory(reports=5, checkpoints=True), {"c0-1": 2, "c0-2": 9}
    delete = memory.delete_checkpoint

    async def overloaded(info: CheckpointInfo) -> None:
        if failures.get(info.id, 0) > 0:
            failures[info.id] -= 1
            raise CheckpointUnreachable("When deleting objects: AWS Error SLOW_DOWN")
        await delete(info)

    memory.delete_checkpoint = overloaded  # type: ignore[method-assign]
    loop = driven(memory, num_samples=1)
    await loop.run(epoch=1, slots=None)
    assert "c0-1" in memory.deleted
    assert failures == {"c0-1": 0, "c0-2": 6}
    assert list(loop.core.experiment.checkpoints.deleting) == ["c0-2"], "the next driver tries it again"
    assert (
        "the checkpoint memory: cannot be deleted: When deleting objects: AWS Error SLOW_DOWN; this is tried"
        in caplog.text
    )
    assert "Traceback" not in caplog.text


async def test_a_resume_while_the_last_deletions_are_under_way_goes_on() -> None:
    memory = Memory(reports=40, checkpoints=True)
    loop = driven(memory, num_samples=1)
    hold = asyncio.Event()

    async def slow(info: CheckpointInfo) -> None:
        await hold.wait()

    memory.delete_checkpoint = slow  # type: ignore[method-assign]
    task = asyncio.create_task(loop.run(1, 2))
    await until(lambda: len(loop.core.trials) and loop.core.trials[0].iteration >= 3)
    loop.put(e.Commanded(time=time.time(), command="pause"), command=1)
    await until(lambda: loop.core.state is ExperimentState.PAUSED)
    assert loop._deletions
    resumed = loop.put(e.Commanded(time=time.time(), command="resume"), command=2)
    await resumed
    assert not task.done(), "it is driven on"
    hold.set()
    assert await asyncio.wait_for(task, 10) is ExperimentState.COMPLETED
    assert [c for batch in memory.batches for c in batch.commands] == [1, 2]


async def test_a_commit_that_hangs_blocks_nobody_else() -> None:
    stuck, free = Memory(), Memory()
    hold = asyncio.Event()
    commit = stuck.commit

    async def slow(batch: Batch) -> None:
        await hold.wait()
        await commit(batch)

    stuck.commit = slow  # type: ignore[method-assign]
    task = asyncio.create_task(driven(stuck).run(1, None))
    assert await asyncio.wait_for(driven(free).run(1, None), 10) is ExperimentState.COMPLETED
    assert not stuck.committed
    hold.set()
    assert await asyncio.wait_for(task, 10) is ExperimentState.COMPLETED


async def test_decisions_that_others_have_taken_the_place_of_are_named() -> None:
    memory = Memory()
    calls: list[int] = []

    async def run(segment: SegmentRef, milestone: int | None) -> Outcome:
        calls.append(segment.ordinal)
        if segment.ordinal == 1:  # it never started
            return Outcome(kind="failed", failure=Failure(kind="system", message="the node went away"))
        await memory.loop.put(e.SegmentStarted(time=1.0, trial=segment.trial, segment=segment.ordinal))
        return Outcome(kind="returned")

    memory.run = run  # type: ignore[method-assign]
    await driven(memory, num_samples=1).run(1, None)
    kinds = {seq: type(entry).__name__ for batch in memory.batches for seq, entry in batch.log}
    done = {seq for batch in memory.batches for seq in batch.carried_out}
    below = [seq for batch in memory.batches for seq in batch.superseded.values()]
    assert calls == [1, 2]
    start = next(seq for seq, kind in kinds.items() if kind == "Start")
    retry = next(seq for seq, kind in kinds.items() if kind == "Retry")
    assert start not in done
    assert retry in done
    assert retry in below


class Gate:
    """Holds a call in another thread until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.on_time: list[bool] = []

    def hold(self) -> None:
        self.entered.set()
        self.on_time.append(self.opened.wait(10))


def slow_scheduler(gate: Gate) -> Parts:
    class Slow(FIFOScheduler):
        def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
            gate.hold()
            return super().decide(fact, trials)

    return Parts(scheduler=Slow())


def slow_searcher(gate: Gate) -> Parts:
    class Slow(RandomSearch):
        def suggest(self, number: int, trials: Population) -> Suggestion | None:
            gate.hold()
            return super().suggest(number, trials)

    return Parts(searcher=Slow())


@pytest.mark.parametrize("slow_part", [slow_scheduler, slow_searcher])
async def test_a_part_of_the_users_that_is_slow_holds_nobody_else_up(slow_part: Callable[[Gate], Parts]) -> None:
    slow, free, gate = Memory(), Memory(), Gate()
    spec = driven(slow).core.spec
    slow.loop = ExperimentLoop(assemble(spec, Space.from_json(spec.space), slow_part(gate)), slow, slow)
    task = asyncio.create_task(slow.loop.run(1, None))
    await until(gate.entered.is_set)
    assert await asyncio.wait_for(driven(free).run(1, None), 10) is ExperimentState.COMPLETED
    assert not task.done()
    gate.opened.set()
    assert await asyncio.wait_for(task, 10) is ExperimentState.COMPLETED
    assert all(gate.on_time)


async def test_a_part_of_the_users_that_exits_ends_its_own_experiment_only() -> None:
    """The next driver of the experiment was ended, too, if a scheduler or a stopper was the part."""

    class Schedules(FIFOScheduler):
        def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
            sys.exit("no more")

    class Stops(MaximumIterationStopper):
        def decide(self, number: int, trials: Population) -> str | None:
            sys.exit("no more")

    class Searches(RandomSearch):
        def suggest(self, number: int, trials: Population) -> Suggestion | None:
            sys.exit("no more")

    async def ended(parts: Parts) -> Any:
        memory = Memory()
        spec = driven(memory).core.spec
        memory.loop = ExperimentLoop(assemble(spec, Space.from_json(spec.space), parts), memory, memory)
        return await memory.loop.run(1, None), memory.loop.core.experiment.error

    state, error = await ended(Parts(scheduler=Schedules()))
    assert (state, error[: error.index("(")]) == (ExperimentState.FAILED, "the scheduler raised SystemExit: no more ")
    state, error = await ended(Parts(stopper=Stops(max_iter=3)))
    assert state is ExperimentState.FAILED
    assert "stop raised SystemExit: no more; the metrics were 'loss'" in error
    state, error = await ended(Parts(searcher=Searches()))
    assert (state, error[: error.index("(")]) == (ExperimentState.FAILED, "the searcher raised SystemExit: no more ")


async def test_a_heavy_searcher_of_ours_is_asked_elsewhere_and_holds_up_no_verdict() -> None:
    """The verdicts of other experiments and of the trials that already run come in time."""
    memory, gate = Memory(reports=2), asyncio.Event()
    asked: list[int] = []
    suggest = memory.suggest

    async def slow(searcher: Searcher, number: int, trials: Population) -> Suggestion | None:
        asked.append(number)
        if number > 0:
            await gate.wait()
        return await suggest(searcher, number, trials)

    memory.suggest = slow  # type: ignore[method-assign]
    task = asyncio.create_task(driven(memory, search={"type": "gp"}, num_samples=2).run(1, None))
    await until(lambda: (0, 2) in memory.committed)
    assert asked == [0, 1]
    assert not task.done()
    gate.set()
    assert await asyncio.wait_for(task, 30) is ExperimentState.COMPLETED


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"scheduler": {"type": "asha", "max_t": 9}, "stop": {"loss": 1.0}}, False),
        ({"stop": {"type": "function", "function": "tests.driver.stop_functions:never"}}, False),
        (
            {"scheduler": {"type": "pbt", "hyperparam_mutations": {"x": {"type": "uniform", "lower": 0, "upper": 1}}}},
            False,
        ),
        ({"scheduler": {"type": "pbt", "custom_explore_fn": "tests.driver.stop_functions:never"}}, True),
    ],
)
async def test_only_what_may_run_code_of_the_users_goes_to_a_thread(options: dict[str, Any], expected: bool) -> None:
    assert runs_user_code(driven(Memory(), **options).core) is expected
