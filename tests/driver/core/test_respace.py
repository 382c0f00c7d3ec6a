"""A search space that a user changes while the experiment runs."""

from __future__ import annotations

from typing import Any

import pytest

import tuner
from tests.driver.bench import Bench, again, launches
from tests.fuzz import invariants
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.states import ExperimentState, TrialState
from tuner.driver.assemble import assemble
from tuner.driver.core import Effects
from tuner.driver.core.actions import Ask, suggested
from tuner.driver.recording import recording
from tuner.space import Space

WIDE = {"x": tuner.uniform(0, 1), "y": tuner.choice(["a", "b"])}
NARROW = {"x": tuner.uniform(0.5, 0.75), "y": tuner.choice(["a", "b"])}
SHRUNK = {"x": tuner.uniform(0.5, 0.75), "z": tuner.uniform(0, 1)}

SEARCHES: list[dict[str, Any]] = [
    {"type": "random"},
    {"type": "qmc"},
    {"type": "bohb", "min_points_in_model": 1},
    {"type": "tpe", "n_startup_trials": 2},
    {"type": "nsgaii", "population_size": 4},
    {"type": "optuna", "sampler": "RandomSampler"},
]
"""Searchers that go on in a changed space, besides gp and cmaes, which need torch or other parameters."""


def respaced(bench: Bench, space: dict[str, Any], **assumed: Any) -> Effects:
    spec = bench.core.spec
    changes = {
        "space": Space.from_python(space).to_json(),
        "former_spaces": [*spec.former_spaces, spec.space],
        "assumed": assumed,
    }
    return bench.feed(e.Amended(time=bench.tick(), changes=changes, reason="a user changed the space"))


def serve(bench: Bench, out: Effects) -> None:
    """Answer the questions to heavy searchers, as a host does."""
    for action in out.actions:
        if isinstance(action, Ask):
            suggestion = bench.core.searcher.suggest(action.number, bench.core.trials)
            serve(bench, bench.feed(suggested(bench.tick(), action.number, suggestion)))


def serve_first(bench: Bench) -> None:
    """Answer the question that the first event has led to, if the searcher is heavy."""
    if not len(bench.core.trials):
        serve(bench, Effects(actions=[Ask(0)]))


def step(bench: Bench, number: int, loss: float | None = None) -> None:
    """Let a trial run to its end with one report."""
    bench.started(number)
    x = bench.core.trials[number].params["x"]
    bench.reported(number, loss=abs(x - 0.6) if loss is None else loss)
    serve(bench, bench.ended(number, "returned"))


def running(bench: Bench) -> list[int]:
    return [trial.number for trial in bench.core.trials if trial.holds_resources]


def check_folds(bench: Bench, cuts: range | None = None) -> None:
    """Check that a driver which folds the log is in the state of the one that wrote it, wherever it takes over."""
    log = [(seq, again(entry)) for seq, entry in bench.log]
    whole = assemble(bench.spec, bench.space)
    for seq, entry in log:
        whole.fold(seq, entry)
    assert whole.spec == bench.core.spec
    assert not list(invariants.of_fold(bench.core, whole))
    assert whole.scheduler.state == bench.core.scheduler.state
    for trial in bench.core.trials:
        assert whole.searcher.context.params_of(trial) == bench.core.searcher.context.params_of(trial)
    number = len(whole.trials)
    asked = [core.searcher.suggest(number, core.trials) for core in (whole, bench.core)]
    assert asked[0] == asked[1]
    for cut in cuts or range(0):
        early = assemble(bench.spec, bench.space)
        for seq, entry in log[:cut]:
            early.fold(seq, entry)
        early.handle(e.DriverStarted(time=bench.now + 1, epoch=99))


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: str(search["type"]))
def test_trials_are_proposed_in_the_new_space_and_those_that_run_go_on(search: dict[str, Any]) -> None:
    bench = Bench(space=WIDE, search=search, num_samples=16, seed=3)
    serve_first(bench)
    for _ in range(3):
        step(bench, running(bench)[0])
    kept = {number: dict(bench.core.trials[number].params) for number in running(bench)}
    respaced(bench, NARROW)
    assert {number: bench.core.trials[number].params for number in running(bench)} == kept
    first_new = len(bench.core.trials)
    while running(bench):
        step(bench, running(bench)[0])
    assert bench.core.state is ExperimentState.COMPLETED
    new = [trial for trial in bench.core.trials if trial.number >= first_new]
    assert len(new) == 16 - first_new
    assert all(0.5 <= trial.params["x"] <= 0.75 for trial in new)
    assert {trial.space_revision for trial in new} == {1}
    assert {trial.space_revision for trial in bench.core.trials if trial.number < first_new} == {0}
    assert all(
        segment.space_revision == trial.space_revision for trial in bench.core.trials for segment in trial.segments
    )
    check_folds(bench, range(1, len(bench.log), 5))
    recorded = recording(bench.log).trials
    assert {trial.number: trial.space_revision for trial in bench.core.trials} == {
        number: trial.space_revision for number, trial in recorded.items()
    }


