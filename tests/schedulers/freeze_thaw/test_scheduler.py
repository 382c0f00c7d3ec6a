"""Freeze-thaw is repeatable, survives its driver, and is better than random search."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tests.driver.bench import Bench
from tests.schedulers.driving import Drive, Feed, context, state_of
from tuner.domain import events as e
from tuner.domain.decisions import Complete, Pause, Resume, Start
from tuner.domain.states import TrialState
from tuner.domain.trial import Trial
from tuner.driver.virtual import Simulation, Step, simulate
from tuner.errors import SpecError
from tuner.schedulers import from_json
from tuner.schedulers.base import Fitted, StartMeasured, TrialReported, TrialRestarted
from tuner.schedulers.freeze_thaw.decisions import brief
from tuner.schedulers.freeze_thaw.decisions.acquisition import DecisionInputs, choose_next
from tuner.schedulers.freeze_thaw.decisions.budget import FINISH_TRIES
from tuner.schedulers.freeze_thaw.decisions.observations import Observations
from tuner.schedulers.freeze_thaw.model.curve_model import Evidence
from tuner.schedulers.freeze_thaw.model.levels import levels
from tuner.schedulers.freeze_thaw.model.results import within
from tuner.schedulers.freeze_thaw.scheduler import FIRST_TRIALS, FreezeThawScheduler, _LastAnswer
from tuner.schedulers.shared.wording import shown
from tuner.space import Space, choice, grid_search, loguniform, randint, sample_from, uniform


def curve(rng: Any, trial: Trial, iteration: int) -> float:
    lr = math.log10(float(trial.params["lr"]))
    good = (
        1
        - 0.1 * (lr + 2.5) ** 2
        + 0.02 * trial.params["depth"]
        + {"relu": 0.0, "tanh": -0.1, "gelu": 0.1}[trial.params["act"]]
    )
    return good * (1 - math.exp(-iteration / 4)) + 0.01 * rng.gauss(0, 1)


def drive(seed: int, **more: Any) -> Drive:
    return Drive({"type": "freeze_thaw"}, seed, value=curve, num_samples=16, max_t=18, stride=9, **more)


# -- state


@pytest.mark.parametrize(
    ("seed", "mode"),
    [
        *[(0, "max"), (1, "min"), (2, "max"), (3, "min")],
        *[pytest.param(*one, marks=pytest.mark.long) for one in [(0, "min"), (1, "max"), (2, "min"), (3, "max")]],
    ],
)
def test_kill_and_fold_changes_no_decision(seed: int, mode: str) -> None:
    done = drive(seed, mode=mode, slots=1 + seed).run()
    assert done.core.ended, "the search came to no end"
    assert done.core.scheduler.state.fits >= 2
    assert any(isinstance(d, Resume) for d in done.decisions())
    for moment in done.moments[:: max(1, len(done.moments) // 6)]:
        core = moment.restore(done)
        assert state_of(core) == moment.state
        assert core.handle(moment.event).log == moment.outcome


def test_caches_dropped_before_every_call_change_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = drive(7).run()
    for name in ("decide", "choose", "fit_request"):
        forget_first(monkeypatch, name)
    assert drive(7).run().decisions() == kept.decisions()


def forget_first(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    whole = getattr(FreezeThawScheduler, name)

    def without_cache(self: FreezeThawScheduler, *args: Any) -> Any:
        self._last = _LastAnswer()
        self._observed = Observations(self.context, self._cube)
        return whole(self, *args)

    monkeypatch.setattr(FreezeThawScheduler, name, without_cache)


def test_decisions_are_pure() -> None:
    """Asking again gives the same answer and leaves no trace in the state."""
    done = drive(3, trouble=0.0)
    for method in ("decide", "choose"):
        twice(done.core.scheduler, method)
    done.run()
    assert done.core.ended


def twice(scheduler: Any, name: str) -> None:
    once = getattr(scheduler, name)

    def asked_twice(*args: Any) -> Any:
        before = repr(scheduler.state)
        first, second = once(*args), once(*args)
        assert first == second
        assert repr(scheduler.state) == before
        return first

    setattr(scheduler, name, asked_twice)


# -- whole searches in virtual time

MIXED = {
    "lr": loguniform(1e-4, 1.0),
    "layers": randint(1, 6),
    "act": choice(["relu", "tanh", "gelu"]),
    "opt": choice([{"name": "sgd", "momentum": uniform(0, 0.99)}, {"name": "adam", "beta": uniform(0.5, 0.999)}]),
    "drop": uniform(0, 0.8),
    "decay": loguniform(1e-6, 1e-1),
}


def loss_of(config: dict[str, Any]) -> float:
    """Return the loss of a full training, 0.05 to 2. The best is near lr 0.02, three layers, gelu, sgd, momentum 0.9."""
    opt = config["opt"]
    of_opt = 2 * (opt["momentum"] - 0.9) ** 2 if opt["name"] == "sgd" else 0.1 + 2 * (opt["beta"] - 0.9) ** 2
    of_act = {"relu": 0.08, "tanh": 0.2, "gelu": 0.0}[config["act"]]
    of_lr = 0.25 * (math.log10(config["lr"]) + 1.7) ** 2
    of_decay = 0.03 * (math.log10(config["decay"]) + 4) ** 2
    return (
        0.05
        + of_opt
        + of_act
        + of_lr
        + 0.05 * abs(config["layers"] - 3)
        + 0.4 * (config["drop"] - 0.25) ** 2
        + of_decay
    )


def training(config: dict[str, Any], checkpoint: int | None, saves: bool = True, end: int = 27) -> Iterator[Step]:
    """Simulate curves that cross: bad learning rates look better at first."""
    final, speed = loss_of(config), 2 + 6 / (1 + math.exp(-2 * (math.log10(config["lr"]) + 2)))
    for r in range((checkpoint or 0) + 1, end + 1):
        yield Step({"loss": final + 2 * math.exp(-r * 3 / (end * 0.12 * speed))}, 1.0, r if saves else None)


def search(scheduler: Any, seed: int, full: float = 8, **more: Any) -> Simulation:
    options: dict[str, Any] = {"max_concurrent_trials": 4, "time_budget_s": full * 27 / 4, "max_t": 27, **more}
    evaluate = options.pop("evaluate", training)
    space = options.pop("space", MIXED)
    return simulate(evaluate, space, metric="loss", mode="min", scheduler=scheduler, seed=seed, **options)


def test_it_beats_asha_with_half_of_the_training() -> None:
    seeds = range(3)  # no seed alone decides
    ours = [search("freeze_thaw", s, 8).best_value for s in seeds]
    theirs = [search({"type": "asha", "reduction_factor": 3}, s, 16, search_alg="random").best_value for s in seeds]
    assert statistics.mean(ours) < statistics.mean(theirs)  # type: ignore[type-var]


def test_the_same_seed_gives_the_same_search_and_another_seed_another() -> None:
    first, again, other = (search("freeze_thaw", seed, 2) for seed in (1, 1, 2))
    assert first.history == again.history
    assert first.log == again.log
    assert first.history != other.history


def test_maximising_the_negative_is_minimising() -> None:
    def negative(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
        for step in training(config, checkpoint):
            yield Step({"loss": -step.metrics["loss"]}, step.seconds, step.checkpoint)

    low = search("freeze_thaw", 0, 3)
    high = simulate(
        negative, MIXED, metric="loss", mode="max", scheduler="freeze_thaw", seed=0, max_t=27, time_budget_s=3 * 27 / 4
    )
    assert [(t, n, r, -m["loss"]) for t, n, r, m in high.history] == [
        (t, n, r, m["loss"]) for t, n, r, m in low.history
    ]


def test_every_kind_of_decision_says_why_in_numbers() -> None:
    made = search("freeze_thaw", 0, 8).decisions
    paused = [d.reason for d in made if isinstance(d, Pause)]
    assert any(" chance of a loss below" in r and "±" in r and "; this trial's chance is" in r for r in paused)
    assert any("has an expected improvement of " in r and "expected improvement is" in r for r in paused)
    resumed = [d.reason for d in made if isinstance(d, Resume)]
    assert any(re.match(r"resumed: it has a .* % chance of a loss below", r) for r in resumed)
    assert any(r.startswith("resumed: it has an expected improvement of ") for r in resumed)
    assert any(
        isinstance(d, Start) and d.reason.startswith("started with a configuration that the model chose: it has a ")
        for d in made
    )
    assert any(isinstance(d, Complete) for d in made)
    assert all(d.reason for d in made)


def test_a_reason_shows_the_numbers_that_made_it_so() -> None:
    """In every reason that compares two candidates, the one that gets the worker has the larger adjusted chance."""
    compared = re.compile(
        r"which has (?:a|an expected improvement of) ([\d.e-]+) .*?by iteration \d+ \(predicted .*?\)"
        r"(?:, counted as ([\d.e-]+)(?: %)? because .*?)?; this trial's (?:chance|expected improvement) is ([\d.e-]+)"
    )
    made = search("freeze_thaw", 0, 8, startup_s=1.0).decisions
    found = [match for d in made if isinstance(d, Pause) and (match := compared.search(d.reason))]
    assert len(found) > 10
    for match in found:
        assert float(match[2] or match[1]) >= float(match[3]), match.string
    assert any(match[2] for match in found)


def test_a_small_finite_space_is_searched_without_repeats_and_then_done() -> None:
    space = {"a": choice(["x", "y", "z"]), "b": randint(0, 4)}

    def evaluate(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
        for r in range((checkpoint or 0) + 1, 10):
            yield Step({"loss": config["b"] + (config["a"] == "x") + 1 / r}, 1.0, r)

    done = simulate(evaluate, space, metric="loss", mode="min", scheduler="freeze_thaw", max_t=9, time_budget_s=10_000)
    assert len({tuple(sorted(t.params.items())) for t in done.trials}) == len(done.trials) == 12
    assert done.state == "completed"
    assert done.best_config in ({"a": "y", "b": 0}, {"a": "z", "b": 0})


def test_a_space_with_functions_that_draw_is_not_finite() -> None:
    def evaluate(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
        for r in range((checkpoint or 0) + 1, 10):
            yield Step({"loss": config["drawn"] + 1 / r}, 1.0, r)

    space = {"a": choice(["x", "y"]), "drawn": sample_from(lambda: random.random())}
    done = simulate(
        evaluate, space, metric="loss", mode="min", scheduler="freeze_thaw", max_t=9, num_samples=6, check_restarts=True
    )
    assert len({config["drawn"] for config in done.configs}) == len(done.trials) == 6


def test_a_space_smaller_than_the_first_trials() -> None:
    def evaluate(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
        for r in range((checkpoint or 0) + 1, 10):
            yield Step({"loss": config["b"] + 1 / r}, 1.0, r)

    done = simulate(
        evaluate, {"b": randint(0, 3)}, metric="loss", mode="min", scheduler="freeze_thaw", max_t=9, num_samples=50
    )
    assert sorted(t.params["b"] for t in done.trials) == [0, 1, 2]
    assert done.best_config == {"b": 0}
    assert done.state == "completed"


def test_a_search_with_few_trials_names_no_more_first_ones_than_it_has() -> None:
    done = search("freeze_thaw", 0, num_samples=5, max_concurrent_trials=1, time_budget_s=None)
    pauses = [one.reason for one in done.decisions if "before any trial continues" in one.reason]
    why = "each of the first 5 configurations is started before any trial continues"
    assert pauses == [f"paused at iteration 1: {why}"] * 4


def test_diverging_and_crashing_configurations_are_avoided() -> None:
    def evaluate(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
        for step in training(config, checkpoint):
            if config["lr"] > 0.3:
                step = Step({"loss": math.nan}, 1.0)
            elif config["drop"] > 0.6:
                raise RuntimeError("out of memory")
            yield step

    done = search("freeze_thaw", 0, 8, evaluate=evaluate)
    bad = [t.params["lr"] > 0.3 or t.params["drop"] > 0.6 for t in done.trials]
    assert sum(bad[FIRST_TRIALS:]) < 0.25 * len(bad[FIRST_TRIALS:]), "0.37 at random"
    assert done.best_value is not None
    assert done.best_value < 0.5


SLOW_STARTERS = 3
"""A seed with which scouts soon find good configurations that start slowly, which nothing finds without them."""


@pytest.mark.parametrize(
    "seed", [seed if seed == SLOW_STARTERS else pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 9)]
)
def test_slow_starters_are_found(seed: int) -> None:
    """Nearly all configurations plateau at once; good ones start slightly worse and descend after a sixth of the way."""

    def evaluate(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
        x, y = config["x"], config["y"]
        good = 0.3 < x < 0.7 and y > 0.4
        for r in range((checkpoint or 0) + 1, 31):
            plateau = 0.69 + 0.004 * math.sin(9 * x + 5 * y)
            late = max(0.0, 1 - math.exp(-(r - 5) / 6)) if r > 5 else 0.0
            yield Step({"loss": plateau + 0.01 - (0.2 + 0.3 * (1 - abs(y - 0.8))) * late if good else plateau}, 1.0, r)

    full = 5 if seed == SLOW_STARTERS else 10  # full trainings

    def found(**options: Any) -> bool:
        done = search(
            FreezeThawScheduler(**options),
            seed,
            evaluate=evaluate,
            space={"x": uniform(0, 1), "y": uniform(0, 1)},
            max_t=30,
            time_budget_s=full * 30 / 4,
        )
        return done.best_value is not None and done.best_value < 0.5

    assert found()
    if seed == SLOW_STARTERS:
        assert not found(scout_share=0)


def test_more_scouts_are_sent_while_nothing_gets_better() -> None:
    def evaluate(improves: bool) -> Any:
        tried = itertools.count()

        def run(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
            better = 0.03 * next(tried) if improves else 0.0
            for r in range((checkpoint or 0) + 1, 28):
                yield Step({"loss": 1 / r - better + 0.1 * config["x"]}, 1.0, r)

        return run

    def scouts(improves: bool) -> int:
        done = search("freeze_thaw", 0, 10, evaluate=evaluate(improves), space={"x": uniform(0, 1)})
        return sum(bool(trial.tags.get("scout")) for trial in done.trials)

    assert scouts(improves=False) > 1.5 * scouts(improves=True) > 0


def test_more_scouts_are_sent_while_early_reports_say_little() -> None:
    def scouts(noise: float) -> list[str]:
        def run(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
            for r in range((checkpoint or 0) + 1, 28):
                luck = random.Random(f"{config['x']} {r}").random()
                yield Step({"loss": 1 / r + 0.1 * config["x"] + noise * luck}, 1.0, r)

        done = search("freeze_thaw", 1, 8, evaluate=run, space={"x": uniform(0, 1)})
        return [d.reason for d in done.decisions if isinstance(d, Start) and d.tags.get("scout")]

    noisy, clear = scouts(noise=10), scouts(noise=0)
    assert len(noisy) > 2 * len(clear) > 0
    assert "early reports of trials say little about their later ones" in noisy[-1]
    assert "say little" not in "".join(clear)


def test_a_costly_start_makes_switches_rarer_and_is_measured() -> None:
    def switches_per_report(startup_s: float) -> float:
        done = search("freeze_thaw", 0, 6, startup_s=startup_s, num_samples=40)
        count = sum(isinstance(d, Resume | Start) for d in done.decisions) - FIRST_TRIALS
        return count / len(done.history)

    assert switches_per_report(5.0) < 0.75 * switches_per_report(0.0)


def test_without_checkpoints_little_is_trained_twice() -> None:
    def evaluate(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
        yield from training(config, checkpoint, saves=False)

    with pytest.warns(UserWarning, match="starts over and repeats .* reports had no checkpoint"):
        done = search("freeze_thaw", 0, 8, evaluate=evaluate)
    assert len(done.warnings) == 1
    seen: dict[int, int] = {}
    again = 0
    for _, number, iteration, _ in done.history:
        again += iteration <= seen.get(number, 0)
        seen[number] = max(seen.get(number, 0), iteration)
    assert again < 0.35 * len(done.history)
    assert done.best_value is not None
    assert done.best_value < 0.5


def test_sixteen_workers_do_not_all_train_the_same() -> None:
    done = search("freeze_thaw", 0, max_concurrent_trials=16, time_budget_s=4 * 27 / 16)
    rates = [math.log10(t.params["lr"]) for t in done.trials]
    assert len(done.trials) >= 16
    assert np.std(rates) > 0.2


# -- ends


def test_num_samples_alone_sets_a_budget() -> None:
    done = search("freeze_thaw", 0, time_budget_s=None, num_samples=20)
    assert done.state == "completed"
    assert len(done.trials) <= 20
    assert 4 * 27 <= len(done.history) <= 4 * 27 + 4 * 9, (
        "a fifth of twenty full trainings, and what ran when it was spent"
    )
    assert any("budget of 4 full trainings is spent" in d.reason for d in done.decisions)


def test_an_explicit_budget_counts_and_a_time_budget_takes_its_place() -> None:
    assert len(search(FreezeThawScheduler(budget=2), 0, time_budget_s=None, num_samples=20).history) <= 2 * 27 + 4 * 9
    timed = search("freeze_thaw", 0, 6, num_samples=15)
    assert timed.seconds == pytest.approx(6 * 27 / 4)


def finished_by(done: Simulation) -> list[str]:
    """Return the reasons with which leading trials were trained to the end."""
    return [d.reason for d in done.decisions if d.reason.startswith("trained to the end as the leading trial")]


def crossing(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
    """Simulate curves that rise and then fall. The better they begin, the sooner they fall."""
    for r in range((checkpoint or 0) + 1, 100):
        yield Step({"loss": 1 + config["x"] - 0.5 * math.exp(-(((r - 3) / 2) ** 2)) + 0.01 * r}, 1.0, r)


def small(**more: Any) -> Simulation:
    options: dict[str, Any] = {"scheduler": "freeze_thaw", "num_samples": 8, "max_t": 15, "seed": 0, **more}
    return simulate(options.pop("evaluate", crossing), {"x": uniform(0, 1)}, metric="loss", mode="min", **options)


@pytest.mark.parametrize("seed", range(3))
def test_the_leading_trial_is_trained_to_the_end_within_the_budget(seed: int) -> None:
    done = small(seed=seed)
    assert done.best_trial is not None
    assert done.best_trial.state is TrialState.COMPLETED
    assert done.best_trial is done.best_finished
    assert done.best_trial.iteration == 15
    (why,) = finished_by(done)
    assert f"its loss of {shown(done.best_value or 0)} is the best so far" in why
    assert len(done.history) <= 3 * 15 + 4 * 5, "what it costs is kept for it; the others go on to their next level"


def test_finish_best_turns_it_off() -> None:
    done = small(scheduler=FreezeThawScheduler(finish_best=False))
    assert done.best_finished is None
    assert finished_by(done) == []
    assert FreezeThawScheduler(finish_best=False).to_json()["finish_best"] is False
    with pytest.raises(SpecError, match="expected true or false"):
        FreezeThawScheduler(finish_best="no")  # type: ignore[arg-type]


def test_a_leading_trial_that_fails_leaves_its_place_to_the_next_but_not_for_ever() -> None:
    def breaks(limit: int) -> Any:
        def evaluate(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
            for step in crossing(config, checkpoint):
                if (step.checkpoint or 0) >= 9 and len(broken | {config["x"]}) <= limit:
                    broken.add(config["x"])
                    raise RuntimeError("broken")
                yield step

        return evaluate

    broken: set[float] = set()
    done = small(evaluate=breaks(1), num_samples=20)
    assert done.best_finished is not None
    assert len(broken) == 1
    broken.clear()
    done = small(evaluate=breaks(100), num_samples=20)
    assert done.best_finished is None
    assert len(finished_by(done)) <= FINISH_TRIES


@pytest.mark.filterwarnings("ignore:trial .* starts over:UserWarning")
def test_a_leading_trial_without_a_checkpoint_starts_over_and_says_so() -> None:
    def saves_nothing(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
        assert checkpoint is None
        for step in crossing(config, None):
            yield Step(step.metrics, 1.0)

    done = small(evaluate=saves_nothing, budget=3, num_samples=20, seed=1)
    assert done.best_finished is done.best_trial
    (why,) = finished_by(done)
    assert "the rest of the budget is reserved for it; it has no checkpoint" in why
    assert why.count("starts from the beginning") == 1
    assert len(done.history) <= 3 * 15 + 4 * 5


def test_a_spent_time_budget_finishes_nobody() -> None:
    done = small(num_samples=None, time_budget_s=12)
    assert done.best_trial is not None
    assert done.best_finished is None
    assert finished_by(done) == []


def test_a_budget_below_one_full_training_finishes_nobody() -> None:
    assert finished_by(small(budget=0.5)) == []


@pytest.mark.parametrize(("budget", "shown"), [(2.5, "2.5"), (3.0, "3"), (None, "None")])
def test_the_budget_is_shown_as_it_counts(budget: float | None, shown: str) -> None:
    scheduler = FreezeThawScheduler(budget=budget)
    scheduler.setup(context(max_t=9, time_budget_s=60))
    assert str(scheduler.resolved()["budget"]) == shown


def test_the_experiments_budget_counts_and_is_said_in_words() -> None:
    done = small(budget=2)
    assert 2 * 15 <= len(done.history) <= 2 * 15 + 4 * 5
    (words,) = [d.reason for d in done.decisions if d.reason.startswith("budget: ")]
    assert words == (
        "budget: 2 full trainings (30 iterations), shared by all trials; to raise it, set a larger budget=..."
    )
    (words,) = [d.reason for d in small().decisions if d.reason.startswith("budget: ")]
    assert words == (
        "budget: 3 full trainings (45 iterations), shared by all trials, derived from num_samples=8; "
        "to raise it, set budget=... or num_samples above 15"
    )


def test_a_budget_is_refused_where_nobody_counts_it() -> None:
    with pytest.raises(
        SpecError,
        match=r"limits.budget: the asha scheduler does not support a budget of full trainings: limit the search with",
    ):
        small(scheduler="asha", budget=2)
    with pytest.raises(SpecError, match=r"the fifo scheduler \(scheduler auto: fifo, since 3 trials are too few"):
        small(scheduler=None, num_samples=3, budget=2)
    with pytest.raises(SpecError, match=r"the experiment's budget is 2 and the scheduler's is 4: set only one"):
        small(scheduler=FreezeThawScheduler(budget=4), budget=2)


@pytest.mark.parametrize("seed", range(3))
def test_folding_the_log_leaves_the_same_state_with_a_trial_that_is_being_finished(seed: int) -> None:
    drive = Drive({"type": "freeze_thaw", "budget": 2}, seed, num_samples=8, stride=3).run()
    assert drive.core.ended
    for moment in drive.moments:
        core = moment.restore(drive)
        assert state_of(core) == moment.state
        assert core.handle(moment.event).log == moment.outcome


def test_given_points_come_first() -> None:
    point = {
        "lr": 0.02,
        "layers": 3,
        "act": "gelu",
        "opt": {"name": "sgd", "momentum": 0.9},
        "drop": 0.25,
        "decay": 1e-4,
    }
    done = search("freeze_thaw", 0, 2, points_to_evaluate=[point])
    assert loss_of(done.configs[0]) == pytest.approx(0.05, abs=1e-5)
    assert done.best_trial is not None
    assert done.best_trial.number == 0


def test_given_points_are_all_started_if_a_user_adds_a_trial() -> None:
    points = tuple({"x": x} for x in (0.25, 0.5, 0.75))
    bench = Bench(scheduler={"type": "freeze_thaw"}, max_t=9, num_samples=8, points_to_evaluate=points)
    bench.feed(e.Enqueued(time=bench.tick(), points=({"params": {"x": 1.0}},)))
    for number in range(3):
        bench.started(number)
        bench.reported(number)
        bench.verdict(number)
        bench.ended(number, "failed", e.Failure(kind="user", message="ValueError: no", cause="exception"))
    xs = [trial.params["x"] for trial in bench.core.trials]
    assert xs[:4] == [0.25, 0.5, 1.0, 0.75]
    assert xs[4] not in xs[:4]


# -- step by step


def fed(**more: Any) -> Feed:
    space = Space({"x": uniform(0, 1)})
    return Feed(FreezeThawScheduler(), context(max_t=27, space=space, **more))


def test_nothing_is_decided_between_levels() -> None:
    feed = fed()
    trial = feed.start({"x": 0.5})
    seen = []
    while (level := feed.scheduler.milestone(feed.trials[trial], feed.trials)) is not None:
        seen.append(level)
        feed.report(trial, level, 0.1)
    assert seen == levels(1.0, 27.0) == [1, 2, 3, 5, 8, 12, 18, 27]


def test_reports_again_after_a_retry_are_neither_results_nor_decided() -> None:
    feed = fed()
    trial = feed.start({"x": 0.5})
    for t in (1, 2, 3):
        feed.report(trial, t, 0.1)
    state = feed.scheduler.state
    assert [level for _, level, _ in state.results] == [0, 1, 2]
    assert state.spent == 3
    feed.trials[trial].t, feed.trials[trial].iteration = 0.0, 0
    feed.scheduler.record(TrialRestarted(trial=trial, cause="retry", iteration=0, t=0.0), feed.trials)
    assert feed.scheduler.milestone(feed.trials[trial], feed.trials) == 5
    assert feed.report(trial, 1, 0.2) == []
    assert len(state.results) == 3
    assert state.spent == 4, "what is trained again is paid again"


def test_paused_trials_continue_although_more_points_were_given_than_trials_may_start() -> None:
    feed = fed(num_samples=2, given_points=3)
    for _ in range(2):
        assert isinstance(feed.scheduler.choose(feed.trials, True), Start)
        trial = feed.start({"x": 0.5})
        feed.report(trial, 1, 0.1 * trial)
        feed.take(Pause(trial=trial, reason=""))
    assert isinstance(feed.scheduler.choose(feed.trials, False), Resume)


def swings_of(losses: Sequence[float], repeated: Sequence[float] = (), start: int = 0) -> list[tuple[float, float]]:
    """Return the swings that the core's scheduler has counted after these reports.

    repeated: the reports of a second segment, which starts from the checkpoint of iteration `start` after the first has failed.
    """
    bench = Bench(
        num_samples=1, max_t=60, scheduler={"type": "freeze_thaw", "grace_period": 60}, limits={"max_failures": 1}
    )
    bench.started(0)
    for iteration, loss in enumerate(losses, 1):
        bench.reported(0, loss, checkpoint=iteration == start)
    if repeated:
        bench.ended(0, "failed", e.Failure(kind="user", message="out of luck", rank=0))
        bench.started(0)
        segment = bench.core.trials[0].segments[-1]
        assert (segment.cause, segment.start_iteration) == ("retry", start)
        for loss in repeated:
            bench.reported(0, loss)
    counted: list[tuple[float, float]] = bench.core.scheduler.state.swings
    assert bench.successor().core.scheduler.state == bench.core.scheduler.state
    return counted


def test_reports_again_after_a_retry_count_for_no_second_swing() -> None:
    losses = [9.0, 7.0, 8.0, 5.0, 6.0, 4.0]
    whole = swings_of(losses)
    assert len(whole) == 4
    assert all(one != other for one, other in whole)
    assert swings_of(losses, repeated=losses[2:], start=2) == whole, "all is repeated"
    assert swings_of(losses[:5], repeated=losses[2:], start=2) == whole, "a report follows those that are repeated"


def test_a_drop_back_to_an_earlier_checkpoint_is_no_swing() -> None:
    """The trial improves steadily, so that only a comparison across the restart could show a swing."""
    falling = [float(10 - number) for number in range(8)]
    for start in (0, 3, 7, 8):
        ends = swings_of(falling, repeated=[float(10 - number) for number in range(start, 12)], start=start)
        assert all(one == other for one, other in ends), start


def test_a_report_that_jumps_counts_at_the_highest_level_passed() -> None:
    feed = fed()
    trial = feed.start({"x": 0.5})
    feed.report(trial, 7, 0.1)
    assert feed.scheduler.state.results == [(trial, 3, 0.1)]
    assert feed.scheduler.milestone(feed.trials[trial], feed.trials) == 8


def shown_to_the_model(values: Sequence[Sequence[float]], mode: str = "max", **more: Any) -> list[tuple[int, float]]:
    """Return (level index, score) of the last trial's results, as the model gets them, after all these reports."""
    feed = fed(mode=mode, **more)
    for n, curve in enumerate(values):
        trial = feed.start({"x": n / len(values)})
        for t, value in enumerate(curve, 1):
            feed.report(trial, t, value)
    scheduler: Any = feed.scheduler
    results = scheduler._observed.results(scheduler.state, feed.trials)
    last = results.slot == results.slot.max()
    return list(zip(results.level[last].tolist(), results.score[last].tolist(), strict=True))


