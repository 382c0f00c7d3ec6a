"""The comparison of searches: seeds, what is run again, what is changed for a variant, and the arithmetic of the tables."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import quality
from benchmarks.contenders import Optuna, Random, Setting, changed, played
from benchmarks.learning_curves import Problem, seed_of
from benchmarks.methods import METHODS, play
from tuner.schedulers.freeze_thaw import scheduler
from tuner.schedulers.freeze_thaw.decisions import novelty
from tuner.space import Space, choice, randint, uniform

SPACE = Space({"x": uniform(0, 1), "n": randint(1, 4), "kind": choice(["a", {"name": "b", "y": uniform(0, 1)}])})
SETTING = Setting(workers=2, startup=0.0, end=6, curves=Path("/nowhere"))


def problem(mode: str = "min") -> Problem:
    def curve(config: dict[str, object]) -> tuple[np.ndarray, np.ndarray]:
        x = config["x"]
        assert isinstance(x, float)
        values = x + 1 / np.arange(1.0, 10.0)
        return (values if mode == "min" else -values), np.arange(1.0, 10.0)

    sign = 1 if mode == "min" else -1
    return Problem("made/up", mode, 9, SPACE, 9.0, sign / 9, sign * (0.5 + 1 / 9), curve)  # type: ignore[arg-type]


def test_each_run_of_each_problem_has_a_seed_of_its_own() -> None:
    seeds = {seed_of(name, run) for name in ("lcbench/1", "lcbench/2", "mlp/digits") for run in range(10)}
    assert len(seeds) == 30


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("prototype", "ray-asha")])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_every_method_keeps_to_the_time_and_finds_something(method: str, mode: str) -> None:
    found = play(method, problem(mode), 1, SETTING)
    assert 50 < len(found) <= 54, "six full trainings of nine reports, but for what was under way"
    assert max(t for t, _ in found) <= 27
    (regret,) = quality.regrets(problem(mode), found, 2, (6.0,))
    assert 0 <= regret < 1


def test_a_start_is_charged() -> None:
    costly = Setting(workers=2, startup=0.5, end=6, curves=Path("/nowhere"))
    assert len(played(problem(), Random(problem(), 1, costly), costly)) < 40


def test_optuna_is_asked_only_for_what_is_active() -> None:
    optuna = Optuna(problem(), 0, SETTING, prunes=False)
    configs = [optuna.start()[0] for _ in range(20)]
    assert {isinstance(config["kind"], dict) for config in configs} == {True, False}
    assert all(1 <= config["n"] <= 3 for config in configs)


def test_a_variant_changes_constants_for_its_run_alone() -> None:
    prior = scheduler.PRIOR
    with changed("novelty.CROWDED=0.2;scheduler.PRIOR.lengthscale=(1.0, 0.7)"):
        assert novelty.CROWDED == 0.2
        assert scheduler.PRIOR.lengthscale == (1.0, 0.7)
        assert scheduler.PRIOR.level == prior.level
    assert novelty.CROWDED == 0.05
    assert prior is scheduler.PRIOR
    with pytest.raises(AttributeError), changed("novelty.CROWDED=0.2;novelty.NO_SUCH=1"):
        pass
    assert novelty.CROWDED == 0.05


def row(method: str, run: int, regret: list[float]) -> dict[str, object]:
    return {
        "problem": "made/up",
        "run": run,
        "method": method,
        "workers": 4,
        "startup": 0.0,
        "budgets": [1.0, 2.0],
        "regret": regret,
        "cpu_s": 1.0,
    }


def test_what_a_file_has_is_read_again_but_for_a_line_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    assert quality.read(file) == quality.read(None) == {}
    file.write_text(json.dumps(row("a", 0, [0.5, 0.4])) + "\n" + json.dumps(row("a", 1, [0.5, 0.4]))[:40])
    args = Namespace(workers=4, startup=0.0, budgets=[1, 2])
    assert list(quality.read(file)) == [quality.row_key(0, "made/up", "a", args)]


def test_a_run_counts_only_if_every_method_has_it() -> None:
    args = Namespace(workers=4, startup=0.0, budgets=[1, 2])
    wanted = [quality.row_key(run, "made/up", method, args) for run in range(3) for method in "ab"]
    rows = {key: row(key[2], key[1], [0.5, 0.4]) for key in wanted if (key[1], key[2]) != (1, "b")}
    assert [key[1:3] for key in quality.complete(wanted, rows, 2)] == [(0, "a"), (0, "b"), (2, "a"), (2, "b")]


def test_differences_are_taken_run_by_run() -> None:
    args = Namespace(baseline="", budgets=[1.0, 2.0], workers=4, startup=0.0)
    listed = [row("a", k, [0.1 * k, 0.1 * k]) for k in range(4)] + [
        row("b", k, [0.1 * k + 0.05, 0.2]) for k in range(4)
    ]
    rows = {quality.row_key(int(str(r["run"])), "made/up", str(r["method"]), args): r for r in listed}
    table = quality.summary("made", ["a", "b"], rows, args)
    assert table["a"]["mean"] == pytest.approx([0.15, 0.15])
    assert "difference" not in table["a"]
    assert table["b"]["difference"] == pytest.approx([0.05, 0.05])
    assert table["b"]["difference_interval"][0] == pytest.approx(0, abs=1e-9)
    assert table["b"]["difference_interval"][1] == pytest.approx(
        1.96 * np.std([0, 0.1, 0.2, 0.3], ddof=1) / 2, abs=1e-4
    )
    assert not quality.in_family("made/up", "mad")


def test_the_baseline_may_be_named_without_its_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = "plain:novelty.CROWDED=0.1"
    monkeypatch.setattr("sys.argv", ["quality", "--methods", "default", plain, "--baseline", "plain"])
    assert quality.arguments().baseline == plain
    monkeypatch.setattr("sys.argv", ["quality", "--methods", "default", "--baseline", "plain"])
    with pytest.raises(SystemExit):
        quality.arguments()


def test_the_first_run_is_given_by_its_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = [
        "quality",
        "--families",
        "mlp",
        "--methods",
        "asha",
        "--first-run",
        "7",
        "--runs",
        "1",
        "--budgets",
        "1",
        "--jobs",
        "1",
    ]
    monkeypatch.setattr("sys.argv", [*asked, "--curves", str(tmp_path), "--results", str(tmp_path / "results")])
    quality.main()
    assert [key[:3] for key in quality.read(tmp_path / "results")] == [("mlp/digits", 7, "asha")]


def test_a_single_run_has_no_interval_in_the_table_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    args = Namespace(baseline="", budgets=[1.0], workers=4, startup=0.0)
    rows = {quality.row_key(0, "made/up", method, args): row(method, 0, [0.5]) for method in "ab"}
    table = {"made": quality.summary("made", ["a", "b"], rows, args)}
    assert json.loads(json.dumps(table, allow_nan=False))["made"]["b"]["difference_interval"] == [None]
    quality.show(table, args)
    assert "0.500 ± -" in capsys.readouterr().out