def test_the_note_says_how_many_trials_lie_in_the_new_space() -> None:
    bench = Bench(space=WIDE, num_samples=8)
    inside = [0.5 <= trial.params["x"] <= 0.75 for trial in bench.core.trials]
    respaced(bench, NARROW)
    notes = [entry.reason for _, entry in bench.log if isinstance(entry, d.Note)]
    assert notes == [f"a user changed the space; {sum(inside)} of 2 trials so far lie in the new space"]


@pytest.mark.parametrize(
    "search",
    [{"type": "cmaes"}, pytest.param({"type": "gp", "n_startup_trials": 2}, marks=pytest.mark.long)],
    ids=["cmaes", "gp"],
)
def test_models_that_keep_their_state_with_trials_begin_anew(search: dict[str, Any]) -> None:
    """The short form tries cmaes."""
    numbers = {"x": tuner.uniform(0, 1), "w": tuner.uniform(0, 1)}
    bench = Bench(
        space=numbers, search=search, num_samples=None, limits={"max_concurrent_trials": 1, "time_budget_s": 1e6}
    )
    serve_first(bench)
    for _ in range(6):
        step(bench, running(bench)[0])
    out = respaced(bench, {"x": tuner.uniform(0.5, 0.75), "w": tuner.uniform(0, 1), "v": tuner.uniform(2, 3)}, v=2.5)
    serve(bench, out)
    for _ in range(6):
        step(bench, running(bench)[0])
    new = [trial for trial in bench.core.trials if trial.space_revision == 1]
    assert len(new) >= 5
    assert all(0.5 <= trial.params["x"] <= 0.75 and 2 <= trial.params["v"] <= 3 for trial in new)
    assert not any("failed" in trial.reason for trial in bench.core.trials)


@pytest.mark.parametrize(
    ("kind", "before", "after"), [("tpe", 40, 20), pytest.param("gp", 15, 8, marks=pytest.mark.long)]
)
def test_a_model_learns_from_the_old_trials_that_lie_in_the_new_space(kind: str, before: int, after: int) -> None:
    """The best of the old trials lie at the lower end, so the new ones are proposed there. The short form tries tpe."""
    search = {"type": kind, "n_startup_trials": 10}
    bench = Bench(space={"x": tuner.uniform(0, 1)}, search=search, num_samples=before + after)
    serve_first(bench)
    while len(bench.core.trials) < before:
        step(bench, running(bench)[0], loss=bench.core.trials[running(bench)[0]].params["x"])
    serve(bench, respaced(bench, {"x": tuner.uniform(0, 0.9), "w": tuner.uniform(0, 1)}, w=0.5))
    first = len(bench.core.trials)
    while running(bench):
        number = running(bench)[0]
        step(bench, number, loss=bench.core.trials[number].params["x"])
    new = [trial.params["x"] for trial in bench.core.trials if trial.number >= first]
    assert sum(x < 0.3 for x in new) > 0.6 * len(new), new


def test_a_suggestion_that_was_asked_for_before_is_asked_for_again() -> None:
    bench = Bench(space=WIDE, search={"type": "gp", "n_startup_trials": 2}, num_samples=4)
    assert not len(bench.core.trials)
    old = bench.core.searcher.suggest(0, bench.core.trials)
    assert not [action for action in respaced(bench, NARROW).actions if isinstance(action, Ask)], "one is on its way"
    out = bench.feed(suggested(bench.tick(), 0, old))
    assert not len(bench.core.trials), "it may lie outside"
    assert [action for action in out.actions if isinstance(action, Ask)] == [Ask(0)]
    serve(bench, out)
    assert all(0.5 <= trial.params["x"] <= 0.75 for trial in bench.core.trials)
    assert len(bench.core.trials) == 2


