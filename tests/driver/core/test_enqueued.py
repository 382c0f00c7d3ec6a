"""Trials that users ask for, and checkpoints that they keep."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tuner
from tests.driver.bench import Bench, deletions, launches
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.states import ExperimentState
from tuner.driver.core import Effects
from tuner.driver.core.actions import Ask


def enqueued(bench: Bench, *points: dict[str, Any]) -> Effects:
    return bench.feed(e.Enqueued(time=bench.tick(), points=points, reason="enqueued by a user"))


def to_the_end(bench: Bench, reports: int) -> None:
    """Let whatever runs report until a verdict ends it, or until it has made its reports."""
    for _ in range(1000):
        open_now = [t.number for t in bench.core.trials if t.holds_resources]
        if not open_now:
            return
        for number in open_now:
            segment = bench.core.trials[number].segments[-1]
            if not segment.started:
                bench.started(number)
            if segment.leaving or segment.iteration >= reports:
                bench.ended(number, "left" if segment.leaving else "returned")
            else:
                bench.reported(number, loss=float(number % 3) + 1.0 / (segment.iteration + 1), checkpoint=True)
                if bench.verdict(number) != "continue":
                    bench.ended(number, "left")
    raise AssertionError("the search does not end")


SCHEDULERS: list[dict[str, Any]] = [
    {"type": "fifo"},
    {"type": "asha"},
    {"type": "asha_promotion"},
    {"type": "hyperband"},
    {"type": "median"},
    {
        "type": "pbt",
        "perturbation_interval": 2,
        "hyperparam_mutations": {"x": {"type": "uniform", "lower": 0, "upper": 1}},
    },
    {"type": "freeze_thaw"},
]


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda one: str(one["type"]))
def test_every_scheduler_takes_trials_of_users_in(scheduler: dict[str, Any]) -> None:
    bench = Bench(num_samples=6, max_t=9, scheduler=scheduler, checkpoint={"interval_s": None, "keep_last": None})
    bench.started(0)
    bench.reported(0, checkpoint=True)
    source = next(iter(bench.core.trials[0].checkpoints))
    enqueued(bench, {"params": {"x": 0.125}}, {"params": {"x": 0.25}, "checkpoint": source, "parent": 0})
    to_the_end(bench, 9)
    assert bench.core.state is ExperimentState.COMPLETED
    started = {t.segments[0].params["x"]: t for t in bench.core.trials if t.segments[0].params["x"] in (0.125, 0.25)}
    assert set(started) == {0.125, 0.25}
    assert (started[0.25].segments[0].cause, started[0.25].segments[0].start_iteration) == ("fork", 1)
    assert started[0.125].segments[0].cause == "start"
    later = bench.successor()
    assert later.states == bench.states
    assert later.core.scheduler.state == bench.core.scheduler.state
    assert (later.core.experiment.asked, len(later.core.experiment.queue)) == (2, 0)


def test_wanted_trials_come_first_and_on_top_and_take_nothing_from_a_grid() -> None:
    bench = Bench(num_samples=1, search={"type": "grid"}, space={"x": tuner.grid_search([1, 2, 3])})
    enqueued(bench, {"params": {"x": 2}})
    to_the_end(bench, 1)
    assert [t.params["x"] for t in bench.core.trials] == [1, 2, 2, 3]  # two slots were taken before


def test_what_an_enqueued_configuration_leaves_out_is_drawn_and_a_fold_agrees() -> None:
    space = {"x": tuner.uniform(0, 1), "y": tuner.choice(["a", "b"])}
    bench = Bench(num_samples=2, space=space, limits={"max_concurrent_trials": 1})
    enqueued(bench, {"params": {"y": "b"}})
    assert bench.core.experiment.scheduler.context.num_samples == 3, "a budget that follows from it grows, too"
    to_the_end(bench, 1)
    assert len(bench.states) == 3
    wanted = bench.core.trials[1]
    assert wanted.params["y"] == "b"
    assert 0 <= wanted.params["x"] <= 1
    assert [t.params for t in bench.successor().core.trials] == [t.params for t in bench.core.trials]


def test_a_failed_trial_is_tried_again_from_its_checkpoint() -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.reported(0, checkpoint=True)
    bench.ended(0, "failed", e.Failure(kind="user", message="ValueError: no", cause="exception"))
    assert bench.core.ended
    bench.feed(e.Commanded(time=bench.tick(), command="retry", trial=0, reason="by ada"))
    assert launches(bench.command("continue")) == [(1, 1)]
    again = bench.core.trials[1]
    assert (again.params, again.segments[0].start_iteration) == (bench.core.trials[0].params, 1)
    assert again.reason == "retry of trial 0 from iteration 1, by ada"
    assert not launches(bench.command("retry", trial=1))  # it has not failed


def test_a_retry_of_a_trial_that_failed_at_max_t_starts_from_the_beginning() -> None:
    """A trial whose last report lacks the objective fails there. A retry from its checkpoint trained beyond max_t."""
    bench = Bench(num_samples=1, max_t=1)
    bench.started(0)
    metrics, saved = {"accuracy": 0.5}, e.CheckpointInfo(id="c1", uri="memory:", step=1)
    report = e.Reported(time=1.0, trial=0, segment=1, report_no=1, iteration=1, metrics=metrics, checkpoint=saved)
    bench.feed(report)
    assert bench.states == ["failed"]
    bench.ended(0)
    bench.command("retry", trial=0)
    bench.command("continue")
    again = bench.core.trials[1]
    assert (again.segments[0].start_iteration, again.reason) == (0, "retry of trial 0 from the beginning, by a user")


def test_a_trial_that_continues_another_one_has_its_values_of_sample_from() -> None:
    space = {"x": tuner.uniform(0, 1), "y": tuner.sample_from(lambda: random.random())}
    bench = Bench(space=space, num_samples=1)
    bench.started(0)
    bench.reported(0, checkpoint=True)
    bench.ended(0, "failed", e.Failure(kind="user", message="ValueError: no", cause="exception"))
    bench.command("retry", trial=0)
    enqueued(bench, {"params": {"x": 0.5}})
    enqueued(bench, {"params": {"x": 0.7}, "parent": 1, "key": "me"})
    bench.command("continue")
    while len(bench.core.trials) < 4:
        bench.ended(len(bench.core.trials) - 1, "returned")
    assert [trial.drawn_as for trial in bench.core.trials] == [0, 0, 2, 0]
    assert bench.core.trials[3].tags["asked_by"] == "me"
    assert not [entry for _, entry in bench.log if isinstance(entry, d.Note) and "sample_from" in entry.reason]
    assert bench.successor().states == bench.states
    plain = Bench(num_samples=1)
    plain.started(0)
    plain.ended(0, "failed", e.Failure(kind="user", message="ValueError: no", cause="exception"))
    plain.command("retry", trial=0)
    plain.command("continue")
    assert plain.core.trials[1].tags == {}


def test_a_fork_whose_checkpoint_is_gone_starts_from_the_beginning_with_a_warning() -> None:
    bench = Bench(num_samples=1, limits={"max_concurrent_trials": 1})
    bench.started(0)
    bench.reported(0, checkpoint=True)
    source = next(iter(bench.core.trials[0].checkpoints))
    kept = {"params": {"x": 0.25}, "checkpoint": source, "parent": 0}
    enqueued(bench, {"params": {"x": 0.125}, "checkpoint": "ckp_gone", "parent": 0}, kept)
    to_the_end(bench, 2)
    gone, forked = (bench.core.trials[number].segments[0] for number in (1, 2))
    assert (gone.cause, gone.start_iteration) == ("start", 0)
    assert (forked.cause, forked.start_iteration) == ("fork", 1)
    [note] = [entry for _, entry in bench.log if isinstance(entry, d.Note) and entry.warning]
    assert note.trial == 1
    assert note.reason == "trial 1 starts from the beginning, because the checkpoint ckp_gone is gone"
    assert bench.successor().states == bench.states


def test_a_pinned_checkpoint_is_kept_until_it_is_unpinned() -> None:
    bench = Bench(num_samples=1, checkpoint={"interval_s": None, "keep_last": 1, "keep_best": 0})
    bench.started(0)
    bench.reported(0, loss=0.1, checkpoint=True)
    first = next(iter(bench.core.trials[0].checkpoints))
    bench.feed(e.Pinned(time=bench.tick(), checkpoint=first, pinned=True))
    bench.reported(0, loss=0.05, checkpoint=True)
    assert not deletions(bench.reported(0, loss=0.01, checkpoint=True)).count(first)
    assert first in bench.core.trials[0].checkpoints
    assert first in bench.successor().core.trials[0].checkpoints
    out = bench.feed(e.Pinned(time=bench.tick(), checkpoint=first, pinned=False))
    assert deletions(out) == [first]


def test_a_deletion_that_a_pin_has_prevented_is_decided_again_when_the_checkpoint_is_unpinned() -> None:
    """The journal leaves a deletion out if a user has pinned the checkpoint before the decision was committed."""
    bench = Bench(num_samples=1, checkpoint={"interval_s": None, "keep_last": 1, "keep_best": 0})
    bench.started(0)
    bench.reported(0, loss=0.1, checkpoint=True)
    first = next(iter(bench.core.trials[0].checkpoints))
    assert deletions(bench.reported(0, loss=0.05, checkpoint=True)) == [first]
    assert not deletions(bench.feed(e.Pinned(time=bench.tick(), checkpoint=first, pinned=True)))
    assert first in bench.core.trials[0].checkpoints
    assert first in bench.successor().core.trials[0].checkpoints
    assert deletions(bench.feed(e.Pinned(time=bench.tick(), checkpoint=first, pinned=False))) == [first]


def test_a_checkpoint_that_a_pin_has_saved_from_its_deletion_can_be_forked() -> None:
    policy = {"interval_s": None, "keep_last": 1, "keep_best": 0}
    bench = Bench(num_samples=1, limits={"max_concurrent_trials": 1}, checkpoint=policy)
    bench.started(0)
    bench.reported(0, loss=0.1, checkpoint=True)
    first = next(iter(bench.core.trials[0].checkpoints))
    assert deletions(bench.reported(0, loss=0.05, checkpoint=True)) == [first]
    bench.feed(e.Pinned(time=bench.tick(), checkpoint=first, pinned=True))
    enqueued(bench, {"params": {"x": 0.25}, "checkpoint": first, "parent": 0})
    to_the_end(bench, 2)
    forked = bench.core.trials[1].segments[0]
    assert (forked.cause, forked.start_iteration) == ("fork", 1)
    assert bench.successor().states == bench.states


def test_a_proposal_that_arrives_after_users_have_asked_for_trials_is_made_again_later() -> None:
    bench = Bench(num_samples=2, search={"type": "gp"}, limits={"max_concurrent_trials": 1})
    assert len(bench.core.trials) == 0, "the searcher proposes in another process"
    enqueued(bench, {"params": {"x": 0.125}}, {"params": {"x": 0.25}})
    bench.feed(e.Suggested(time=bench.tick(), number=0, params={"x": 0.75}))
    bench.started(0)
    bench.reported(0)
    bench.ended(0, "returned")
    bench.started(1)
    bench.reported(1)
    asked = [action.number for action in bench.ended(1, "returned").actions if isinstance(action, Ask)]
    assert asked == [0]
    bench.feed(e.Suggested(time=bench.tick(), number=0, params={"x": 0.5}))
    assert [t.params["x"] for t in bench.core.trials] == [0.125, 0.25, 0.5]
