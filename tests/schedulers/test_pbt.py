"""Population based training: the toy problem of the paper, Ray's quantiles and explorations, and what must never happen."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.schedulers.driving import SPACE, Drive, Feed, context
from tests.schedulers.oracles import RayDriven, RayTrial, ray_schedulers
from tuner.domain.decisions import Exploit, Note, Pause, Resume
from tuner.domain.events import CheckpointInfo, Reported
from tuner.domain.states import TrialState
from tuner.domain.trial import KeptCheckpoint
from tuner.driver.virtual import Step, simulate
from tuner.errors import SpecError
from tuner.schedulers import PB2, PopulationBasedTraining, from_json
from tuner.schedulers.pbt.explore import Explorer, mutations_to_json, read_mutations
from tuner.search.constraints import read
from tuner.space import Space, choice, loguniform, randint, uniform


def toy(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    """Figure 2 of the paper: Q = 1.2 - |theta|^2 is climbed by the gradient of 1.2 - h0 theta0^2 - h1 theta1^2."""
    theta = list(checkpoint or (0.9, 0.9))
    h = (config["h0"], config["h1"])
    while True:
        theta = [x - 0.01 * 2 * hi * x for x, hi in zip(theta, h, strict=True)]
        q = 1.2 - sum(x * x for x in theta)
        yield Step(metrics={"q": q}, checkpoint=tuple(theta))


@pytest.mark.parametrize("synch", [False, True])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 5))])
def test_the_papers_toy_problem(seed: int, synch: bool) -> None:
    """The paper's two members begin with h = (1, 0) and (0, 1); each can climb in one direction only."""
    space = {"h0": uniform(0.0, 1.0), "h1": uniform(0.0, 1.0)}
    begin = [{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}]
    shared: dict[str, Any] = {"metric": "q", "mode": "max", "num_samples": 2, "points_to_evaluate": begin, "seed": seed}
    options = {"perturbation_interval": 4, "quantile_fraction": 0.5, "resample_probability": 0.25, "synch": synch}
    grid = simulate(toy, space, scheduler="fifo", search_alg="random", max_t=200, **shared)
    assert grid.best_value == pytest.approx(0.4, abs=0.03)
    pbt = simulate(toy, space, scheduler={"type": "pbt", **options}, search_alg="random", max_t=400, **shared)
    assert pbt.best_value is not None
    assert pbt.best_value >= 1.15
    exploits = [d for d in pbt.decisions if isinstance(d, Exploit)]
    assert {e.trial for e in exploits} == {0, 1}


@given(
    seed=st.integers(0, 10**6),
    members=st.integers(2, 12),
    fraction=st.sampled_from([0.1, 0.25, 0.5]),
    mode=st.sampled_from(["min", "max"]),
)
def test_quantiles_are_rays(seed: int, members: int, fraction: float, mode: str) -> None:
    """All values differ, since in a tie our rule takes the reporting trial for the worse one."""

    class Asked(ray_schedulers.PopulationBasedTraining):  # type: ignore[misc]
        def _checkpoint_or_exploit(self, trial: Any, controller: Any, upper: Any, lower: Any) -> None:
            self.quantiles = {t.number for t in upper}, {t.number for t in lower}

        def on_trial_add(self, controller: Any, trial: RayTrial) -> None:
            checkpoints = SimpleNamespace(num_to_keep=None, checkpoint_score_attribute=None)
            trial.config = {"lr": 1.0}  # type: ignore[attr-defined]
            trial.run_metadata = SimpleNamespace(  # type: ignore[attr-defined]
                checkpoint_manager=SimpleNamespace(checkpoint_config=checkpoints)
            )
            super().on_trial_add(controller, trial)

    rng = random.Random(seed)
    theirs = RayDriven(
        Asked(
            time_attr="training_iteration",
            perturbation_interval=3,
            quantile_fraction=fraction,
            hyperparam_mutations={"lr": [1.0]},
        ),
        mode,
    )
    scheduler = PopulationBasedTraining(perturbation_interval=3, quantile_fraction=fraction)
    ours = Feed(scheduler, context(mode, num_samples=members))
    for _ in range(members):
        ours.trials[ours.start({"lr": 0.01})].checkpoint = CheckpointInfo(id="c", uri="", step=0)
    at = dict.fromkeys(range(members), 0)
    for _ in range(members * 12):
        number = rng.randrange(members)
        at[number] += 1
        value = rng.random()
        theirs.scheduler.quantiles = (set(), set())
        theirs.report(number, at[number], value)
        decided = ours.report(number, at[number], value)
        if scheduler.state.newest is None:
            assert theirs.scheduler.quantiles == (set(), set())
            assert not decided
            continue
        upper, lower = theirs.scheduler.quantiles
        assert set(scheduler._top()) == upper
        assert [type(d) for d in decided] == ([Exploit] if number in lower else [])
        if decided:
            assert isinstance(decided[0], Exploit)
            assert decided[0].donor in upper


