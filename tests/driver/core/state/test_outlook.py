"""Notes in the log about what more training is expected to bring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tuner
from tests.driver.bench import Bench
from tuner.domain import events as e
from tuner.domain.decisions import Note
from tuner.domain.experiment import Objective, Scaling, Spec
from tuner.driver.assemble import assemble
from tuner.driver.core.state.outlook import Outlook
from tuner.driver.virtual import Simulation, Step, simulate
from tuner.schedulers.shared.forecast import expected_gain
from tuner.space import Space


def search(seconds: float, **more: Any) -> Simulation:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for step in range((checkpoint or 0) + 1, 11):
            yield Step({"loss": config["x"] + 1 / step, "size": config["x"]}, seconds, step)

    space = {"x": tuner.uniform(0, 1)}
    options: dict[str, Any] = {"metric": "loss", "mode": "min", "num_samples": 30, "search_alg": "random"}
    return simulate(evaluate, space, **{**options, "scheduler": "fifo", "max_t": 10, **more})


def said(done: Simulation) -> list[str]:
    return [d.reason for d in done.decisions if isinstance(d, Note) and "the same amount of training again" in d.reason]


def test_a_note_comes_each_time_the_hours_have_doubled() -> None:
    notes = said(search(120.0))  # 300 reports of two minutes: ten hours
    began = [note.split(" of training")[0] for note in notes]
    assert began == ["after 1 hour", "after 2 hours", "after 4 hours", "after 8 hours"]
    assert all(
        " of training, summed over all trials: the same amount of training again is expected to improve loss by" in n
        for n in notes
    )
    assert said(search(10.0)) == [], "50 minutes"


def test_the_figures_are_those_of_the_forecast() -> None:
    outlook = Outlook(Spec(name="x", space={}, objectives=(Objective("m", "max"),)))
    work, score = [600.0, 1200.0, 3000.0], [0.1, 0.4, 0.5]
    for seconds, value in ((600.0, 0.1), (600.0, 0.4), (1200.0, 0.2), (600.0, 0.5)):
        outlook.reported(seconds, value)
        assert not outlook.fresh
    outlook.reported(900.0, None)
    assert outlook.fresh
    gain = expected_gain(work, score, 3900.0, 3900.0)
    assert gain is not None
    words = outlook.in_words()
    assert words is not None
    assert words.startswith(
        "after 1.08 hours of training, summed over all trials: the same amount of training again is expected to "
        f"improve m by {gain.mean:.3g}"
    )
    assert words.endswith(f"by at most {gain.high:.3g}; the chance of any improvement is {100 * gain.chance:.0f} %")
    outlook.reported(1.0, 0.6)
    assert not outlook.fresh


@pytest.mark.parametrize(("workers", "said"), [(4, "4 GPU hours"), (1, "1 GPU hour")])
def test_gpu_hours_are_named(workers: int, said: str) -> None:
    scaling = Scaling(num_workers=workers, use_gpu=True)
    spec = Spec(name="x", space={}, objectives=(Objective("m", "max"),), scaling=scaling)
    outlook = Outlook(spec)
    outlook.reported(900.0, 0.1)
    outlook.reported(2700.0, 0.4)
    assert (outlook.in_words() or "").startswith(f"after {said}: ")


@pytest.mark.parametrize("objectives", [1, 2])
def test_nothing_is_said_of_several_objectives(objectives: int) -> None:
    names = ["loss", "size"][:objectives]
    done = search(120.0, metric=names, mode=["min"] * objectives)
    assert len(said(done)) == (4 if objectives == 1 else 0)


def test_a_driver_that_takes_over_repeats_no_note() -> None:
    """Fold the log of a search up to a note, and go on."""
    bench = Bench(num_samples=2, limits={"max_concurrent_trials": 1})
    bench.started(0)
    for time, loss in ((1000.0, 3.0), (2000.0, 2.0), (4000.0, 1.0)):
        bench.now = time
        bench.reported(0, loss)
    notes = [
        entry
        for _, entry in bench.log
        if isinstance(entry, Note) and "the same amount of training again" in entry.reason
    ]
    assert len(notes) == 1
    after = assemble(bench.spec, Space.from_json(bench.spec.space))
    for seq, entry in bench.log:
        after.fold(seq, entry)
    out = after.handle(e.Reported(time=4100.0, trial=0, segment=1, report_no=4, iteration=4, metrics={"loss": 0.9}))
    assert not [entry for _, entry in out.log if isinstance(entry, Note)]
