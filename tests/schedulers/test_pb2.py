"""PB2: its observations and its Gaussian process against Ray Tune's, and its choices against the definition."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tests.schedulers.driving import SPACE, Feed, context
from tests.schedulers.oracles import ray_schedulers
from tuner.domain.decisions import Exploit
from tuner.domain.events import CheckpointInfo
from tuner.driver.virtual import Step, simulate
from tuner.errors import SpecError
from tuner.schedulers import PB2, from_argument, from_json
from tuner.schedulers.pbt import bandit
from tuner.schedulers.pbt.bandit import Bandit, Observations
from tuner.schedulers.pbt.pb2 import MOST_ROWS, Begin
from tuner.space import Space, choice, loguniform, uniform

TWO = Space({"a": uniform(0.0, 1.0), "b": uniform(2.0, 4.0), "c": choice(["x", "y"])})
THETA = [float(v) for v in np.log([1.3, 0.4, 0.2, 0.05])]


def observations(count: int, seed: int = 0) -> Observations:
    rng = np.random.default_rng(seed)
    rows = np.column_stack([np.arange(count) // 4, rng.random(count), rng.random((count, 2))])
    return Observations.of(rows, np.sin(5 * rows[:, 2]) - rows[:, 3] + 0.1 * rng.normal(size=count))


def rays_process(seen: Observations, noise: float) -> Any:
    from ray.tune.schedulers.pb2_utils import TV_SquaredExp
    from sklearn.gaussian_process import GaussianProcessRegressor

    variance, length, forgetting, _ = np.exp(THETA)
    kernel = TV_SquaredExp(variance=variance, lengthscale=length, epsilon=forgetting)
    return GaussianProcessRegressor(kernel=kernel, optimizer=None, alpha=noise).fit(seen.x, seen.y)


def test_its_process_predicts_what_rays_does() -> None:
    seen, at = observations(30), np.random.default_rng(1).random((20, 4))
    mean, sd = Bandit(THETA, seen, np.empty((0, 4))).predict(at)
    theirs, their_sd = rays_process(seen, 0.05).predict(at, return_std=True)
    assert mean == pytest.approx(theirs, abs=1e-9)
    assert sd == pytest.approx(their_sd, abs=1e-6)


def test_it_is_less_curious_where_others_train_and_expects_the_same() -> None:
    seen, there = observations(12), np.array([[1.0, 0.5, 0.2, 0.9]])
    alone, beside = Bandit(THETA, seen, np.empty((0, 4))), Bandit(THETA, seen, there)
    (mean, sd), (other_mean, other_sd) = alone.predict(there), beside.predict(there)
    assert other_mean == pytest.approx(mean)
    assert other_sd < 0.5 * sd
    # The definition, computed slowly: the variance after one more observation at that place, whatever its value.
    x = np.concatenate([seen.x, there])
    k = bandit.covariances(*bandit.distances(x, x), *np.exp(THETA[:3])) + np.exp(THETA[3]) * np.eye(13)
    near = bandit.covariances(*bandit.distances(there, x), *np.exp(THETA[:3]))
    assert other_sd**2 == pytest.approx(np.exp(THETA[0]) - (near @ np.linalg.solve(k, near.T))[0])


def test_it_finds_the_greatest_bound() -> None:
    """On a fine grid there is no better point than what it finds, and Ray's ten gradient ascents find no better one."""
    seen, fixed = observations(25), np.array([1.0, 0.4])
    ours = Bandit(THETA, seen, np.empty((0, 4)))

    def bound(points: np.ndarray) -> np.ndarray:
        return ours.bound(np.concatenate([np.repeat(fixed[None], len(points), 0), points], axis=1))

    found = ours.best(fixed, 2, np.random.default_rng(3))
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 101)] * 2), -1).reshape(-1, 2)
    assert bound(found[None])[0] >= bound(grid).max() - 1e-3
    mean, sd = ours.predict(np.concatenate([fixed, found])[None])
    assert bound(found[None])[0] == pytest.approx(mean[0] + math.sqrt(0.2 + math.log(0.4 * 25)) * sd[0])

    from ray.tune.schedulers.pb2_utils import optimize_acq

    process = rays_process(seen, 0.05)
    np.random.seed(0)
    theirs = optimize_acq(lambda m, m1, x, f: float(bound(np.array(x)[None])[0]), process, process, fixed, 2)
    assert bound(found[None])[0] >= bound(theirs[None])[0] - 1e-3