MUTATED = Space({"lr": loguniform(1e-6, 1e3), "n": choice([1, 2, 4, 8], ordered=True), "b": choice([16, 32, 64])})


@pytest.mark.parametrize("lr", [0.01, 0.5])
@pytest.mark.parametrize("n", [1, 4, 8])
def test_explores_to_the_same_values_as_ray(lr: float, n: int) -> None:
    from ray.tune.schedulers.pbt import _explore

    mutations = {"lr": [0.01, 0.1, 1.0], "n": [1, 2, 4, 8]}
    explorer = Explorer(MUTATED, dict(read_mutations(mutations)), 0.0, (1.2, 0.8), None)
    ours, theirs = set(), set()
    random.seed(0)
    for seed in range(300):
        params, _ = explorer({"lr": lr, "n": n, "b": 32}, random.Random(seed))
        ours.add((params["lr"], params["n"], params["b"]))
        config, _ = _explore({"lr": lr, "n": n, "b": 32}, mutations, 0.0, (1.2, 0.8), None)
        theirs.add((config["lr"], config["n"], config["b"]))
    assert ours == theirs


def test_numbers_are_multiplied_as_rays_and_then_clipped() -> None:
    space = Space({"lr": uniform(0.0, 1.0), "k": randint(1, 11)})
    explorer = Explorer(space, {}, 0.0, (1.2, 0.8), None)
    seen = [explorer({"lr": 0.9, "k": 2}, random.Random(seed))[0] for seed in range(50)]
    assert {p["lr"] for p in seen} == {1.0, 0.9 * 0.8}
    assert {p["k"] for p in seen} == {1, 3}  # 2.4 and 1.6 would both be 2 again


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.reuse, Phase.generate))
@given(
    seed=st.integers(0, 10**6),
    members=st.integers(2, 8),
    slots=st.integers(1, 8),
    synch=st.booleans(),
    resample=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_donors_have_checkpoints_and_values_stay_inside(
    seed: int, members: int, slots: int, synch: bool, resample: float
) -> None:
    options = {"type": "pbt", "perturbation_interval": 2, "synch": synch, "resample_probability": resample}
    drive = Drive(options, seed, num_samples=members, slots=slots, checkpoints=0.7).run(4000)
    assert drive.core.ended
    for trial in drive.core.trials:
        for segment in trial.segments:
            assert [p.path for p, on in zip(SPACE.parameters, SPACE.active(segment.params), strict=True) if on] == list(
                segment.params
            )
            assert all(SPACE[path].contains(value) for path, value in segment.params.items())
            if segment.cause == "exploit":
                assert segment.source is not None
    saved = set()
    for _, entry in drive.log:
        checkpoint = getattr(entry, "checkpoint", None)
        if isinstance(checkpoint, CheckpointInfo):
            saved.add(checkpoint.id)
        if isinstance(entry, Exploit):
            assert entry.donor != entry.trial
            assert entry.checkpoint in saved


def test_without_a_checkpoint_nobody_exploits_and_a_note_says_so() -> None:
    feed = Feed(PopulationBasedTraining(perturbation_interval=1), context(num_samples=2))
    for _ in range(2):
        feed.start({"lr": 0.01})
    assert feed.report(0, 1, 0.9) == []
    note, warning = feed.report(1, 1, 0.1)
    assert note == Note(
        reason="at iteration 1, m of trial 1 is among the worst 1 of 2, but none of the best has a checkpoint of its own to "
        "continue from"
    )
    assert warning == Note(
        reason="no trial has saved a checkpoint, so pbt copies nothing to trial 1 and leaves its configuration: pass "
        "checkpoint= to tuner.report",
        warning=True,
    )
    feed.scheduler.enacted(warning, feed.trials)
    assert feed.report(1, 2, 0.1) == [replace(note, reason=note.reason.replace("iteration 1", "iteration 2"))], "once"
    on_its_way = CheckpointInfo(id="c", uri="", step=1, ready=False)

    feed.trials[0].checkpoints["c"] = KeptCheckpoint(on_its_way, 0.9, segment=1)
    (exploit,) = feed.report(1, 3, 0.1)
    assert isinstance(exploit, Exploit)
    assert exploit.donor == 0


def test_a_member_that_has_just_copied_another_one_is_no_donor() -> None:
    """The score of such a member is that of weights that it no longer has. The trial could even get its own earlier ones back."""
    feed = Feed(PopulationBasedTraining(perturbation_interval=1), context(num_samples=2))
    for _ in range(2):
        feed.trials[feed.start({"lr": 0.01})].checkpoint = CheckpointInfo(id="c", uri="", step=1)
    feed.report(0, 1, 0.9)
    (exploit,) = feed.report(1, 1, 0.5)
    assert isinstance(exploit, Exploit)
    feed.scheduler.enacted(exploit, feed.trials)
    assert isinstance(feed.report(0, 2, 0.1)[0], Note)
    assert feed.report(1, 2, 0.6) == []
    (back,) = feed.report(0, 3, 0.1)
    assert isinstance(back, Exploit)
    assert back.donor == 1


def test_says_why_with_numbers() -> None:
    feed = Feed(
        PopulationBasedTraining(
            perturbation_interval=1, hyperparam_mutations={"lr": [0.01, 0.02]}, resample_probability=0
        ),
        context(num_samples=2),
    )
    for lr in (0.01, 0.002):
        feed.trials[feed.start({"lr": lr, "width": 16})].checkpoint = CheckpointInfo(id="c", uri="", step=1)
    feed.report(0, 1, 0.9)
    (exploit,) = feed.report(1, 1, 0.1)
    assert isinstance(exploit, Exploit)
    assert exploit.reason.startswith(
        "copies weights and parameters of trial 0: at iteration 1, m 0.1 is rank 2 of 2, and trial 0 has 0.9"
    )
    assert exploit.params["width"] == 16


@pytest.mark.parametrize(
    ("size", "how"), [(1.0, "satisfies them"), (6.0, "violates them less"), (7.0, "violates them as much")]
)
def test_says_how_the_donor_meets_the_constraints(size: float, how: str) -> None:
    limits = tuple(read({"size": {"max": 5}}))
    feed = Feed(PopulationBasedTraining(perturbation_interval=1), context(num_samples=2, constraints=limits))
    for _ in range(2):
        feed.trials[feed.start({"lr": 0.01})].checkpoint = CheckpointInfo(id="c", uri="", step=1)
    feed.report(0, 1, 0.5, {"size": size})
    (exploit,) = feed.report(1, 1, 0.9, {"size": 7.0})
    assert "it violates the constraints and" in exploit.reason
    assert f", and trial 0 {how}" in exploit.reason


def test_what_the_donor_drew_as_it_ran_goes_along() -> None:
    explorer = Explorer(MUTATED, {}, 0.0, (1.2, 0.8), None)
    donor = {"lr": 0.01, "n": 4, "b": 32, "asked for by the code": "adam"}
    params, how = explorer(donor, random.Random(0))
    assert params["asked for by the code"] == "adam"
    assert params.keys() == donor.keys()
    assert "asked for by the code" not in how


def test_among_equals_the_one_that_reports_explores() -> None:
    feed = Feed(PopulationBasedTraining(perturbation_interval=1), context(num_samples=2))
    for _ in range(2):
        feed.trials[feed.start({"lr": 0.01})].checkpoint = CheckpointInfo(id="c", uri="", step=1)
    assert feed.report(0, 1, 0.5) == []
    (exploit,) = feed.report(1, 1, 0.5)
    assert isinstance(exploit, Exploit)
    assert exploit.donor == 0


def test_members_take_turns_when_they_do_not_all_fit() -> None:
    drive = Drive({"type": "pbt", "perturbation_interval": 3}, 1, num_samples=6, slots=2, trouble=0, max_t=12).run()
    assert drive.core.ended
    furthest = dict.fromkeys(range(6), 0)
    for _, entry in drive.log:
        if isinstance(entry, Reported):
            furthest[entry.trial] = max(furthest[entry.trial], entry.iteration)
            assert max(furthest.values()) - min(furthest.values()) <= 6
    assert set(furthest.values()) == {12}


def test_synch_exploits_only_when_everybody_is_there() -> None:
    drive = Drive(
        {"type": "pbt", "perturbation_interval": 3, "synch": True}, 1, num_samples=6, slots=2, trouble=0
    ).run()
    arrived: set[int] = set()
    rounds: list[int] = []
    exploits = 0
    for entry in drive.decisions():
        if isinstance(entry, Pause):
            arrived.add(entry.trial)
            assert "the population is compared once" in entry.reason
            assert ("the last one, is paused" in entry.reason) == (len(rounds) % 6 == 5)
            assert "0 other members" not in entry.reason
            rounds.append(entry.trial)
        if isinstance(entry, Exploit | Resume):
            assert len(arrived) == 6 or not arrived or entry.trial in arrived
            exploits += isinstance(entry, Exploit)
    assert exploits
    assert drive.core.ended


def test_synch_copies_as_planned_unless_the_donor_has_ended() -> None:
    options: dict[str, Any] = {"perturbation_interval": 1, "quantile_fraction": 0.5, "synch": True}
    feed = Feed(PopulationBasedTraining(**options), context(num_samples=4))
    for _ in range(4):
        feed.trials[feed.start({"lr": 0.01})].checkpoint = CheckpointInfo(id="c", uri="", step=1)
    for number, value in enumerate((0.1, 0.2, 0.8, 0.9)):
        (pause,) = feed.report(number, 1, value)
        feed.take(pause)
    first = feed.scheduler.choose(feed.trials, False)
    assert isinstance(first, Exploit)
    feed.take(first)
    planned = feed.scheduler.choose(feed.trials, False)
    assert isinstance(planned, Exploit)
    feed.end({2: 3, 3: 2}[planned.donor])
    still = feed.scheduler.choose(feed.trials, False)
    assert isinstance(still, Exploit)
    assert (still.trial, still.donor) == (planned.trial, planned.donor)
    feed.end(planned.donor)
    assert isinstance(feed.scheduler.choose(feed.trials, False), Resume)


def test_functions_of_the_user_draw_the_same_with_the_same_seed() -> None:
    draws = {"lr": lambda: random.uniform(0.1, 0.9), "n": lambda: int(2 ** numpy.random.randint(0, 4))}
    custom = Explorer(MUTATED, {}, 0.0, (1.2, 0.8), lambda params: {**params, "lr": random.random()})
    for explorer in (Explorer(MUTATED, dict(read_mutations(draws)), 1.0, (1.2, 0.8), None), custom):
        found = []
        for seed in (1, 1, 2):
            before = random.getstate()
            found.append(explorer({"lr": 0.5, "n": 4, "b": 32}, random.Random(seed))[0])
            assert random.getstate() == before
            random.random()
        assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            None,
            'TypeError: custom_explore_fn must return the changed params, such as {"lr": 0.1}, but returned nothing',
        ),
        (3, "but returned int 3"),
        ({"lrr": 0.5}, "ValueError: custom_explore_fn returned 'lrr', which is not a parameter; did you mean lr?"),
        ({"opt": {"lr": 0.5}}, "custom_explore_fn returned 'opt', which is not a parameter; choose from b, lr, n"),
    ],
)
def test_what_a_custom_explore_function_must_return(returned: Any, message: str) -> None:
    def train(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for step in range(checkpoint or 0, 8):
            yield Step({"m": config["lr"] * step}, seconds=1.0, checkpoint=step + 1)

    for kind in (PopulationBasedTraining, PB2):
        scheduler = kind(perturbation_interval=2, custom_explore_fn=lambda params: returned)
        done = simulate(train, MUTATED, metric="m", mode="max", num_samples=4, max_t=8, scheduler=scheduler)
        assert done.error is not None
        assert message in done.error


def test_custom_explore_function_has_the_last_word_within_the_domain() -> None:
    explorer = Explorer(SPACE, {}, 0.0, (1.2, 0.8), lambda params: {**params, "lr": 7.0, "width": 17, "depth": 3})
    params, how = explorer(
        {"lr": 0.01, "width": 32, "depth": 2, "act": "relu", "opt": 0, "opt/0/momentum": 0.5}, random.Random(0)
    )
    assert (params["lr"], params["width"], params["depth"]) == (0.1, 32, 3)
    assert "lr" in how


def test_none_is_a_category_like_any_other() -> None:
    space = Space({"lr": loguniform(1e-6, 1e3), "decay": choice([None, "cosine", "linear"])})
    for custom in (None, lambda params: {**params, "decay": "unknown"}):
        explorer = Explorer(space, dict(read_mutations({"lr": loguniform(1e-6, 1e3)})), 0.0, (1.2, 0.8), custom)
        found = [explorer({"lr": 0.01, "decay": None}, random.Random(seed)) for seed in range(10)]
        assert [params["decay"] for params, _ in found] == [None] * 10
        assert all("decay" not in how for _, how in found)


@pytest.mark.parametrize("given", [[(32,), [64]], choice([(64,), [32]]), [2, 1]])
def test_categories_that_are_no_scalars_are_given_as_they_are_or_by_index(given: Any) -> None:
    space = Space({"layers": choice([[16], (32,), [64]])})
    stored = json.loads(json.dumps(mutations_to_json(dict(read_mutations({"layers": given})))))
    explore = Explorer(space, dict(read_mutations(stored)), 1.0, (1.2, 0.8), None)
    drawn = [space.config(explore({"layers": 0}, random.Random(seed))[0])["layers"] for seed in range(20)]
    assert sorted(set(map(tuple, drawn))) == [(32,), (64,)]


def test_a_slash_in_the_name_of_a_parameter() -> None:
    space = Space({"opt/lr": uniform(0, 1), "of": {"a/b": uniform(0, 1)}, "c": uniform(0, 1)})
    for name, path in (("opt/lr", "opt~1lr"), ("opt~1lr", "opt~1lr"), ("of/a/b", "of/a~1b")):
        explore = Explorer(space, dict(read_mutations({name: [0.25]})), 1.0, (1.2, 0.8), None)
        begin = {"opt~1lr": 0.5, "of/a~1b": 0.5, "c": 0.5}
        assert explore(begin, random.Random(0))[0] == {**begin, path: 0.25}
        pb2 = PB2(hyperparam_bounds={name: [0, 0.5]})
        pb2.setup(context(num_samples=4, space=space))
        assert (pb2._numbers, list(pb2._high)) == ([path], [0.5])


def test_a_new_branch_gets_its_parameters() -> None:
    explorer = Explorer(SPACE, {}, 1.0, (1.2, 0.8), None)
    donor = {"lr": 0.01, "width": 32, "depth": 2, "act": "relu", "opt": 0, "opt/0/momentum": 0.5}
    seen = set()
    for seed in range(40):
        params, _ = explorer(donor, random.Random(seed))
        seen.add(tuple(path for path in params if path.startswith("opt/")))
    assert seen == {("opt/0/momentum",), ("opt/1/beta", "opt/1/amsgrad")}


def test_the_winners_schedule_is_what_it_was_trained_with() -> None:
    space = {"h0": uniform(0.0, 1.0), "h1": uniform(0.0, 1.0)}
    scheduler = PopulationBasedTraining(perturbation_interval=4, quantile_fraction=0.25)
    run = simulate(toy, space, metric="q", mode="max", num_samples=6, scheduler=scheduler, max_t=60, seed=3)
    assert run.best_trial is not None
    winner = run.best_trial.number
    schedule = scheduler.schedule_of(winner)
    json.dumps(schedule)
    assert schedule[0]["iteration"] == 0
    assert schedule[-1]["params"] == run.best_trial.params
    assert [entry["iteration"] for entry in schedule] == sorted(entry["iteration"] for entry in schedule)
    theta: Any = None
    for entry, until in zip(schedule, [*(e["iteration"] for e in schedule[1:]), 60], strict=True):
        steps = toy(entry["params"], theta)
        for _ in range(until - entry["iteration"]):
            step = next(steps)
            theta = step.checkpoint
    assert step.metrics["q"] == run.best_trial.last["q"]
    assert len(schedule) > 1


def draw() -> int:
    return 3


def test_mutations_come_back_from_json() -> None:
    scheduler = PopulationBasedTraining(
        hyperparam_mutations={"lr": loguniform(1e-4, 1e-2), "opt": {"0": {"momentum": [0.1, 0.9]}}, "depth": draw}
    )
    data = scheduler.to_json()
    assert data["hyperparam_mutations"] == {
        "lr": {"type": "loguniform", "lower": 1e-4, "upper": 1e-2},
        "opt/0/momentum": [0.1, 0.9],
        "depth": {"function": f"{__name__}:draw"},
    }
    assert from_json(json.loads(json.dumps(data))).to_json() == data


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"hyperparam_mutations": ["lr"]},
            "hyperparam_mutations: expected an object",
        ),
        (
            {"hyperparam_mutations": {"lrr": [1]}},
            r"hyperparam_mutations.lrr: not in the search space; did you mean lr\?",
        ),
        ({"hyperparam_mutations": {"lr": [5.0]}}, "hyperparam_mutations.lr: 5.0 is outside"),
        (
            {"hyperparam_mutations": {"act": choice([dict, list])}},
            r"mutations.act: .* Python objects .* indices, as in",
        ),
        ({"hyperparam_mutations": {"lr": []}}, "hyperparam_mutations.lr: the list of values is empty"),
        (
            {"hyperparam_mutations": {"lr": 0.1}},
            "hyperparam_mutations.lr: expected a list of values, a domain .*, got 0.1",
        ),
        ({"quantile_fraction": 0.6}, "quantile_fraction: expected at most 0.5, got 0.6"),
        ({"perturbation_interval": 0}, "perturbation_interval: expected a number above 0"),
        ({"require_attrs": False}, "require_attrs: only True is supported"),
        ({"perturbation_factors": []}, r"perturbation_factors: expected a list of numbers, got \[\]"),
        ({"perturbation_factors": [1.2, -1]}, "perturbation_factors.1: expected a number above 0, got -1"),
        ({"custom_explore_fn": 5}, "custom_explore_fn: expected a function or its name, got 5"),
        ({"custom_explore_fn": "nowhere:f"}, "custom_explore_fn: 'nowhere:f' cannot be imported"),
    ],
)
def test_bad_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        PopulationBasedTraining(**options).setup(context(num_samples=4))


