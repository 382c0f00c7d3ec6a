"""Test how often trials save a checkpoint if `checkpoint.interval_s` is "auto"."""

from __future__ import annotations

import math
import random
from argparse import Namespace

import pytest

from benchmarks.checkpoint_interval import Simulated, bound
from tests.driver.bench import Bench, again
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.experiment import CheckpointPolicy, Scaling
from tuner.domain.segments import CheckpointInfo, Failure, SegmentRef
from tuner.driver.core.state.saving import FIRST_S, PRIOR_FAILURES, PRIOR_MTBF_S, SaveInterval, best_interval
from tuner.driver.core.state.usage import Usage
from tuner.errors import SpecError
from tuner.experiment.specs.spec import parse_spec

LOST = Failure(kind="system", cause="node_lost", message="its node was lost")
AUTO = {"interval_s": "auto", "keep_best": 0}


def lost_share(interval: float, cost: float, mtbf: float) -> float:
    """Return the expected share of the time that is lost with this interval.

    The times between failures are exponentially distributed. A segment of w = interval + cost seconds, which starts over at each
    failure, takes mtbf * (e^(w/mtbf) - 1) seconds on average.
    """
    return 1.0 - interval / (mtbf * math.expm1((interval + cost) / mtbf))


@pytest.mark.parametrize(("cost", "mtbf"), [(0.1, 86400.0), (5.0, 3600.0), (30.0, 600.0), (60.0, 120.0)])
def test_no_other_interval_loses_clearly_less(cost: float, mtbf: float) -> None:
    least = min(lost_share(mtbf * 10 ** (-4 + step / 200), cost, mtbf) for step in range(900))
    assert lost_share(best_interval(cost, mtbf), cost, mtbf) <= least * 1.01 + 1e-4


def test_it_is_youngs_interval_if_checkpoints_are_cheap() -> None:
    assert best_interval(1.0, 1e6) == pytest.approx(math.sqrt(2e6), rel=0.01)
    assert best_interval(500.0, 100.0) == 100.0, "if a checkpoint takes longer than it is to the next failures"


def test_the_estimates_come_to_what_is_true() -> None:
    """Let one group in an experiment fail every 20 minutes, at random."""
    rng, usage = random.Random(1), Usage(Scaling())
    saving = SaveInterval(CheckpointPolicy(interval_s="auto"), usage)
    now = 0.0
    usage.begin(0, now)
    for _ in range(200):
        now += rng.expovariate(1 / 1200.0)
        saving.saved(rng.uniform(3.0, 5.0), now)
        saving.failed(now)
    assert saving.seconds() == pytest.approx(best_interval(4.0, 1200.0), rel=0.15)
    assert saving.seconds(4.0) == pytest.approx((saving.seconds() or 0.0) / 2), "a larger group fails more often"


def test_a_whole_search_loses_about_as_little_as_with_the_best_fixed_interval() -> None:
    """Simulate 4 groups that fail every half an hour, with a checkpoint that costs 10 s."""
    arguments = Namespace(trials=4, hours=3.0, report=10.0, restart=60.0)
    lost = {interval: Simulated(interval, 10.0, 1800.0, 0, arguments).lost() for interval in (60.0, 3600.0, "auto")}
    assert lost["auto"] < 0.85 * min(lost[60.0], lost[3600.0])
    assert lost["auto"] < 1.4 * bound(10.0, 1800.0)


def test_trials_save_at_the_interval_and_the_log_says_it_once() -> None:
    bench = Bench(num_samples=1, checkpoint=AUTO)
    bench.started(0)
    asked: list[float] = []
    for count in range(1, 2000):
        waits = count == bench.core.trials[0].segments[-1].milestone
        bench.reported(0, waits=waits)
        if waits and bench.core.verdict(SegmentRef(0, 1)).save_checkpoint:
            asked.append(bench.now)
            info = CheckpointInfo(id=f"ckp_{count}", uri="memory:", step=count, took_s=2.0)
            for ready in (False, True):
                saved = CheckpointInfo(**{**_fields(info), "ready": ready})
                bench.feed(e.CheckpointSaved(time=bench.now, trial=0, segment=1, checkpoint=saved))
            bench.core.verdict(SegmentRef(0, 1))
    assert asked[0] == pytest.approx(FIRST_S, abs=2)
    (note,) = [entry for _, entry in bench.log if isinstance(entry, d.Note)]
    trained = asked[0] - 1.0
    first = best_interval(2.0, PRIOR_MTBF_S + trained / PRIOR_FAILURES)
    assert asked[1] - asked[0] == pytest.approx(first, rel=0.05)
    assert note.reason == (
        f"trials save a checkpoint every {first:.3g} s: a checkpoint costs 2 s, and a failure is expected every 6.03 h "
        f"(0 failures in {trained / 60:.3g} min of training)"
    )


def _fields(info: CheckpointInfo) -> dict[str, object]:
    return {name: getattr(info, name) for name in info.__slots__}


def test_a_first_report_that_takes_no_time_delays_no_checkpoint() -> None:
    """Reports of ten minutes each followed an evaluation of a tenth of a second, and the next checkpoint was due after a day."""
    bench = Bench(num_samples=1, checkpoint={"interval_s": 60.0, "keep_best": 0})
    bench.started(0)
    for seconds, due in ((0.1, False), (600.0, True)):
        bench.now += seconds - 1.0
        segment = bench.core.trials[0].segments[-1]
        bench.reported(0, waits=segment.milestone == segment.report_no + 1)
        assert bench.core.trials[0].segments[-1].milestone == segment.report_no, "the ranks wait"
        assert bench.core.verdict(SegmentRef(0, 1)).save_checkpoint == due


def test_failures_make_it_shorter_for_all_trials_and_the_next_driver_finds_the_same() -> None:
    bench = Bench(num_samples=2, checkpoint=AUTO)
    bench.started(0)
    bench.started(1)
    bench.reported(0)
    bench.feed(
        e.CheckpointSaved(
            time=bench.now, trial=0, segment=1, checkpoint=CheckpointInfo(id="c", uri="memory:", step=1, took_s=2.0)
        )
    )
    before = bench.core.experiment.saving.seconds()
    for _ in range(3):
        bench.ended(0, "failed", LOST)
        bench.started(0)
    after = bench.core.experiment.saving.seconds()
    assert before is not None
    assert after is not None
    assert after < before / 2
    assert len([entry for _, entry in bench.log if isinstance(entry, d.Note)]) > 1, "the log tells of the change"
    bench.log = [(seq, again(entry) if not isinstance(entry, e.Reported) else entry) for seq, entry in bench.log]
    assert bench.successor().core.experiment.saving.seconds() == after


def test_a_fixed_interval_stays() -> None:
    saving = SaveInterval(CheckpointPolicy(interval_s=5.0), Usage(Scaling()))
    saving.saved(100.0, 1.0)
    saving.failed(2.0)
    assert saving.seconds(4.0) == 5.0
    assert not saving.fresh
    assert SaveInterval(CheckpointPolicy(interval_s=None), Usage(Scaling())).seconds() is None


@pytest.mark.parametrize("interval", [0, -1.0, "often"])
def test_other_values_are_refused(interval: object) -> None:
    spec = {"entrypoint": "tuner.examples.digits:train", "space": {}, "metric": "m", "mode": "min", "num_samples": 1}
    assert parse_spec({**spec, "checkpoint": {"interval_s": "auto"}}).checkpoint.interval_s == "auto"
    with pytest.raises(SpecError, match="interval_s"):
        parse_spec({**spec, "checkpoint": {"interval_s": interval}})
