"""Factorial experiments: a balanced design, effects that are told from differences between blocks, and the names of runs."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from benchmarks import factorial
from benchmarks.contenders import options_in
from benchmarks.learning_curves import half

FACTORS = ["a:novelty.CROWDED=0.1", "b:option.thaw=0.2", "c:acquisition.RIVAL=5;option.thaw=0.1", "d:novelty.MOST=0.9"]


@pytest.mark.parametrize("factors", [4, 5, 8])
def test_each_factor_is_on_in_half_of_each_block_and_no_effect_hides_another_or_a_pair_of_others(factors: int) -> None:
    kinds = factorial.design(factors)
    assert (kinds.sum(1) == factorial.BLOCK / 2).all()
    signs = 2 * kinds.reshape(-1, factors) - 1
    assert len({tuple(on) for on in signs}) == len(signs)
    assert np.array_equal(signs.T @ signs, len(signs) * np.eye(factors))
    for i, j in itertools.combinations(range(factors), 2):
        assert not (signs[:, i] * signs[:, j] @ signs).any()


def test_every_problem_gets_every_kind_of_block() -> None:
    found = factorial.runs(["x", "y", "z"], 8, 12)
    for name in "xyz":
        assert len({tuple(on) for _, problem, on in found if problem == name}) == 16
    first = [(run, problem) for run, problem, _ in found[:: factorial.BLOCK]]
    assert first[:4] == [(0, "x"), (0, "y"), (0, "z"), (1, "x")]


def test_effects_are_recovered_although_blocks_differ_more_than_runs() -> None:
    rng = np.random.default_rng(0)
    found = factorial.runs([f"p{i}" for i in range(10)], 4, 40)
    on = np.array([each for _, _, each in found])
    block = [(run, problem) for run, problem, _ in found]
    levels = np.repeat(rng.normal(0, 1, 40), factorial.BLOCK)
    regret = levels + on @ np.array([-0.1, 0.0, 0.05, 0.0]) + rng.normal(0, 0.02, len(on))
    effects = factorial.effects(on, block, regret)
    assert effects is not None
    mean, width = effects
    assert mean == pytest.approx([-0.1, 0.0, 0.05, 0.0], abs=0.015)
    assert width == pytest.approx(np.full(4, 1.96 * 0.02 * 2 / np.sqrt(160)), rel=0.2)
    # An incomplete block at the end changes little.
    fewer = factorial.effects(on[:-3], block[:-3], regret[:-3])
    assert fewer is not None
    assert fewer[0] == pytest.approx(mean, abs=0.01)


@pytest.mark.parametrize("blocks", [1, 2])
def test_blocks_of_one_kind_cannot_tell_the_factors_apart(blocks: int) -> None:
    on = np.concatenate([factorial.design(4)[0]] * blocks)
    block = np.repeat(np.arange(blocks), factorial.BLOCK).tolist()
    assert factorial.effects(on, block, -0.1 * on[:, 0]) is None


def test_a_run_is_named_after_the_factors_that_are_on() -> None:
    assert factorial.method(FACTORS, np.array([0, 0, 0, 0])) == "default"
    name = factorial.method(FACTORS, np.array([1, 0, 1, 0]))
    assert name == "a+c:novelty.CROWDED=0.1;acquisition.RIVAL=5;option.thaw=0.1"
    assert options_in(name.split(":", 1)[1]) == {"thaw": 0.1}


def test_the_halves_of_the_problems_have_none_in_common() -> None:
    names = ["a", "b", "c", "d", "e"]
    assert half(names, "both") == names
    assert (half(names, "first"), half(names, "second")) == (["a", "c", "e"], ["b", "d"])


def test_the_command_prints_the_effects_of_all_runs_and_runs_none_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["factorial", "--curves", str(tmp_path), "--budgets", "0.5", "--blocks", "2", "--half", "second"]
    monkeypatch.setattr("sys.argv", [*asked, "--results", str(tmp_path / "rows"), "--factors", *FACTORS])
    factorial.main()
    lines = (tmp_path / "rows").read_text().splitlines()
    assert len(lines) == 8
    first = capsys.readouterr().out
    assert "all: effects on regret ± 95 %, 8 runs in 2 blocks" in first
    assert "These runs cannot tell the factors apart yet." in first
    assert '{"family": "linear", "runs": 4, "factors": ["a", "b", "c", "d"], "effects": null}' in first
    factorial.main()
    assert (tmp_path / "rows").read_text().splitlines() == lines
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    "wrong", [FACTORS[:3], [*FACTORS[:3], "d"], ["a+b:novelty.MOST=0.9", *FACTORS], [*FACTORS[:3], "d:option.thow=1"]]
)
def test_wrong_factors_are_refused(monkeypatch: pytest.MonkeyPatch, wrong: list[str]) -> None:
    monkeypatch.setattr("sys.argv", ["factorial", "--factors", *wrong])
    with pytest.raises(SystemExit):
        factorial.main()