@pytest.mark.parametrize("kind", [PopulationBasedTraining, PB2])
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("batch", r"batch: a constant of the search space \(int 32\); to let batch change, give it a range there"),
        (
            "opt/eps",
            r"opt.eps: a constant of the search space \(float 0.5\); to let opt/eps change, give it a range there",
        ),
        ("decay", "decay: not in the search space; choose from lr; to let decay change, add it there with its range"),
        ("opt/decay", "opt.decay: not in the search space; choose from lr; to let opt/decay change, add it there"),
    ],
)
def test_what_is_to_change_needs_a_range_in_the_space(kind: type, path: str, says: str) -> None:
    space = Space.from_python({"lr": uniform(0, 1), "batch": 32, "opt": {"eps": 0.5}})
    option = {"hyperparam_bounds": {path: [0, 1]}} if kind is PB2 else {"hyperparam_mutations": {path: uniform(0, 1)}}
    with pytest.raises(SpecError, match=says):
        kind(**option).setup(context(num_samples=4, space=space))


def test_what_the_experiment_must_have() -> None:
    with pytest.raises(SpecError, match="num_samples: population based training needs num_samples"):
        PopulationBasedTraining().setup(context())
    with pytest.raises(SpecError, match="copies checkpoints, but this trainable saves none"):
        PopulationBasedTraining().setup(context(num_samples=4, checkpoints=False))


def test_ended_members_are_no_donors() -> None:
    feed = Feed(PopulationBasedTraining(perturbation_interval=1, quantile_fraction=0.5), context(num_samples=3))
    for _ in range(3):
        feed.trials[feed.start({"lr": 0.01})].checkpoint = CheckpointInfo(id="c", uri="", step=1)
    feed.report(0, 1, 0.9)
    feed.end(0, TrialState.COMPLETED)
    feed.report(1, 1, 0.5)
    (exploit,) = feed.report(2, 1, 0.1)
    assert isinstance(exploit, Exploit)
    assert exploit.donor == 1
