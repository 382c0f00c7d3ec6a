"""Searchers of Ray Tune, driven by ours: no cluster is needed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater, Searcher
from ray.tune.search.bohb import TuneBOHB, bohb_search
from ray.tune.search.optuna import OptunaSearch

import tuner
from tests.search.driving import CONDITIONAL, TWO, Drive, make, task
from tuner.domain.states import TrialState
from tuner.driver.virtual import Step
from tuner.errors import SpecError
from tuner.search import BOHBSearch, from_argument
from tuner.space import (
    Space,
    choice,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    uniform,
)

SPACE = Space.from_python(
    {
        "x": uniform(0, 1), "n": {"lr": loguniform(1e-5, 1), "k": randint(1, 9), "q": quniform(0, 1, 0.25)},
        "width": choice([16, 32, 64]), "shape": choice([(1, 2), (3,)]), "even": qrandint(2, 10, 2),
        "lk": lograndint(1, 9), "lq": qloguniform(0.5, 8, 0.5), "leven": qlograndint(2, 64, 2), "epochs": 3,
    }
)  # fmt: skip
NORMAL = Space.from_python({"a": randn(1, 2), "b": qrandn(0, 1, 0.5)})


class Recorder(Searcher):
    """Draws from Ray's domains with a generator of its own, and remembers what it is told."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.log: list[tuple[Any, ...]] = []

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        self.log.append((metric, mode))
        self.space = config
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.log.append(("suggest", trial_id))
        return self._draw(self.space)

    def _draw(self, space: dict[str, Any]) -> dict[str, Any]:
        seed = self.rng.randrange(2**31)
        return {
            k: self._draw(v) if isinstance(v, dict) else v.sample(random_state=seed + i)
            for i, (k, v) in enumerate(space.items())
        }

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self.log.append(("complete", trial_id, None if result is None else result["score"], error))

    def save(self, checkpoint_path: str) -> None:
        raise NotImplementedError

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("space", [SPACE, NORMAL], ids=["bounded", "normal"])
def test_rebuilt_before_every_ask_it_suggests_the_same(space: Space) -> None:
    options = from_argument(Recorder(3))
    of = task(space, points_to_evaluate=({next(iter(space.parameters)).path: 0.5},))
    kept, rebuilt = Drive(of), Drive(of)
    kept.run(make(options, of), 25)
    while len(rebuilt.trials) < 25 and rebuilt.step(make(options, of)):
        pass
    assert rebuilt.suggestions == kept.suggestions
    for suggestion in kept.suggestions:
        assert space.check(suggestion.params) == suggestion.params


def test_it_is_told_how_its_trials_ended() -> None:
    of = task(SPACE)
    searcher = make(from_argument(Recorder(3)), of)
    drive = Drive(of)
    drive.run(searcher, 20)
    searcher.suggest(20, drive.trials)
    log = searcher._live._searcher.log  # type: ignore[attr-defined]
    assert log[0] == ("score", "max")
    told = {entry[1]: entry[2:] for entry in log if entry[0] == "complete"}
    assert told == {
        str(t.number): (None, True) if t.state == "failed" else (t.best_value, False)
        for t in drive.trials
        if t.state.ended
    }


@pytest.mark.parametrize("earlier", [False, True], ids=["now", "log of an earlier version"])
def test_it_is_told_the_results_of_its_own_proposals_only(earlier: bool) -> None:
    of = task(SPACE, points_to_evaluate=({"x": 0.5},))
    kept, rebuilt = Drive(of), Drive(of)
    once = make(from_argument(Recorder(3)), of)
    for drive in (kept, rebuilt):
        for step in range(20):
            if step in (0, 4, 5, 11):
                drive.enqueue(drive.context.space.sample(random.Random(step)))
            searcher = once if drive is kept else make(from_argument(Recorder(3)), of)
            assert drive.step(searcher)
            if earlier:
                drive.trials[len(drive.trials) - 1].searcher_state.pop("asked", None)
        searcher.suggest(20, drive.trials)
        log = searcher._live._searcher.log  # type: ignore[attr-defined]
        assert [entry[1] for entry in log if entry[0] == "suggest"] == [str(i) for i in range(1, 21)]
        proposed = [t for t in drive.trials if t.searcher_state]
        told = {entry[1]: entry[2:] for entry in log if entry[0] == "complete"}
        assert told == {
            str(i): (None, True) if t.state == "failed" else (t.best_value, False)
            for i, t in enumerate(proposed, 1)
            if t.state.ended
        }
    assert rebuilt.suggestions == kept.suggestions