def test_what_users_asked_for_before_keeps_its_space_and_a_retry_too() -> None:
    bench = Bench(space=WIDE, num_samples=2, limits={"max_concurrent_trials": 2})
    bench.feed(e.Enqueued(time=bench.tick(), points=[{"params": {"x": 0.9}}], reason="mine"))
    respaced(bench, SHRUNK, z=0.5)
    bench.started(0)
    bench.ended(0, "failed", e.Failure(kind="user", message="ValueError: no", cause="exception"))
    mine = bench.core.trials[2]
    assert (mine.params["x"], mine.space_revision, set(mine.params)) == (0.9, 0, {"x", "y"})
    bench.feed(e.Commanded(time=bench.tick(), command="retry", trial=0))
    bench.feed(e.Enqueued(time=bench.tick(), points=[{"params": {"x": 0.6}}], reason="mine"))
    step(bench, 1)
    step(bench, 2)
    retried, newer = bench.core.trials[3], bench.core.trials[4]
    assert (retried.params, retried.space_revision) == (bench.core.trials[0].params, 0)
    assert (newer.params["x"], newer.space_revision, set(newer.params)) == (0.6, 1, {"x", "z"})
    check_folds(bench, range(1, len(bench.log)))


def test_points_to_evaluate_that_are_left_keep_what_lies_in_the_new_space() -> None:
    points = ({"x": 0.6, "y": "a"}, {"x": 0.7, "y": "b"}, {"x": 0.9, "y": "b"}, {"x": 0.7, "y": "b"})
    bench = Bench(space=WIDE, num_samples=5, points_to_evaluate=points, limits={"max_concurrent_trials": 1})
    respaced(bench, {"x": tuner.uniform(0.5, 0.75), "y": tuner.choice(["b", "c"])})
    while running(bench):
        step(bench, running(bench)[0])
    trials = list(bench.core.trials)
    assert trials[1].params == {"x": 0.7, "y": "b"}
    assert (0.5 <= trials[2].params["x"] <= 0.75, trials[2].params["y"]) == (True, "b")
    assert trials[3].params == {"x": 0.7, "y": "b"}


def test_pbt_moves_what_it_copies_into_the_new_space() -> None:
    bench = Bench(
        space=WIDE,
        num_samples=4,
        limits={"max_concurrent_trials": 4},
        scheduler={"type": "pbt", "perturbation_interval": 1, "quantile_fraction": 0.5, "resample_probability": 0.0},
        points_to_evaluate=tuple({"x": x, "y": "a"} for x in (0.1, 0.2, 0.9, 0.95)),
        max_t=9,
    )
    for number in range(4):
        bench.started(number)
    for number in range(3):
        bench.reported(number, loss=float(number), checkpoint=True)
    before = len(bench.log)
    respaced(bench, SHRUNK, z=0.25)
    bench.reported(3, loss=3.0, checkpoint=True)
    [exploit] = [entry for _, entry in bench.log[before:] if isinstance(entry, d.Exploit)]
    trial = bench.core.trials[exploit.trial]
    assert set(trial.params) == {"x", "z"}
    assert 0.5 <= trial.params["x"] <= 0.75
    assert trial.params["z"] in (pytest.approx(0.3), pytest.approx(0.2)), "the assumed value, moved"
    assert trial.space_revision == 1
    bench.ended(exploit.trial)
    assert [segment.space_revision for segment in trial.segments] == [0, 1]
    assert bench.core.trials[0].space_revision == 0
    check_folds(bench, range(1, len(bench.log)))


def test_an_exploit_that_waited_for_a_checkpoint_goes_on_unchanged() -> None:
    bench = Bench(
        space=WIDE,
        num_samples=4,
        limits={"max_concurrent_trials": 4},
        scheduler={"type": "pbt", "perturbation_interval": 1, "quantile_fraction": 0.5},
        max_t=9,
    )
    for number in range(4):
        bench.started(number)
    for number in range(3):
        bench.reported(number, loss=float(number))
    for number in range(3):
        bench.saved(number, f"ckp_{number}", 1, ready=False)
    bench.reported(3, loss=3.0)
    [waiting] = bench.core.experiment.waiting_exploits
    before = dict(bench.core.trials[waiting].params)
    bench.ended(waiting)
    respaced(bench, NARROW)
    trial = bench.core.trials[waiting]
    assert (trial.params, trial.space_revision) == (before, 0)
    assert trial.state is not TrialState.PAUSED
    assert "the search space was changed while the trial waited" in trial.reason
    check_folds(bench, range(1, len(bench.log)))


