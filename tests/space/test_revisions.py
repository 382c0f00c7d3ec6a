"""Configurations of earlier spaces in the present one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tuner
from tuner.domain.keys import keyed_random
from tuner.space import Space
from tuner.space.revisions import Revisions, added, in_words

WIDE = {
    "lr": tuner.loguniform(1e-4, 1.0),
    "width": tuner.choice([16, 32, 64]),
    "steps": tuner.randint(1, 100),
    "decay": 0.1,
}


def revisions(*spaces: Any, **assumed: Any) -> Revisions:
    return Revisions([Space.from_python(space) for space in spaces], assumed)


def test_values_are_kept_by_path_and_what_lies_outside_is_left_out() -> None:
    now = revisions(WIDE, {**WIDE, "lr": tuner.loguniform(1e-3, 1e-1), "width": tuner.choice([32, 128])})
    good = {"lr": 0.01, "width": 32, "steps": 7}
    assert now.inside(good, 0) == good
    assert now.inside({**good, "lr": 0.5}, 0) is None
    assert now.inside({**good, "width": 64}, 0) is None
    assert now.inside({**good, "lr": 0.5}, 1) == {**good, "lr": 0.5}, "it is of the present space"
    half = now.carried({**good, "lr": 0.5, "width": 64}, 0)
    assert (half.params, half.whole) == ({"steps": 7}, False)
    assert now.carried({**good, "lr": 0.5}, 0, clip=True).params["lr"] == 0.1


def test_a_parameter_that_goes_is_dropped_and_one_that_comes_back_has_its_own_values() -> None:
    narrow = {name: domain for name, domain in WIDE.items() if name != "width"}
    there_and_back = revisions(WIDE, narrow, WIDE, width=16)
    assert there_and_back.inside({"lr": 0.01, "width": 64, "steps": 7}, 0) == {"lr": 0.01, "width": 64, "steps": 7}
    assert there_and_back.inside({"lr": 0.01, "steps": 7}, 1) == {"lr": 0.01, "width": 16, "steps": 7}
    assert revisions(WIDE, narrow).inside({"lr": 0.01, "width": 64, "steps": 7}, 0) == {"lr": 0.01, "steps": 7}


def test_a_range_that_was_narrowed_and_widened_again_has_all_its_trials() -> None:
    narrow = {**WIDE, "lr": tuner.loguniform(1e-3, 1e-2)}
    assert revisions(WIDE, narrow, WIDE).inside({"lr": 0.5, "width": 64, "steps": 7}, 0) is not None


def test_a_new_parameter_has_the_constant_that_was_there_or_the_assumed_value() -> None:
    more = {**WIDE, "decay": tuner.uniform(0, 1), "dropout": tuner.uniform(0, 0.5)}
    old = {"lr": 0.01, "width": 64, "steps": 7}
    assert [p.path for p in added(Space.from_python(WIDE), Space.from_python(more))] == ["dropout"]
    assert revisions(WIDE, more, dropout=0.0).inside(old, 0) == {**old, "decay": 0.1, "dropout": 0.0}
    assert revisions(WIDE, more).inside(old, 0) is None
    without = {**more, "decay": tuner.uniform(0.2, 1)}  # the constant lies outside
    assert [p.path for p in added(Space.from_python(WIDE), Space.from_python(without))] == ["decay", "dropout"]


def test_branches_are_matched_by_their_labels_and_not_by_their_places() -> None:
    sgd = {"name": "sgd", "momentum": tuner.uniform(0, 1)}
    adam = {"name": "adam", "beta": tuner.uniform(0.9, 1), "eps": tuner.choice(["small", "large"])}
    before, after = {"opt": tuner.choice([sgd, adam])}, {"opt": tuner.choice([adam, {"name": "lion"}, sgd])}
    now = revisions(before, after)
    assert now.inside({"opt": 0, "opt/0/momentum": 0.5}, 0) == {"opt": 2, "opt/2/momentum": 0.5}
    found = now.inside({"opt": 1, "opt/1/beta": 0.95, "opt/1/eps": "large"}, 0)
    assert found == {"opt": 0, "opt/0/beta": 0.95, "opt/0/eps": "large"}
    assert added(Space.from_python(before), Space.from_python(after)) == [], "no trial is in the branch lion"
    without_sgd = revisions(before, {"opt": tuner.choice([adam])})
    assert without_sgd.inside({"opt": 0, "opt/0/momentum": 0.5}, 0) is None
    deeper = {"opt": tuner.choice([{**sgd, "nesterov": tuner.choice([True, False])}, adam])}
    assert [p.path for p in added(Space.from_python(before), Space.from_python(deeper))] == ["opt/0/nesterov"]
    told = revisions(before, deeper, **{"opt/0/nesterov": False})
    assert told.inside({"opt": 0, "opt/0/momentum": 0.5}, 0) == {
        "opt": 0,
        "opt/0/momentum": 0.5,
        "opt/0/nesterov": False,
    }


def test_kinds_may_change_where_values_mean_the_same() -> None:
    now = revisions(WIDE, {**WIDE, "width": tuner.randint(16, 65), "steps": tuner.choice([1, 7, 50])})
    assert now.inside({"lr": 0.01, "width": 64, "steps": 7}, 0) == {"lr": 0.01, "width": 64, "steps": 7}
    assert now.inside({"lr": 0.01, "width": 64, "steps": 8}, 0) is None


def test_the_space_of_a_configuration_is_the_newest_one_that_holds_it() -> None:
    more = {**WIDE, "dropout": tuner.uniform(0, 0.5)}
    now = revisions(WIDE, more, dropout=0.0)
    assert now.holding({"lr": 0.01, "width": 64, "steps": 7}) is now.spaces[0]
    assert now.holding({"lr": 0.01, "width": 64, "steps": 7, "dropout": 0.1}) is now.present
    assert now.holding({"lr": 0.01, "width": 64, "steps": 7}, 1) is now.spaces[1]


def test_a_change_in_words() -> None:
    after = {"lr": tuner.uniform(0, 1), "steps": tuner.randint(1, 100), "dropout": tuner.quniform(0, 0.5, 0.1)}
    said = in_words(Space.from_python(WIDE), Space.from_python(after), {"dropout": 0.0})
    assert (
        said == "lr from loguniform(0.0001, 1) to uniform(0, 1); dropout is new, and was 0.0 before; width is removed"
    )
    before = {"n": tuner.randint(0, 1_234_567), "q": tuner.qrandint(0, 100, 5), "x": tuner.uniform(0, 0.12345678)}
    after = {"n": tuner.randint(0, 1_234_569), "q": tuner.qrandint(0, 100, 5), "x": tuner.uniform(0, 0.12345679)}
    assert in_words(Space.from_python(before), Space.from_python(after), {}) == (
        "n from randint(0, 1234567) to randint(0, 1234569); x from uniform(0, 0.12345678) to uniform(0, 0.12345679)"
    )


DOMAINS = st.sampled_from(
    [
        tuner.uniform(0, 1),
        tuner.uniform(0.25, 0.5),
        tuner.quniform(0, 1, 0.25),
        tuner.loguniform(0.1, 10),
        tuner.randint(0, 5),
        tuner.randn(0, 1),
        tuner.choice([0, 1, 2]),
        tuner.choice(["a", "b"]),
        tuner.choice([{"kind": "x", "deep": tuner.uniform(0, 1)}, {"kind": "y"}]),
        tuner.choice(
            [{"kind": "y"}, {"kind": "z", "deep": tuner.randint(0, 3)}, {"kind": "x", "deep": tuner.uniform(0, 1)}]
        ),
        0.25,
    ]
)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), DOMAINS), min_size=1, max_size=4), st.integers(0, 2**32))
def test_whatever_is_carried_lies_in_the_present_space(spaces: list[dict[str, Any]], seed: int) -> None:
    now = revisions(*spaces)
    for revision, space in enumerate(now.spaces):
        params = space.sample(keyed_random(seed, "sample", revision))
        for clip in (False, True):
            found = now.carried(params, revision, clip=clip)
            for path, value in found.params.items():
                assert now.present[path].contains(value)
            if found.whole:
                now.present.to_unit(found.params)
                assert now.present.config(found.params).keys() == (spaces[-1]).keys()
        if revision == now.newest:
            assert now.inside(params, revision) == params


@pytest.mark.parametrize(
    "same", [WIDE, {"opt": tuner.choice([{"name": "a", "x": tuner.uniform(0, 1)}, {"name": "b"}])}]
)
def test_an_equal_space_carries_everything(same: dict[str, Any]) -> None:
    now = revisions(same, same)
    for seed in range(20):
        params = now.spaces[0].sample(keyed_random(seed, "sample"))
        assert now.inside(params, 0) == params