def test_rays_optuna_search_under_a_limiter() -> None:
    of = task(Space.from_python({"x": uniform(0, 1), "n": {"k": randint(1, 9)}, "c": choice(["a", "b"])}))
    options = from_argument(ConcurrencyLimiter(OptunaSearch(seed=3), 1))
    kept, rebuilt = Drive(of), Drive(of)
    kept.run(make(options, of), 15)
    while len(rebuilt.trials) < 15 and rebuilt.step(make(options, of)):
        pass
    assert rebuilt.suggestions == kept.suggestions
    assert len(kept.suggestions) == 15


def test_rays_repeater_repeats_each_configuration() -> None:
    """It was refused, because its `__trial_index__` is not a parameter of the space."""
    of = task(SPACE)
    kept, rebuilt = Drive(of), Drive(of)
    kept.run(make(from_argument(Repeater(ConcurrencyLimiter(Recorder(3), 4), repeat=2)), of), 8)
    while len(rebuilt.trials) < 8 and rebuilt.step(make(from_argument(Repeater(Recorder(3), repeat=2)), of)):
        pass
    assert rebuilt.suggestions == kept.suggestions
    params = [suggestion.params for suggestion in kept.suggestions]
    assert params[::2] == params[1::2]
    assert all(params[i] != params[i + 2] for i in (0, 2, 4))
    assert [suggestion.note for suggestion in kept.suggestions[:4]] == ["", "repeats trial 0", "", "repeats trial 2"]


class Knows(Recorder):
    """Remembers the metric, as Ray's own searchers do. A Repeater looks it up here."""

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        self._metric = metric
        return super().set_search_properties(metric, mode, config, **spec)


def test_a_limiter_in_a_repeater_neither_ends_the_search_nor_hides_the_results() -> None:
    """The search ended once the limiter had proposed as many configurations as it allows to be evaluated at once."""
    of = task(SPACE)
    given = Repeater(ConcurrencyLimiter(Knows(3), 2), repeat=2)
    limited, free = Drive(of, parallel=6), Drive(of, parallel=6)
    searcher = make(from_argument(given), of)
    limited.run(searcher, 16)
    free.run(make(from_argument(Repeater(Knows(3), repeat=2)), of), 16)
    assert len(limited.suggestions) == 16
    assert limited.suggestions == free.suggestions
    log = searcher._live._searcher.searcher.log  # type: ignore[attr-defined]
    told = [entry[2] for entry in log if entry[0] == "complete"]
    assert told
    assert all(math.isfinite(value) for value in told)
    assert isinstance(given.searcher, ConcurrencyLimiter), "the user's object is left as it was"


class Elsewhere(Recorder):
    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"y": 1}


class Stubborn(Recorder):
    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        raise ValueError("only integers")


class Ending(Recorder):
    def suggest(self, trial_id: str) -> Any:
        return Searcher.FINISHED if int(trial_id) >= 3 else super().suggest(trial_id)


class Outdated(Recorder):
    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        raise AttributeError("'Objective' object has no attribute 'objectives'")  # as AxSearch of Ray 2.60 with Ax 1.3