def test_freeze_thaw_goes_on_with_the_trials_that_lie_in_the_new_space() -> None:
    bench = Bench(
        space={"x": tuner.uniform(0, 1)}, num_samples=200, max_t=9, scheduler={"type": "freeze_thaw"}, seed=1,
        limits={"max_concurrent_trials": 2},
    )  # fmt: skip

    def advance() -> None:
        number = running(bench)[0]
        trial = bench.core.trials[number]
        if not trial.segments[-1].started:
            bench.started(number)
        bench.reported(number, loss=abs(trial.params["x"] - 0.6) + 1 / (1 + trial.iteration), checkpoint=True)
        if bench.verdict(number) != "continue":
            bench.ended(number)

    for _ in range(60):
        advance()
    before = len(bench.core.trials)
    outside = {t.number for t in bench.core.trials if not 0.5 <= t.params["x"] <= 0.75}
    assert 3 <= len(outside) < before
    resumed = {t.number: len(t.segments) for t in bench.core.trials}
    respaced(bench, {"x": tuner.uniform(0.5, 0.75)})
    check_folds(bench)
    for _ in range(100):
        if running(bench):
            advance()
    new = [trial for trial in bench.core.trials if trial.number >= before]
    assert len(new) >= 5
    assert all(0.5 <= trial.params["x"] <= 0.75 for trial in new)
    assert any("the model" in trial.reason or trial.tags.get("model") for trial in new)
    taken_up = {n for n in outside if len(bench.core.trials[n].segments) > resumed[n]}
    assert not taken_up, "trials outside are not continued"
    said = [entry.reason for _, entry in bench.log if isinstance(entry, d.Pause) and "does not lie" in entry.reason]
    assert said or not {n for n in outside if bench.core.trials[n].state is TrialState.RUNNING}
    check_folds(bench, range(len(bench.log) - 40, len(bench.log), 7))


def test_a_fit_of_the_model_over_the_space_before_is_not_used() -> None:
    bench = Bench(space={"x": tuner.uniform(0, 1)}, num_samples=40, max_t=9, scheduler={"type": "freeze_thaw"})
    respaced(bench, {"x": tuner.uniform(0, 0.5)})
    late = {"theta": [1.0] * 5, "results": 7}
    bench.feed(e.ModelFitted(time=bench.tick(), payload=late))
    assert bench.core.scheduler.state.theta == []
    bench.feed(e.ModelFitted(time=bench.tick(), payload={**late, "model": 1}))
    assert bench.core.scheduler.state.theta == [1.0] * 5


def test_a_change_that_only_drops_an_assumed_value_gives_freeze_thaw_a_new_model() -> None:
    bench = Bench(space={"x": tuner.uniform(0, 1)}, num_samples=40, max_t=9, scheduler={"type": "freeze_thaw"})
    bench.started(0)
    bench.reported(0, loss=0.5)
    scheduler: Any = bench.core.scheduler
    space = {"x": tuner.uniform(0, 1), "w": tuner.randint(1, 9)}
    inside = []
    for assumed in ({"w": 4}, {}):
        respaced(bench, space, **assumed)
        observed, trials = scheduler._observed, bench.core.trials
        inside.append((observed.lies_inside(trials[0]), len(observed.inside(scheduler.state, trials))))
    assert inside == [(True, 1), (False, 0)]


def test_an_ended_experiment_continues_in_a_new_space() -> None:
    bench = Bench(space=WIDE, num_samples=2, scheduler={"type": "asha", "max_t": 3, "grace_period": 1})
    while running(bench):
        step(bench, running(bench)[0])
    assert bench.core.ended
    respaced(bench, SHRUNK, z=0.0)
    bench.feed(e.Amended(time=bench.tick(), changes={"num_samples": 4}))
    assert launches(bench.command("continue")) == [(2, 1), (3, 1)]
    assert all(set(bench.core.trials[number].params) == {"x", "z"} for number in (2, 3))
    check_folds(bench, range(1, len(bench.log)))


def test_a_searcher_that_had_no_more_of_the_old_space_is_asked_about_the_new_one() -> None:
    bench = Bench(num_samples=10, limits={"max_concurrent_trials": 1})
    bench.core.searcher.is_heavy = lambda trials: True  # type: ignore[method-assign]
    bench.started(0)
    bench.reported(0)
    assert Ask(1) in bench.ended(0, "returned").actions
    new = Space.from_python({"x": tuner.uniform(0, 5)}).to_json()
    changes = {"space": new, "former_spaces": [bench.spec.space], "assumed": {}}
    bench.feed(e.Amended(time=bench.tick(), changes=changes))
    out = bench.feed(e.Suggested(time=bench.tick(), number=1, params=None))
    assert Ask(1) in out.actions
    assert bench.core.state is ExperimentState.RUNNING
    later = bench.successor()
    assert not later.core.experiment.exhausted
    bench.feed(e.Suggested(time=bench.tick(), number=1, params=None))
    assert bench.core.state is ExperimentState.COMPLETED