def test_a_fit_makes_the_observations_more_likely_and_forgets_what_is_over() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([np.repeat([0.0, 1.0], 30), np.full(60, 0.5), rng.random(60)])
    y = np.where(x[:, 0] < 0.5, 1, -1) * (x[:, 2] - 0.5) * 3  # what was good at first is bad later
    variance, _, forgetting, _ = np.exp(bandit.fit(x, y))
    assert forgetting > 0.4
    assert 0.05 <= variance <= 20
    steady = np.exp(bandit.fit(x, (x[:, 2] - 0.5) * 3))
    assert steady[2] < 0.05


def fed(scheduler: PB2, members: int = 4) -> Feed:
    feed = Feed(scheduler, context(num_samples=members, space=TWO))
    for number in range(members):
        share = number / members
        feed.trials[feed.start({"a": share, "b": 2 + share, "c": "x"})].checkpoint = CheckpointInfo(
            id="c", uri="", step=1
        )
    return feed


def test_its_observations_are_those_of_ray_on_the_same_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray counts an interval's time at its end and we at its beginning; the kernel sees only differences of times."""
    import pandas as pd
    from ray.tune.schedulers import pb2 as rays

    seen: dict[str, Any] = {}

    def select(x: Any, y: Any, current: Any, newpoint: Any, bounds: Any, num_f: int) -> Any:
        seen.update(x=np.array(x, float), y=np.array(y, float), newpoint=np.array(newpoint, float))
        return seen["chosen"]

    monkeypatch.setattr(rays, "_select_config", select)
    bounds = {"a": (0.0, 1.0), "b": (2.0, 4.0)}
    scheduler = PB2(perturbation_interval=1, quantile_fraction=0.25)
    feed = fed(scheduler)
    data = pd.DataFrame(columns=["Trial", "Time", "a", "b", "Reward"])
    rng = random.Random(0)
    exploits, clock = 0, [0] * 4
    for _ in range(16):
        for number in range(4):
            t = clock[number] = clock[number] + 1
            value = t * (1 + feed.trials[number].params["a"]) + rng.random()
            params = feed.trials[number].params
            data.loc[len(data)] = [str(number), t, params["a"], params["b"], value]
            decided = feed.report(number, t, value)
            if not decided:
                continue
            (exploit,) = decided
            assert isinstance(exploit, Exploit)
            feed.trials[number].params = dict(exploit.params)
            scheduler.enacted(exploit, feed.trials)
            exploits += 1
            clock[number] = clock[exploit.donor]
            new = [exploit.params["a"], exploit.params["b"]]
            donor = feed.trials[exploit.donor].params
            seen.update(chosen=new, x=None)
            _, data = rays._explore(data, bounds, None, str(exploit.donor), str(number), {k: donor[k] for k in bounds})
            if seen["x"] is None:  # the donor has no interval yet
                data.loc[len(data)] = [str(number), clock[number], *new, scheduler.state.begins[number].score]
            else:
                ours = scheduler._raw([row[0] for row in scheduler.state.rows])
                ours[:, 3] = 2 + 2 * ours[:, 3]
                theirs = seen["x"] - [1, 0, 0, 0]
                mine = sorted(
                    map(tuple, np.column_stack([ours, [r[1] for r in scheduler.state.rows]]).round(6).tolist())
                )
                assert mine == sorted(map(tuple, np.column_stack([theirs, seen["y"]]).round(6).tolist()))
    assert exploits > 3