class Waiting(Recorder):
    """Proposes three configurations, and then one for each result, as Ray's BayesOptSearch and ZOOptSearch do."""

    proposed = results = 0

    def suggest(self, trial_id: str) -> Any:
        self.rng.random()  # changed even if nothing is proposed
        if self.proposed - self.results >= 3:
            return None
        self.proposed += 1
        return super().suggest(trial_id)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self.results += not error
        super().on_trial_complete(trial_id, result, error)


class Failing(Recorder):
    def suggest(self, trial_id: str) -> Any:
        if trial_id in ("2", "5"):
            raise ZeroDivisionError("no luck")
        return super().suggest(trial_id)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if error:
            raise KeyError(trial_id)
        super().on_trial_complete(trial_id, result, error)


def test_the_generator_of_variants_is_random_search() -> None:
    assert from_argument(BasicVariantGenerator(max_concurrent=2)).to_json() == {"type": "random"}
    with pytest.raises(SpecError, match="pass points_to_evaluate to tuner.run"):
        from_argument(BasicVariantGenerator(points_to_evaluate=[{"x": 1}]))


def test_tune_bohb_is_our_bohb(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked as other searchers are, and so drew at random: it only learns what HyperBandForBOHB tells it."""
    monkeypatch.setattr(bohb_search, "BOHB", object)  # HpBandSter need not be installed
    config = {"num_samples": 32, "top_n_percent": 20}
    for theirs in (TuneBOHB(bohb_config=config, seed=3), ConcurrencyLimiter(TuneBOHB(bohb_config=config), 4)):
        assert from_argument(theirs).to_json() == BOHBSearch(n_ei_candidates=32, top_n_percent=20).to_json()
    assert from_argument(TuneBOHB()).to_json() == BOHBSearch().to_json()
    with pytest.raises(SpecError, match="pass the points_to_evaluate to tuner.run and not to TuneBOHB"):
        from_argument(TuneBOHB(points_to_evaluate=[{"x": 1}]))
    with pytest.raises(SpecError, match="bandwith_factor"):
        from_argument(TuneBOHB(bohb_config={"bandwith_factor": 2}))
    with pytest.raises(SpecError, match="a TuneBOHB cannot be used in a Repeater; pass it alone"):
        from_argument(ConcurrencyLimiter(Repeater(TuneBOHB(), repeat=2), 4))


class Numpys(Recorder):
    """Proposes scalars of numpy, strings among them, as ConfigSpace does."""

    def _draw(self, space: dict[str, Any]) -> dict[str, Any]:
        drawn = super()._draw(space)
        return {
            name: value if isinstance(value, dict | list | tuple) else np.array([value])[0]
            for name, value in drawn.items()
        }


def test_scalars_of_numpy_become_those_of_python() -> None:
    """A proposed `numpy.str_` was refused as outside the domain."""
    of = task(
        Space.from_python(
            {"x": uniform(0, 1), "k": randint(1, 9), "c": choice(["a", "b"]), "on": choice([True, False])}
        )
    )
    drive = Drive(of)
    drive.run(make(from_argument(Numpys(3)), of), 8)
    kinds = [{name: type(value) for name, value in found.params.items()} for found in drive.suggestions]
    assert kinds == [{"x": float, "k": int, "c": str, "on": bool}] * 8


def test_a_searcher_that_fails_does_not_end_the_search() -> None:
    of = task(SPACE)
    kept, rebuilt = Drive(of), Drive(of)
    kept.run(make(from_argument(Failing(3)), of), 12)
    while len(rebuilt.trials) < 12 and rebuilt.step(make(from_argument(Failing(3)), of)):
        pass
    assert rebuilt.suggestions == kept.suggestions
    assert [i for i, s in enumerate(kept.suggestions) if s.note] == [2, 5]
    assert kept.suggestions[2].note == "drawn at random because RaySearcher(Failing) failed: ZeroDivisionError: no luck"


def steps(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    for i in range(checkpoint or 0, 3):
        yield Step({"score": config["x"]}, seconds=1 + i + config["x"], checkpoint=i + 1)
    if config["x"] > 0.9:
        raise ValueError("too large")


def test_a_searcher_that_waits_for_results_does_not_end_the_search() -> None:
    """The first None ended the search: with BayesOptSearch after ten trials."""
    options = {"metric": "score", "mode": "max", "scheduler": "fifo", "max_t": 4, "max_concurrent_trials": 4}
    found = tuner.simulate(steps, {"x": uniform(0, 0.9)}, search_alg=Waiting(3), num_samples=12, **options)
    assert [trial.state for trial in found.trials] == ["completed"] * 12
    assert found.decisions[-1].reason == "all 12 trials ended"
    assert max(len(trial.searcher_state.get("declines", ())) for trial in found.trials) == 1, "not asked at each report"
    found = tuner.simulate(steps, {"x": uniform(0.91, 1)}, search_alg=Waiting(3), num_samples=12, **options)
    assert [trial.state for trial in found.trials] == ["failed"] * 3, "no result follows, so the search ends"
    assert found.decisions[-1].reason == "all 3 trials ended, and the searcher has no configurations for 9 more"


@pytest.mark.parametrize("scheduler", ["hyperband", "asha_promotion"])
def test_a_searcher_that_waits_for_paused_trials_does_not_end_the_search(scheduler: str) -> None:
    """Both schedulers pause the trials whose results the searcher waits for. The search ended with the first three."""
    options = {"metric": "score", "mode": "max", "scheduler": scheduler, "max_t": 9, "max_concurrent_trials": 4}
    found = tuner.simulate(steps, {"x": uniform(0, 0.9)}, search_alg=Waiting(3), num_samples=12, **options)
    assert len(found.trials) == 12


def test_a_searcher_that_waits_proposes_the_same_after_a_restart() -> None:
    of = task(SPACE)
    searchers = {kept: make(from_argument(Waiting(3)), of) for kept in (True, False)}
    drives = {kept: Drive(of, stops=0, parallel=99) for kept in (True, False)}
    for kept, drive in drives.items():
        while len(drive.suggestions) < 12:
            if not drive.step(searchers[kept]):
                assert searchers[kept].waits()
                drive.trials.move(drive.trials.in_state(TrialState.RUNNING)[0], TrialState.COMPLETED)
            elif not kept:
                searchers[kept] = make(from_argument(Waiting(3)), of)
    assert drives[True].suggestions == drives[False].suggestions
    assert any("declines" in suggestion.state for suggestion in drives[True].suggestions)


def test_an_end_ends_the_search() -> None:
    of = task(SPACE)
    assert len(Drive(of).run(make(from_argument(Ending(1)), of), 10)) == 3


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(SpecError, match=r"choice between spaces \(branch\)"):
        make(from_argument(Recorder(1)), task(CONDITIONAL))
    with pytest.raises(SpecError, match="one objective"):
        make(from_argument(Recorder(1)), task(SPACE, TWO))
    with pytest.raises(SpecError, match="give the space to the experiment"):
        make(from_argument(Recorder(1)), task(Space.from_python({"epochs": 3})))
    by_run = from_argument(OptunaSearch(space=lambda trial: None, metric="m", mode="min"))
    with pytest.raises(
        SpecError, match="a function that asks an Optuna trial for its values is an objective: pass it as the trainable"
    ):
        make(by_run, task(Space.from_python({})))
    with pytest.raises(SpecError, match="Stubborn does not support this space: only integers"):
        make(from_argument(Stubborn(1)), task(SPACE))
    with pytest.raises(
        SpecError, match="Outdated failed, perhaps .* version of its library: AttributeError: 'Objective'"
    ):
        make(from_argument(Outdated(1)), task(SPACE))
    with pytest.raises(SpecError, match="proposed y, which is not in the experiment's space"):
        make(from_argument(Elsewhere(1)), task(SPACE))
    with pytest.raises(SpecError, match="a Recorder has no JSON form"):
        from_argument(Recorder(1)).to_json()
