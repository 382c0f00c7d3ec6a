"""Elastic trials grow into free workers, and give them back when a trial waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.driver.bench import Bench, interrupts, launches
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.experiment import Scaling
from tuner.domain.segments import SegmentRef
from tuner.driver.core.actions import Ask


def bench(workers: int = 4, most: int = 4, **options: Any) -> Bench:
    """Return a search for elastic trials with 1 to `most` ranks on a cluster that holds `workers` ranks."""
    scaling = Scaling(num_workers=1, max_workers=most, **options.pop("scaling", {}))
    limits = options.pop("limits", {})
    room = {"slots": workers, "workers": workers}
    return Bench(scaling=scaling, limits=limits, room=room, **{"max_t": 100, "num_samples": 4, **options})


def sizes(made: Bench) -> list[int]:
    return [trial.segments[-1].workers for trial in made.core.trials]


def resizes(made: Bench) -> list[d.Resize]:
    return [entry for _, entry in made.log if isinstance(entry, d.Resize)]


def started(made: Bench, count: int = 4) -> Bench:
    for number in range(count):
        made.started(number)
    return made


def test_trials_start_with_the_smallest_number_if_others_follow() -> None:
    made = bench(num_samples=9)
    assert sizes(made) == [1, 1, 1, 1]
    assert not any("because no trial waits" in trial.reason for trial in made.core.trials)


def test_trials_start_with_their_share_if_fewer_are_left_than_the_cluster_holds() -> None:
    made = bench(num_samples=2)
    assert sizes(made) == [2, 2]
    (start, _) = [entry for _, entry in made.log if isinstance(entry, d.Start)]
    assert start.reason.endswith("it starts with 2 workers, because no trial waits")


def test_a_survivor_grows_at_a_report_with_a_checkpoint_and_goes_on_from_it() -> None:
    made = started(bench())
    for number in (1, 2, 3):
        made.command("stop", number)
        made.ended(number)
    made.reported(0)
    assert resizes(made) == [], "it saves no checkpoint here"
    made.reported(0, checkpoint=True)
    (resize,) = resizes(made)
    assert resize.workers == 4
    assert resize.reason.startswith("grows at iteration 2, from 1 to 4 workers: 3 of 4 are free and no trial waits")
    verdict = made.core.verdict(SegmentRef(0, 1))
    assert (verdict.action, verdict.save_checkpoint) == ("pause", True)
    assert launches(made.ended(0)) == [(0, 2)]
    segment = made.core.trials[0].segments[-1]
    assert (segment.workers, segment.cause, segment.start_iteration) == (4, "resize", 2)
    made.started(0)
    assert str(made.core.trials[0].state) == "running"
    made.feed(e.Amended(time=made.tick(), changes={"num_samples": 7}))
    made.reported(0, checkpoint=True)
    assert resizes(made)[1].reason == "gives way at iteration 3, from 4 to 1 worker: trial 4 waits"


def test_a_trial_that_can_save_at_every_third_report_grows_there() -> None:
    made = started(bench(num_samples=4))
    for number in (1, 2, 3):
        made.command("stop", number)
        made.ended(number)
    made.reported(0, offer=4)
    for _ in range(2):
        made.reported(0, waits=False)
    assert resizes(made) == [], "it can save no checkpoint here"
    made.reported(0, offer=7)
    assert [resize.reason.partition(",")[0] for resize in resizes(made)] == ["grows at iteration 4"]


def test_a_trial_does_not_grow_while_a_searcher_is_asked_for_another_one() -> None:
    made = started(bench(num_samples=9))
    made.core.searcher.is_heavy = lambda trials: True  # type: ignore[method-assign]
    made.reported(0, checkpoint=True)
    made.command("stop", 3)
    assert Ask(4) in made.ended(3).actions
    made.reported(0, checkpoint=True)
    assert resizes(made) == [], "the trial that the searcher is asked about needs the free worker"


def test_a_trial_does_not_grow_once_the_search_ends() -> None:
    made = started(bench(workers=11, most=11, num_samples=11), 11)
    for number in range(1, 11):
        made.ended(number, "failed", e.Failure(kind="user", cause="exception", message="boom"))
    assert made.core.experiment.finishing is not None, "ten trials failed and none has reported"
    for _ in range(2):
        made.reported(0, checkpoint=True)
    assert resizes(made) == []


def test_what_is_freed_is_distributed_evenly_or_goes_to_the_top() -> None:
    search = {"type": "random", "constraints": {"size": {"max": 5}}}
    for policy, size, wanted in (("even", 1, [2, 2]), ("top", 1, [1, 3]), ("top", 9, [3, 1])):
        made = started(bench(num_samples=4, scaling={"resources_allocation": policy}, search=search))
        for number in (0, 1):
            made.reported(number, loss=1.0 - number, size=number * size)
        for number in (2, 3):
            made.command("stop", number)
            made.ended(number)
        for _ in range(2):
            for number in (0, 1):
                if not made.core.trials[number].segments[-1].leaving:
                    made.reported(number, loss=1.0 - number, checkpoint=True)
        for number in (0, 1):
            if made.core.trials[number].segments[-1].leaving:
                made.ended(number)
                made.started(number)
        assert sizes(made)[:2] == wanted, (policy, size)


def test_workers_into_which_a_trial_will_grow_are_not_given_to_another_one() -> None:
    made = started(bench(num_samples=3), 3)
    made.reported(0, loss=0.5)
    made.reported(0, loss=0.5, checkpoint=True)
    assert [(resize.trial, resize.workers) for resize in resizes(made)] == [(0, 2)]
    made.reported(1, loss=0.1)
    made.reported(1, loss=0.1, checkpoint=True)
    assert len(resizes(made)) == 1, "trial 0 has not left yet"
    made.ended(0)
    assert sizes(made) == [2, 1, 1]


def test_a_grown_trial_gives_way_to_one_that_waits() -> None:
    made = started(bench(num_samples=1), 1)
    assert sizes(made) == [4]
    made.reported(0, checkpoint=True)
    assert resizes(made) == []
    made.feed(e.Amended(time=made.tick(), changes={"num_samples": 4}))
    assert [str(trial.state) for trial in made.core.trials] == ["running", "pending"], "it waits for a worker"
    assert not made.core.trials[1].segments
    made.reported(0, checkpoint=True)
    (resize,) = resizes(made)
    assert resize.workers == 1, "two more trials follow the one that waits"
    assert resize.reason == "gives way at iteration 2, from 4 to 1 worker: trial 1 waits"
    assert sorted(launches(made.ended(0))) == [(0, 2), (1, 1), (2, 1), (3, 1)]
    assert sizes(made) == [1, 1, 1, 1]


def test_a_trial_that_ends_soon_does_not_give_way() -> None:
    made = bench(num_samples=1, max_t=3)
    made.core.first_milestone(SegmentRef(0, 1))
    made.feed(e.SegmentStarted(time=made.tick(), trial=0, segment=1, startup_s=10.0))
    made.feed(e.Amended(time=made.tick(), changes={"num_samples": 4}))
    made.reported(0, checkpoint=True)
    assert resizes(made) == []


def test_a_trial_does_not_grow_if_a_restart_costs_more_than_it_gains() -> None:
    made = bench(num_samples=4, max_t=6)
    for number in range(4):
        made.core.first_milestone(SegmentRef(number, 1))
        made.feed(e.SegmentStarted(time=made.tick(), trial=number, segment=1, startup_s=60.0))
    for number in (1, 2, 3):
        made.command("stop", number)
        made.ended(number)
    for _ in range(4):
        made.reported(0, checkpoint=True)
    assert resizes(made) == []


def test_a_trial_that_became_no_faster_does_not_grow_again() -> None:
    made = bench(workers=4, num_samples=2, most=3)
    trial = made.core.trials[0]
    assert sizes(made) == [2, 2]
    made.started(1)
    made.command("stop", 1)
    made.ended(1)
    made.started(0)
    made.reported(0)
    for _ in range(3):
        made.reported(0, checkpoint=True)
        if trial.segments[-1].leaving:
            made.ended(0)
            made.started(0)
    assert trial.segments[-1].workers == 3
    for _ in range(4):
        made.reported(0, checkpoint=True)
    made.ended(0, "failed")
    assert made.core.experiment.sizes.exponent == 0.0, "a report takes a second with any number of ranks"


def test_other_work_on_the_cluster_takes_workers_back() -> None:
    made = started(bench(num_samples=1), 1)
    made.feed(e.WorkersChanged(time=made.tick(), workers=2))
    made.reported(0, checkpoint=True)
    (resize,) = resizes(made)
    assert resize.workers == 2
    assert resize.reason == "gives way at iteration 1, from 4 to 2 workers: other work on the cluster needs workers"


def test_the_next_driver_finds_the_same_sizes() -> None:
    made = started(bench())
    for number in (1, 2, 3):
        made.command("stop", number)
        made.ended(number)
    made.reported(0)
    made.reported(0, checkpoint=True)
    made.ended(0)
    other = made.successor()
    assert other.core.trials[0].segments[-1].workers == 4
    other.feed(e.DriverStarted(time=made.tick(), epoch=3, slots=4, workers=4))
    segment = other.core.trials[0].segments[-1]
    assert (segment.ordinal, segment.workers, segment.cause) == (3, 4, "retry"), "it keeps its size"
    assert other.core.experiment.segments.ranks == 4
    other.feed(e.DriverStarted(time=made.tick(), epoch=4, slots=2, workers=2))
    assert other.core.trials[0].segments[-1].workers == 2, "the cluster has become smaller"


def test_usage_counts_every_rank() -> None:
    made = started(bench(num_samples=1, scaling={"resources_per_worker": {"CPU": 1, "GPU": 1}}), 1)
    begun = made.now
    made.ended(0, "returned")
    assert made.core.experiment.usage.gpu_hours(made.now) == 4 * (made.now - begun) / 3600


def test_other_trials_keep_their_number_of_ranks() -> None:
    made = Bench(scaling=Scaling(num_workers=2), limits={"max_concurrent_trials": 2}, num_samples=2)
    started(made, 2)
    made.command("stop", 1)
    made.ended(1)
    for _ in range(3):
        made.reported(0, checkpoint=True)
    assert sizes(made) == [2, 2]
    assert resizes(made) == []


def test_a_trial_that_has_just_grown_trains_for_a_while_before_it_grows_again() -> None:
    made = bench(num_samples=3)
    for number in range(3):
        made.core.first_milestone(SegmentRef(number, 1))
        made.feed(e.SegmentStarted(time=made.tick(), trial=number, segment=1, startup_s=2.0))
    for number in (1, 2):
        made.command("stop", number)
        made.ended(number)
        for _ in range(2):
            if not made.core.trials[0].segments[-1].leaving:
                made.reported(0, checkpoint=True)
        if number == 1:
            made.ended(0)
            made.started(0)
    assert len(resizes(made)) == 1
    for _ in range(8):
        made.reported(0, checkpoint=True)
        if len(resizes(made)) == 2:
            break
    assert len(resizes(made)) == 2
    segment = made.core.trials[0].segments[-1]
    assert segment.clock - (segment.started_at or 0.0) >= 8, "four times as long as a restart"


def test_a_grown_trial_whose_group_does_not_fit_starts_with_fewer() -> None:
    made = bench(num_samples=1)
    assert sizes(made) == [4]
    made.feed(e.Waiting(time=made.tick(), trial=0, segment=1, reason="waits for 4 workers"))
    out = made.feed(e.WorkersChanged(time=made.tick(), workers=3))
    (resize,) = resizes(made)
    assert resize.reason == "starts with 3 workers instead of 4, because other work holds the rest"
    assert list(interrupts(out)) == [0]
    assert launches(made.ended(0)) == [(0, 2)]
    assert sizes(made) == [3]


@pytest.mark.parametrize("first", ["pause", "resize"])
def test_a_trial_that_a_user_pauses_is_paused_although_it_is_resized(first: str) -> None:
    """It had gone on with its new number of ranks."""
    made = bench(num_samples=1)
    made.feed(e.Waiting(time=made.tick(), trial=0, segment=1, reason="waits for 4 workers"))
    if first == "pause":
        made.command("pause", 0)
    made.feed(e.WorkersChanged(time=made.tick(), workers=3))
    assert len(resizes(made)) == 1
    if first == "resize":
        made.command("pause", 0)
    for one in (made.successor(), made):
        assert one.core.trials[0].segments[-1].commanded == "pause"
    assert launches(made.ended(0)) == [(0, 2)]
    made.started(0)
    made.reported(0)
    assert (made.verdict(0), made.states) == ("pause", ["paused"])


def test_a_trial_that_reports_at_max_t_while_its_segment_ends_for_a_resize_is_complete() -> None:
    made = bench(num_samples=1, max_t=1)
    made.feed(e.Waiting(time=made.tick(), trial=0, segment=1, reason="waits for 4 workers"))
    made.feed(e.WorkersChanged(time=made.tick(), workers=3))
    assert len(resizes(made)) == 1
    made.started(0)
    made.reported(0)
    assert made.states == ["completed"]
    assert made.verdict(0) == "stop"
    assert launches(made.ended(0)) == [], "it is not trained beyond max_t"


def test_a_trial_whose_group_is_lost_starts_again_with_what_the_others_leave() -> None:
    made = started(bench(num_samples=2), 2)
    assert sizes(made) == [2, 2]
    made.feed(e.WorkersChanged(time=made.tick(), workers=3))
    assert launches(made.ended(1, "failed")) == [(1, 2)]
    assert sizes(made) == [2, 1]


def test_a_trial_that_became_slower_goes_back_to_its_former_number_of_ranks() -> None:
    made = bench(num_samples=2, most=4)
    trial = made.core.trials[0]
    made.started(1)
    made.command("stop", 1)
    made.ended(1)
    made.started(0)
    made.reported(0)
    made.reported(0, checkpoint=True)
    made.ended(0)
    made.started(0)
    assert trial.segments[-1].workers == 4
    for _ in range(2):
        made.now += 2  # a report takes three seconds instead of one
        made.reported(0, checkpoint=True)
    resize = resizes(made)[-1]
    assert resize.workers == 2
    assert resize.reason.startswith("shrinks at iteration 4, from 4 to 2 workers: growing made it slower; this saves")
    made.ended(0)
    made.started(0)
    for _ in range(4):
        made.reported(0, checkpoint=True)
    assert sizes(made)[0] == 2, "it does not grow again"


def test_the_time_that_a_fork_has_left_counts_from_its_checkpoint() -> None:
    made = bench(num_samples=1, time_attr="epochs")
    made.started(0)
    for epoch in range(1, 51):
        made.reported(0, checkpoint=epoch == 50, epochs=float(epoch))
    point = {"params": dict(made.core.trials[0].params), "checkpoint": "ckp_0_1_50", "parent": 0}
    made.feed(e.Enqueued(time=made.tick(), points=[{**point, "space_revision": None}]))
    made.command("stop", 0)
    made.ended(0)
    fork, experiment = made.core.trials[1], made.core.experiment
    assert fork.segments[-1].start_iteration == 50
    made.started(1)
    made.reported(1, epochs=51.0)
    assert experiment.start_t(fork) == 50.0
    assert experiment.sizes.left_s(fork, 100, experiment.start_t(fork)) == 49.0, "one second for one epoch"
