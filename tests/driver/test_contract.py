"""Test what every shell does, whatever its ports are made of: virtual time, asyncio in this process, or a store and workers.

The groups in this process stand in for Ray at the boundary of the process: they run the training function as a coroutine, so
the loop and its journal port are the real ones. The forms on Ray and with the local executor are the whole of `tuner.run`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import pytest

import tuner
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.batch import Batch, Entry
from tuner.domain.experiment import CheckpointPolicy, Limits, Objective, Spec
from tuner.domain.segments import CheckpointInfo, Failure, Leave, Outcome, Report, SegmentRef
from tuner.domain.states import ExperimentState
from tuner.domain.trial import Population
from tuner.driver.assemble import assemble
from tuner.driver.core import Core
from tuner.driver.loop import ExperimentLoop
from tuner.driver.ports import Groups, Inbound, Journal
from tuner.driver.virtual_loop import Step, virtual_loop
from tuner.search.base import Searcher, Suggestion
from tuner.settings import Settings
from tuner.space import Space
from tuner.store import Store

Training = Callable[[dict[str, Any], Any], Iterator[Step]]
SPACE = {"x": tuner.uniform(0, 1)}


class LocalJournal:
    def __init__(self) -> None:
        self.log: list[Entry] = []

    async def commit(self, batch: Batch) -> Collection[str]:
        await asyncio.sleep(0)  # others run meanwhile
        self.log += batch.log
        return ()


class LocalGroups:
    """Segments are tasks of this event loop."""

    inbound: Inbound

    def __init__(self, core: Core, training: Training) -> None:
        self._core, self._training = core, training
        self._saved: dict[str, Any] = {}
        self._leaving: set[SegmentRef] = set()

    async def run(self, segment: SegmentRef, milestone: int | None) -> Outcome:
        number, ordinal = segment
        mine = self._core.trials[number].segments[ordinal - 1]
        self.inbound.put(e.SegmentStarted(time=asyncio.get_running_loop().time(), trial=number, segment=ordinal))
        steps = self._training(dict(mine.params), self._saved[mine.source.id] if mine.source else None)
        try:
            for report_no, step in enumerate(steps, 1):
                await asyncio.sleep(0.002)
                waits = segment in self._leaving or (milestone is not None and report_no >= milestone)
                info = CheckpointInfo(
                    id=f"{number}.{ordinal}.{report_no}", uri="local:", step=mine.start_iteration + report_no
                )
                self._saved[info.id] = step.checkpoint
                report = Report(
                    report_no=report_no,
                    metrics=step.metrics,
                    time=0.0,
                    checkpoint=info if step.checkpoint is not None else None,
                    waits=waits,
                )
                now = asyncio.get_running_loop().time()
                verdict = await self.inbound.report([e.Reported.of(report, segment, mine.start_iteration, now)])
                assert (verdict is not None) is waits
                if verdict is not None and verdict.action != "continue":
                    return Outcome(kind="left")
                milestone = verdict.next_milestone if verdict is not None else milestone
        except RuntimeError as error:
            failure = Failure(kind="user", cause="exception", message=f"RuntimeError: {error}", rank=0)
            return Outcome(kind="failed", failure=failure)
        return Outcome(kind="returned")

    async def interrupt(self, segment: SegmentRef, why: Leave) -> None:
        self._leaving.add(segment)

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        del self._saved[info.id]

    async def offload(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    async def suggest(self, searcher: Searcher, number: int, trials: Population) -> Suggestion | None:
        return searcher.suggest(number, trials)

    async def judge(self, number: int, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        return []


def a_core(options: Mapping[str, Any]) -> tuple[Core, Space]:
    space = Space.from_python(SPACE)
    limits = {"max_concurrent_trials": 2, **options.get("limits", {})}
    spec = Spec(
        name="contract",
        space=space.to_json(),
        objectives=(Objective("loss", "min"),),
        num_samples=options.get("num_samples", 3),
        search={"type": options.get("search_alg", "random")},
        scheduler={"type": "fifo"},
        max_t=options.get("max_t"),
        limits=Limits(**limits),
        checkpoint=CheckpointPolicy(interval_s=None),
    )
    return assemble(spec, space), space


def in_virtual_time(training: Training, options: Mapping[str, Any]) -> list[Entry]:
    core, space = a_core(options)
    loop = virtual_loop(core, space, training)
    ports: tuple[Inbound, Journal, Groups] = (loop, loop.journal, loop.groups)
    assert all(ports)
    loop.run()
    return loop.journal.log


def in_this_process(training: Training, options: Mapping[str, Any]) -> list[Entry]:
    core, _ = a_core({**options, "limits": {**options.get("limits", {}), **options.get("real_limits", {})}})
    journal, groups = LocalJournal(), LocalGroups(core, training)
    loop = ExperimentLoop(core, journal, groups)
    groups.inbound = loop
    asyncio.run(asyncio.wait_for(loop.run(epoch=1, slots=None), 60))
    return journal.log


def as_a_script(training: Training, options: Mapping[str, Any], executor: Literal["ray", "local"]) -> list[Entry]:
    def train(config: dict[str, Any]) -> None:
        import pickle
        import time
        from pathlib import Path

        import tuner

        start = None
        if (found := tuner.get_checkpoint()) is not None:
            with found.as_directory() as folder:
                start = pickle.loads(Path(folder, "step").read_bytes())
        for step in training(config, start):
            time.sleep(0.01)

            def save(folder: str, content: Any = step.checkpoint) -> None:
                Path(folder, "step").write_bytes(pickle.dumps(content))

            tuner.report(dict(step.metrics), checkpoint=save if step.checkpoint is not None else None)

    limits = {**options.get("limits", {}), **options.get("real_limits", {})}
    result = tuner.run(
        train,
        SPACE,
        metric="loss",
        mode="min",
        num_samples=options.get("num_samples", 3),
        search_alg=options.get("search_alg", "random"),
        scheduler="fifo",
        max_t=options.get("max_t"),
        resources_per_worker={"CPU": 0.5},
        max_concurrent_trials=2,
        checkpoint={"frequency": 1},
        executor=executor,
        verbose=0,
        **limits,
    )
    with Store.open(Settings.from_env().database_url) as store:
        return list(store.drivers.load(store.experiments.get(result.experiment_id).id))


@pytest.fixture(params=["virtual time", "this process", "local", pytest.param("ray", marks=pytest.mark.ray)])
def search(request: pytest.FixtureRequest) -> Callable[..., list[Entry]]:
    """Return a function that runs a search under one of the shells, and returns its log."""
    if request.param == "ray":
        request.getfixturevalue("private_ray")
    shells = {
        "virtual time": in_virtual_time,
        "this process": in_this_process,
        "local": functools.partial(as_a_script, executor="local"),
        "ray": functools.partial(as_a_script, executor="ray"),
    }
    return lambda training, **options: shells[request.param](training, options)


def falls(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    start = checkpoint or 0
    for step in range(start + 1, 5):
        yield Step({"loss": 1.0 / step}, checkpoint=step)


def by_segment(log: Sequence[Entry]) -> dict[SegmentRef, list[Any]]:
    """Return the events of each segment that its worker group tells of, in the order of the log."""
    found: dict[SegmentRef, list[Any]] = {}
    for _, entry in log:
        if isinstance(entry, e.Reported | e.SegmentStarted | e.SegmentEnded):
            found.setdefault(entry.ref, []).append(entry)
    return found


def outcomes(log: Sequence[Entry]) -> list[str]:
    return [entry.outcome for _, entry in log if isinstance(entry, e.SegmentEnded)]


def check(log: Sequence[Entry]) -> Core:
    """Check what holds for any log, and return a core that has folded it."""
    assert [seq for seq, _ in log] == list(range(1, len(log) + 1)), "every entry is committed once, in order"
    assert isinstance(log[0][1], e.DriverStarted)
    for ref, events in by_segment(log).items():
        assert [type(event) for event in events].count(e.SegmentEnded) == 1, f"{ref} ends once"
        assert isinstance(events[-1], e.SegmentEnded), f"nothing comes of {ref} after its end"
        numbers = [event.report_no for event in events if isinstance(event, e.Reported)]
        assert numbers == list(range(1, len(numbers) + 1)), f"the reports of {ref} come in turn"
    core, _ = a_core({"num_samples": 100})
    for seq, entry in log:
        core.fold(seq, entry)
    assert all(trial.state.ended and not trial.holds_resources for trial in core.trials)
    return core


def test_segments_run_report_in_turn_and_return(search: Callable[..., list[Entry]]) -> None:
    log = search(falls)
    assert outcomes(log) == ["returned"] * 3
    assert [trial.iteration for trial in check(log).trials] == [4, 4, 4]


def test_a_verdict_ends_a_segment_at_its_very_report(search: Callable[..., list[Entry]]) -> None:
    log = search(falls, max_t=2)
    assert outcomes(log) == ["left"] * 3
    assert [trial.iteration for trial in check(log).trials] == [2, 2, 2]


def test_a_function_that_raises_fails_its_segment_with_what_it_raised(search: Callable[..., list[Entry]]) -> None:
    def raises(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        yield Step({"loss": 1.0})
        raise RuntimeError("of no use")

    log = search(raises, num_samples=1)
    (end,) = [entry for _, entry in log if isinstance(entry, e.SegmentEnded)]
    assert (end.outcome, end.failure and end.failure.kind) == ("failed", "user")
    assert "RuntimeError: of no use" in (end.failure.message if end.failure else "")
    assert check(log).state is ExperimentState.FAILED


def test_a_retry_goes_on_from_the_newest_checkpoint(search: Callable[..., list[Entry]]) -> None:
    def raises_once(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for step in range((checkpoint or 0) + 1, 6):
            if step == 4 and checkpoint is None:
                raise RuntimeError("the first time")
            yield Step({"loss": 1.0 / step}, checkpoint=step)

    log = search(raises_once, num_samples=1, limits={"max_failures": 1})
    (trial,) = check(log).trials
    first, second = trial.segments
    assert (str(first.state), str(second.state)) == ("failed", "returned")
    assert second.source is not None
    assert second.start_iteration == second.source.step > 0, "it does not start over"
    assert trial.iteration == 5


def test_an_interrupt_makes_running_segments_leave(search: Callable[..., list[Entry]]) -> None:
    def endless(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        while True:
            yield Step({"loss": 1.0})

    log = search(endless, num_samples=2, limits={"time_budget_s": 20.0}, real_limits={"time_budget_s": 0.3})
    assert outcomes(log) == ["left", "left"]
    assert [str(trial.state) for trial in check(log).trials] == ["stopped", "stopped"]


def test_only_checkpoints_are_deleted_whose_deletion_was_decided(search: Callable[..., list[Entry]]) -> None:
    log = search(falls, num_samples=2)
    core = check(log)
    saved = [entry.checkpoint.id for _, entry in log if isinstance(entry, e.CheckpointSaved)]
    saved += [entry.checkpoint.id for _, entry in log if isinstance(entry, e.Reported) and entry.checkpoint]
    deleted = [entry.checkpoint for _, entry in log if isinstance(entry, e.CheckpointDeleted)]
    assert deleted
    assert len(set(deleted)) == len(deleted), "each is deleted once"
    left = {name for trial in core.trials for name in trial.checkpoints}
    assert set(saved) == {*deleted, *left, *core.experiment.checkpoints.deleting}
    assert not left & set(deleted)


def test_a_heavy_searcher_is_asked_once_for_each_trial(search: Callable[..., list[Entry]]) -> None:
    log = search(falls, search_alg="gp")
    suggested = [entry for _, entry in log if isinstance(entry, e.Suggested)]
    assert [event.number for event in suggested] == [0, 1, 2]
    starts = [entry for _, entry in log if isinstance(entry, d.Start)]
    assert [start.params for start in starts] == [event.params for event in suggested]
