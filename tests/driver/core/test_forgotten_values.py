"""The core forgets the objectives of the single reports of a trial that has ended, but not too early."""

from __future__ import annotations

from tests.driver.bench import Bench
from tests.driver.core.test_late_uploads import late, leaves


def test_a_trial_that_has_ended_keeps_its_best_value_but_not_the_value_of_each_report() -> None:
    bench = Bench(num_samples=1)
    bench.core.experiment.keeps_values = False
    bench.started(0)
    for loss in (3.0, 1.0, 2.0):
        bench.reported(0, loss)
    trial = bench.core.trials[0]
    assert trial.values == {1: 3.0, 2: 1.0, 3: 2.0}
    bench.ended(0, "returned")
    assert trial.state.ended
    assert trial.values == {}
    assert (trial.best_value, trial.best_iteration) == (1.0, 2)


def test_the_value_of_a_checkpoint_whose_upload_goes_on_is_remembered_until_it_is_saved() -> None:
    bench = Bench(num_samples=1)
    bench.core.experiment.keeps_values = False
    bench.started(0)
    bench.reported(0, 3.0)
    bench.reported(0, 1.0)
    info = late(0, 2)
    leaves(bench, 0, info, outcome="returned")
    trial = bench.core.trials[0]
    assert trial.state.ended
    assert trial.values == {1: 3.0, 2: 1.0}
    bench.saved(0, info.id, 2)
    assert trial.checkpoints[info.id].value == 1.0
    assert trial.values == {}


def test_a_simulation_keeps_the_value_of_each_report_for_its_result() -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.reported(0, 3.0)
    bench.ended(0, "returned")
    assert bench.core.trials[0].state.ended
    assert bench.core.trials[0].values == {1: 3.0}
