"""The budget of freeze-thaw: which trial is trained to the end."""

from __future__ import annotations

from tests.schedulers.driving import context
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, ScoredReport, Trial
from tuner.schedulers.freeze_thaw.decisions.budget import Budget


def test_the_leading_trial_is_the_best_by_its_reports_within_the_constraints() -> None:
    trials = Population()
    for number, (best, within) in enumerate([(0.9, 0.4), (0.6, 0.5)]):
        mark = ScoredReport(within, 2, 1)
        trial = Trial(number, {}, TrialState.PAUSED, iteration=2, best_value=best, feasible_best=mark, feasible=True)
        trials.add(trial)
    budget = Budget(4.0, True, 27.0, context(max_t=27))
    assert budget.leader([], trials) == 1, "0.9 and 0.6 were reported outside the constraints"
    assert "m of 0.5 is the best so far" in budget.why_finish(trials[1])