def test_what_it_knows_of_the_intervals_of_its_members() -> None:
    scheduler = PB2(perturbation_interval=2)
    feed, state = fed(scheduler), scheduler.state
    assert not state.explored, "as in Ray, only the configurations that it has chosen itself are pending"
    for number in range(4):
        assert feed.report(number, 2, 2.0 * number) == []
    assert not state.explored
    [exploit] = feed.report(0, 4, 0.0)
    feed.trials[0].params = dict(exploit.params)  # type: ignore[attr-defined]
    scheduler.enacted(exploit, feed.trials)
    copied = state.begins[0]
    assert (copied.t, copied.score, copied.params) == (2, 6.0, feed.trials[0].params), "it begins where its donor was"
    assert list(state.explored) == [0]
    for number in range(1, 4):
        feed.report(number, 4, 4.0 * number)
    assert [(begin.t, begin.score, rise) for begin, rise in state.rows] == [(2, 2.0 * n, float(n)) for n in range(4)]
    feed.report(1, 4, 9.0)  # again, after a retry
    assert len(state.rows) == state.count == 4, "no time has passed in this interval"
    feed.report(0, 4, 7.0)
    assert not state.explored, "its new configuration has a result"
    for number in range(4):
        feed.end(number)
    assert not state.begins
    for t in range(6, 10 + 2 * MOST_ROWS, 2):
        feed.report(feed.start({"a": 0.5, "b": 3.0, "c": "x"}) if t == 6 else 4, t, float(t))
    assert (len(state.rows), state.rows[-1][0].t) == (MOST_ROWS, t - 2), "the newest are kept"


def test_the_bandit_sees_numbers_within_their_bounds() -> None:
    scheduler = PB2(hyperparam_bounds={"b": [2.5, 3.5]})
    scheduler.setup(context(num_samples=4, space=TWO))
    begins = [Begin(1.0, 5.0, {"a": 0.1, "b": 2.75, "c": "x"}), Begin(2.0, 6.0, {"c": "x"})]
    assert scheduler._raw(begins).tolist() == [[1.0, 5.0, 0.25], [2.0, 6.0, 0.5]]
    for known in (False, True):  # drawn at random until there is an interval
        feed = fed(PB2(perturbation_interval=1, hyperparam_bounds={"b": [2.5, 2.6]}, quantile_fraction=0.5))
        for t in (1, 2) if known else (1,):
            decided = [one for n in (3, 2, 1, 0) for one in feed.report(n, t, float(n * t * t))]
        found = [one.params["b"] for one in decided if isinstance(one, Exploit)]
        assert all(2.5 <= one <= 2.6 for one in found)
        assert len(set(found)) == len(found) > 1, "members that copy at once explore different values"


def test_it_moves_to_where_the_score_rose_and_leaves_choices_alone() -> None:
    feed = fed(PB2(perturbation_interval=1, hyperparam_bounds={"a": [0.1, 0.9]}))
    exploits, clock = [], [0] * 4
    totals = [0.0] * 4
    for _ in range(40):
        for number in range(4):
            t = clock[number] = clock[number] + 1
            totals[number] += 1 - 4 * (feed.trials[number].params["a"] - 0.6) ** 2
            for decision in feed.report(number, t, totals[number]):
                assert isinstance(decision, Exploit)
                totals[number], clock[number] = totals[decision.donor], clock[decision.donor]
                assert {k: v for k, v in decision.params.items() if k != "a"} == {
                    k: v for k, v in feed.trials[decision.donor].params.items() if k != "a"
                }
                feed.trials[number].params = dict(decision.params)
                feed.scheduler.enacted(decision, feed.trials)
                exploits.append(decision)
                request = feed.scheduler.fit_request(feed.trials)
                if request is not None:
                    feed.scheduler.record(_fitted(feed.scheduler.fit(request)), feed.trials)
    assert len(exploits) > 4
    assert all(0.1 <= e.params["a"] <= 0.9 for e in exploits)
    assert np.mean([abs(e.params["a"] - 0.6) for e in exploits[-2:]]) < 0.1
    assert "(bandit)" in exploits[-1].reason


def _fitted(payload: Any) -> Any:
    from tuner.schedulers.base import Fitted

    return Fitted(payload=json.loads(json.dumps(payload)))