def test_while_reports_go_up_and_down_the_model_gets_the_best_so_far() -> None:
    noisy = [[n + (2.5 if t % 2 else -2.5) for t in range(8)] for n in range(8)]
    last = [1.0, 3.0, 2.0, 5.0, 4.0, 4.5, 4.0, 4.2]
    at_levels = [1.0, 3.0, 3.0, 5.0, 5.0]  # at 1, 2, 3, 5 and 8
    assert shown_to_the_model([*noisy, last]) == list(enumerate(at_levels))
    negative = [[-value for value in curve] for curve in [*noisy, last]]
    assert shown_to_the_model(negative, mode="min") == list(enumerate(at_levels)), "scores are negative losses"


def test_if_the_last_report_is_what_counts_the_model_gets_the_newest_ones() -> None:
    noisy = [[n + (2.5 if t % 2 else -2.5) for t in range(8)] for n in range(9)]
    assert shown_to_the_model(noisy)[-1] == (4, 10.5)
    assert shown_to_the_model([*noisy[:-1], [*noisy[-1][:-1], 1.0]], scope="last")[-1] == (4, 1.0)


def test_reasons_say_that_trials_count_by_their_best_reports() -> None:
    def reasons(noise: float) -> list[str]:
        def run(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
            for r in range((checkpoint or 0) + 1, 28):
                luck = random.Random(f"{config['x']} {r}").random()
                yield Step({"loss": 1 / r + config["x"] + noise * luck}, 1.0, r)

        done = search("freeze_thaw", 0, 6, evaluate=run, space={"x": uniform(0, 1)})
        return [d.reason for d in done.decisions if isinstance(d, Pause | Resume) and "(predicted" in d.reason]

    words = "; each trial counts by its best report, because reports fluctuate widely"
    assert reasons(noise=3)[-1].endswith(words)
    assert words not in "".join(reasons(noise=0.01))


def test_while_reports_go_up_steadily_the_model_sees_that_a_trial_gets_worse() -> None:
    smooth = [[n * (1 - 0.5 ** (t + 1)) for t in range(8)] for n in range(8)]
    last = [5.0, 4.0, 3.0, 2.5, 2.0, 1.8, 1.7, 1.6]
    assert shown_to_the_model([*smooth, last]) == [(0, 5.0), (1, 4.0), (2, 3.0), (3, 2.0), (4, 1.6)]


def test_the_end_completes_and_the_start_cost_is_the_median() -> None:
    feed = fed()
    trial = feed.start({"x": 0.5})
    for startup in (4.0, 100.0, 6.0):
        feed.scheduler.record(StartMeasured(trial=trial, startup_s=startup), feed.trials)
    feed.report(trial, 1, 0.1)
    feed.report(trial, 2, 0.1)
    assert feed.scheduler._start_cost() == pytest.approx(6.0)  # type: ignore[attr-defined]
    (done,) = feed.report(trial, 27, 0.3)
    assert isinstance(done, Complete)
    assert "reached max_t (27)" in done.reason


def test_failures_of_the_system_are_no_verdict_on_the_configuration() -> None:
    feed = fed()
    theirs, ours = feed.start({"x": 0.2}), feed.start({"x": 0.8})
    feed.trials[theirs].failure = e.Failure(kind="user", message="it broke")
    feed.trials[ours].failure = e.Failure(kind="system", message="node lost")
    feed.end(theirs)
    feed.end(ours)
    assert feed.scheduler.state.results == [(theirs, 0, None), (theirs, 7, None)]


def test_a_trial_that_a_user_holds_is_left_alone() -> None:
    feed = fed()
    for k in range(FIRST_TRIALS):
        number = feed.start({"x": (k + 0.5) / FIRST_TRIALS})
        feed.report(number, 1, k / 10)
        feed.take(Pause(trial=number, reason=""))
        feed.trials[number].held = True
    assert feed.scheduler.choose(feed.trials, may_start=False) is None
    feed.trials[3].held = False
    choice = feed.scheduler.choose(feed.trials, may_start=False)
    assert isinstance(choice, Resume)
    assert choice.trial == 3


def test_many_trials_are_thinned_and_it_is_said() -> None:
    feed = fed(num_samples=5000)
    g = np.random.default_rng(0)
    scheduler = feed.scheduler
    for _ in range(700):
        number = feed.start({"x": float(g.random())})
        for t in (1, 2):
            score = float(g.random())
            fact = TrialReported(trial=number, iteration=t, t=t, score=score, metrics={}, time=float(t))
            scheduler.record(fact, feed.trials)
        feed.take(Pause(trial=number, reason=""))
    assert feed.scheduler.fit_request(feed.trials) is not None
    assert len(feed.scheduler.fit_request(feed.trials)["tau"]) == 320  # type: ignore[index]
    choice = feed.scheduler.choose(feed.trials, may_start=False)
    assert isinstance(choice, Resume)
    assert " 150 of 700 started trials" in choice.reason


def test_a_fit_of_another_versions_model_is_not_used() -> None:
    feed = fed()
    for k in range(12):
        feed.report(feed.start({"x": k / 11}), 1, k / 11)
    state = feed.scheduler.state
    state.theta, state.fitted_at, state.fits = [0.1] * 3, 5, 1
    feed.scheduler.record(
        Fitted(payload=feed.scheduler.fit(feed.scheduler.fit_request(feed.trials) or {})), feed.trials
    )
    assert len(state.theta) == 1 + 6
    state.theta = [0.1] * 3
    assert feed.scheduler.choose(feed.trials, may_start=True) is not None


def test_a_fit_comes_back_through_json_and_is_used() -> None:
    feed = fed()
    for k in range(12):
        number = feed.start({"x": k / 11})
        for t in (1, 2, 3):
            feed.report(number, t, math.sin(3 * k / 11) + t / 10)
    payload = feed.scheduler.fit_request(feed.trials)
    fitted = json.loads(json.dumps(feed.scheduler.fit(json.loads(json.dumps(payload)))))
    feed.scheduler.record(Fitted(payload=fitted), feed.trials)
    assert feed.scheduler.state.theta == fitted["theta"]
    assert feed.scheduler.fit_request(feed.trials) is None, "not again before there is a fifth more"


@pytest.mark.parametrize(
    ("grace", "end", "expected"),
    [
        (1, 51, [1, 2, 3, 5, 8, 12, 18, 27, 41, 51]),
        (1, 27, [1, 2, 3, 5, 8, 12, 18, 27]),
        (1, 1, [1]),
        (1, 2, [1, 2]),
        (4, 9, [4, 6, 9]),
        (0.5, 1.5, [0.5, 0.75, 1.125, 1.5]),
    ],
)
def test_levels(grace: float, end: float, expected: list[float]) -> None:
    assert levels(float(grace), float(end)) == expected


@pytest.mark.parametrize("max_t", [1, 2, 3])
def test_it_works_where_there_are_hardly_any_levels(max_t: int) -> None:
    def evaluate(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
        for r in range((checkpoint or 0) + 1, max_t + 1):
            yield Step({"loss": (config["x"] - 0.3) ** 2 + 1 / r}, 1.0, r)

    done = search("freeze_thaw", 0, evaluate=evaluate, space={"x": uniform(0, 1)}, max_t=max_t, time_budget_s=8 * max_t)
    assert done.best_value == pytest.approx(1 / max_t, abs=1e-3)


def test_time_may_be_counted_in_any_metric() -> None:
    def evaluate(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
        for r in range((checkpoint or 0) + 1, 12):
            yield Step({"loss": (config["x"] - 0.3) ** 2 + 1 / r, "epoch": r * 0.1}, 1.0, r)

    done = search(
        FreezeThawScheduler(max_t=1),
        0,
        evaluate=evaluate,
        space={"x": uniform(0, 1)},
        max_t=1,
        time_attr="epoch",
        time_budget_s=25,
    )
    assert any(isinstance(d, Resume) for d in done.decisions)
    assert max(m["epoch"] for *_, m in done.history) == pytest.approx(1.0)


# -- bad input


@pytest.mark.parametrize(
    ("options", "more", "pointer"),
    [
        ({}, {"max_t": None}, "/scheduler/max_t"),
        ({"grace_period": 30}, {"max_t": 27}, "/scheduler/max_t"),
        ({}, {"max_t": 27, "space": Space({"a": grid_search([1, 2])})}, "/space"),
        ({}, {"max_t": 27, "space": Space({"a": 1})}, "/space"),
        ({"time_attr": "epoch"}, {"max_t": 27}, "/scheduler/time_attr"),
    ],
    ids=["no max_t", "grace above max_t", "grid", "empty space", "time_attr"],
)
def test_what_it_cannot_do_is_said_at_once(options: dict[str, Any], more: dict[str, Any], pointer: str) -> None:
    with pytest.raises(SpecError) as caught:
        FreezeThawScheduler(**options).setup(context(**more))
    assert caught.value.errors[0][0] == pointer


@pytest.mark.parametrize("option", ["thaw", "random_share", "scout_share"])
def test_shares_are_between_nothing_and_all(option: str) -> None:
    with pytest.raises(SpecError, match=option):
        from_json({"type": "freeze_thaw", option: 1.5})


def test_json_builds_an_equal_scheduler() -> None:
    data = json.loads(json.dumps(FreezeThawScheduler(max_t=9, thaw=0.4).to_json()))
    assert from_json(data).to_json() == data


def test_short_trials_get_a_smaller_model_and_fewer_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def noted(inputs: DecisionInputs, *more: Any) -> Any:
        asked.append(inputs.quick)
        return choose_next(inputs, *more)

    monkeypatch.setattr("tuner.schedulers.freeze_thaw.scheduler.choose_next", noted)

    def search(seconds: float) -> tuple[int, list[bool]]:
        def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
            for step in range((checkpoint or 0) + 1, 10):
                yield Step({"loss": (config["x"] - 0.3) ** 2 + 1 / step}, seconds, step)

        asked.clear()
        done = simulate(evaluate, {"x": uniform(0, 1)}, metric="loss", mode="min", max_t=9, num_samples=40)
        return sum(isinstance(entry, e.ModelFitted) for _, entry in done.log), list(asked)

    short_fits, short = search(0.001)
    long_fits, long = search(10.0)
    assert not any(long)
    assert all(short[5:]), "how long a report takes is known after the first few decisions"
    assert long_fits >= 5
    assert short_fits <= 1, "all of the training takes less than a fit; the first one comes before that is known"


def test_very_short_trials_are_mostly_decided_without_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(inputs: DecisionInputs, *more: Any) -> Any:
        asked.append(len(inputs.started))
        return choose_next(inputs, *more)

    monkeypatch.setattr("tuner.schedulers.freeze_thaw.scheduler.choose_next", counted)

    def search(seconds: float, space: dict[str, Any] | None = None, **more: Any) -> tuple[int, Simulation]:
        def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
            for step in range((checkpoint or 0) + 1, 10):
                yield Step({"loss": (config["x"] - 0.3) ** 2 + 1 / step}, seconds, step)

        asked.clear()
        space = space or {"x": uniform(0, 1)}
        options = {"metric": "loss", "mode": "min", "max_t": 9, "budget": 15, **more}
        return len(asked), simulate(evaluate, space, **options)

    search(1.0)
    every = len(asked)
    _, short = search(0.0005)
    assert 0 < len(asked) < every / 4
    assert short.best_value is not None
    assert short.best_value - 1 / 9 < 1e-3
    reasons = [d.reason for d in short.decisions]
    assert any("near trial" in why and "without the model, whose decision would take longer" in why for why in reasons)
    assert any("only the best third continues (no model decides" in why for why in reasons)
    _, finite = search(0.0005, {"x": randint(0, 5)}, num_samples=40)
    assert len(finite.trials) == 5, "in a finite space nothing is tried twice"
    assert finite.error is None
    _, few = search(0.0005, num_samples=20)
    assert len(few.trials) == 20
    assert any("the best of the paused trials" in d.reason for d in few.decisions if isinstance(d, Resume))


def test_the_standing_of_a_trial_is_its_rank_at_its_newest_level() -> None:
    rng = random.Random(0)
    results = [(rng.randrange(30), 0, rng.choice([None, round(rng.random(), 1)])) for _ in range(40)]
    results += [(number, 1, rng.random()) for number in range(10)]
    ranks = brief.LevelRanks()
    for end in range(1, len(results) + 1):
        seen = results[:end]
        ranks.follow(seen)
        for trial in {number for number, _, _ in seen}:
            level, own = [(r[1], r[2]) for r in seen if r[0] == trial][-1]
            others = [-math.inf if r[2] is None else r[2] for r in seen if r[1] == level]
            mine = -math.inf if own is None else own
            assert ranks.rank(trial) == (1 + sum(other > mine for other in others), len(others))
    best = {n: max((-math.inf if s is None else s) for k, _, s in results if k == n) for n, _, _ in results}
    assert ranks.best(5) == sorted(best, key=lambda n: (-best[n], n))[:5]


def bounded(seed: int, bound: float, **more: Any) -> Simulation:
    """Run a search whose loss is least at x = .8, while x is to be at most `bound`."""

    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for step in range((checkpoint or 0) + 1, 10):
            metrics = {"loss": (config["x"] - 0.8) ** 2 + (config["y"] - 0.5) ** 2 + 1 / step, "size": config["x"]}
            yield Step(metrics, 1.0, step)

    return simulate(
        evaluate,
        {"x": uniform(0, 1), "y": uniform(0, 1)},
        metric="loss",
        mode="min",
        max_t=9,
        num_samples=60,
        scheduler="freeze_thaw",
        search_alg={"type": "tpe", "constraints": {"size": {"max": bound}}},
        seed=seed,
        **more,
    )


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_constraints_are_learned_and_kept_to(seed: int) -> None:
    done = bounded(seed, 0.4)
    late = done.configs[len(done.configs) // 2 :]
    assert statistics.mean(config["x"] <= 0.4 for config in late) > 0.5
    assert done.best_config is not None
    assert 0.25 < done.best_config["x"] <= 0.4
    assert done.best_finished is not None
    assert done.best_finished.params["x"] <= 0.4
    said = [d.reason for d in done.decisions if isinstance(d, Pause) and "violates the constraints" in d.reason]
    assert said
    assert all(
        "; it violates the constraints, so it counts as worse than all trials that satisfy them" in reason
        for reason in said
    )


def test_constraints_that_nothing_meets_at_first_are_met_later() -> None:
    """One configuration in twenty is within the bound."""
    done = bounded(1, 0.05)
    assert sum(config["x"] <= 0.05 for config in done.configs) >= 0.2 * len(done.configs)
    assert done.best_config is not None
    assert done.best_config["x"] <= 0.05


def test_results_outside_the_constraints_are_placed_below_most_others() -> None:
    results = [(0, 0, 5.0), (1, 0, 9.0), (2, 0, 100.0), (3, 0, None), (4, 0, 7.0)]
    placed = within(results, {(2, 0): 3.0, (1, 0): 1e9})
    low = 5.0 + 0.1 * 2.0
    assert placed[0] == results[0]
    assert placed[4] == results[4]
    assert placed[3] == (3, 0, None)
    assert placed[2][2] == pytest.approx(low - (7.0 - low) / 2)
    assert placed[1][2] == pytest.approx(low - (7.0 - low))
    assert within(results, {}) is results
    nothing = within([(0, 0, 1.0), (1, 0, 2.0)], {(0, 0): 1.0, (1, 0): 2.0})
    assert [score for _, _, score in nothing] == [-0.5, -1.0]


def test_decisions_and_fits_use_one_thread_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, set[int]] = {"decision": set(), "fit": set()}

    def count(what: str) -> None:
        threads[what] |= {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    def noted(*arguments: Any) -> Any:
        count("decision")
        return choose_next(*arguments)

    loss = Evidence.loss

    def counted(self: Evidence, theta: Any) -> Any:
        count("fit")
        return loss(self, theta)

    monkeypatch.setattr("tuner.schedulers.freeze_thaw.scheduler.choose_next", noted)
    monkeypatch.setattr(Evidence, "loss", counted)
    with threadpool_limits(2, user_api="blas"):
        small(budget=1.5)
        assert {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"} == {2}
    assert threads == {"decision": {1}, "fit": {1}}