def toy(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    """Climb as fast as the learning rate allows; the best rate falls as training goes on."""
    done, value = checkpoint or (0, 0.0)
    while True:
        best = 0.1 * 0.1 ** (done / 60)
        value += math.exp(-(math.log(config["lr"] / best) ** 2))
        done += 1
        yield Step(metrics={"q": value}, checkpoint=(done, value))


def test_it_follows_an_optimum_that_moves() -> None:
    space = {"lr": loguniform(1e-4, 1.0)}

    def best(kind: str, seed: int) -> float:
        run = simulate(
            toy,
            space,
            metric="q",
            mode="max",
            num_samples=4,
            max_t=60,
            scheduler={"type": kind, "perturbation_interval": 3},
            search_alg="random",
            max_concurrent_trials=4,
            seed=seed,
        )
        assert run.best_value is not None
        return run.best_value

    gained = [best("pb2", seed) - best("pbt", seed) for seed in range(8)]
    assert np.mean(gained) > 3


def test_its_json_form_and_rays_object() -> None:
    scheduler = PB2(
        perturbation_interval=3, hyperparam_bounds={"lr": [1e-3, 1e-2], "opt": {"0": {"momentum": [0.1, 0.9]}}}
    )
    data = json.loads(json.dumps(scheduler.to_json()))
    assert data["hyperparam_bounds"] == {"lr": [1e-3, 1e-2], "opt/0/momentum": [0.1, 0.9]}
    assert from_json(data).to_json() == data
    from ray.tune.schedulers import pb2 as rays

    theirs = rays.PB2(
        time_attr="training_iteration",
        perturbation_interval=4,
        hyperparam_bounds={"lr": [1e-3, 1e-2]},
        quantile_fraction=0.5,
    )
    ours = from_argument(theirs).to_json()
    assert (ours["type"], ours["perturbation_interval"], ours["quantile_fraction"]) == ("pb2", 4, 0.5)
    assert ours["hyperparam_bounds"] == {"lr": [1e-3, 1e-2]}
    assert ray_schedulers.PopulationBasedTraining in rays.PB2.__mro__


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ({"lrr": [0, 1]}, r"hyperparam_bounds.lrr: not in the search space; did you mean lr\?"),
        ({"act": [0, 1]}, "hyperparam_bounds.act: a choice, and the bandit changes only numbers"),
        ({"lr": [1e-3, 7]}, "hyperparam_bounds.lr: 7 is outside the parameter's domain"),
        ({"lr": [1e-2, 1e-3]}, "hyperparam_bounds.lr: expected lower < upper"),
        ({"lr": 3}, r"hyperparam_bounds.lr: expected \[lower, upper\], got 3"),
        (["lr"], r"hyperparam_bounds: expected an object: parameter -> \[lower, upper\], got \['lr'\]"),
    ],
)
def test_bad_bounds(bounds: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        PB2(hyperparam_bounds=bounds).setup(context(num_samples=4, space=SPACE))


def test_a_space_of_choices_is_refused() -> None:
    with pytest.raises(SpecError, match="pb2 changes numbers, and this space has none: use pbt"):
        PB2().setup(context(num_samples=4, space=Space({"c": choice(["x", "y"])})))


def test_decisions_and_fits_use_one_thread_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, set[int]] = {}

    def counted(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            found = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
            threads.setdefault(function.__name__, set()).update(found)
            return function(*arguments)

        return call

    def train(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for step in range(checkpoint or 0, 12):
            yield Step({"m": config["lr"] - step / 100}, seconds=1.0, checkpoint=step + 1)

    for place, name in ((bandit, "fit"), (Bandit, "predict")):
        monkeypatch.setattr(place, name, counted(getattr(place, name)))
    with threadpool_limits(2, user_api="blas"):
        space = {"lr": uniform(0, 1)}
        done = simulate(
            train, space, metric="m", mode="max", num_samples=4, max_t=12, scheduler=PB2(perturbation_interval=2)
        )
    assert done.error is None
    assert threads == {"fit": {1}, "predict": {1}}
