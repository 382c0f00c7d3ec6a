"""Test which scheduler and searcher "auto" stands for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.schedulers.driving import SPACE, context
from tuner.domain.decisions import Note
from tuner.driver.virtual import Step, simulate
from tuner.schedulers.auto import resolve
from tuner.search import from_json as searcher_from_json
from tuner.search.base import SearcherContext
from tuner.search.optuna_samplers.gp import SHORT_S
from tuner.space import Space, choice, grid_search, uniform

FLAT = Space({"x": uniform(0, 1), "k": choice(["a", "b"])})
GRID = Space({"x": uniform(0, 1), "k": grid_search([1, 2, 3])})
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "metric and max_t": ({"max_t": 27}, {}, "freeze_thaw", "random"),
    "with num_samples": ({"max_t": 27, "num_samples": 50}, {}, "freeze_thaw", "random"),
    "conditional": ({"max_t": 27, "space": SPACE}, {}, "freeze_thaw", "random"),
    "no checkpoints": ({"max_t": 27}, {"saves_checkpoints": False}, "freeze_thaw", "random"),
    "a handful": ({"max_t": 27, "num_samples": 4}, {}, "fifo", "qmc"),
    "no max_t": ({"num_samples": 1000}, {}, "fifo", "tpe"),
    "no max_t, few": ({"num_samples": 100}, {}, "fifo", "gp"),
    "no max_t, conditional": ({"num_samples": 100, "space": SPACE}, {}, "fifo", "tpe"),
    "objectives": ({"max_t": 27}, {"objectives": 2}, "fifo", "tpe"),
    "objectives, grid": ({"space": GRID}, {"objectives": 2}, "fifo", "grid"),
    "objectives, qmc": ({}, {"objectives": 2, "searcher_given": True, "searcher": "qmc"}, "fifo", "tpe"),
    "grid": ({"max_t": 27, "space": GRID}, {}, "asha", "grid"),
    "grid, no max_t": ({"space": GRID}, {}, "fifo", "grid"),
    "nothing to search": ({"max_t": 27, "space": Space({"x": 1})}, {}, "fifo", "random"),
    "qmc asked for": ({"max_t": 27}, {"searcher_given": True, "searcher": "qmc"}, "asha", "random"),
    "tpe asked for": ({"max_t": 27}, {"searcher_given": True, "searcher": "tpe"}, "fifo", "random"),
    "an object": ({"max_t": 27}, {"searcher_given": True}, "asha", "random"),
}


@pytest.mark.parametrize(("options", "more", "scheduler", "searcher"), CASES.values(), ids=CASES)
def test_what_it_chooses(options: dict[str, Any], more: dict[str, Any], scheduler: str, searcher: str) -> None:
    its = context(**{"space": FLAT, **options})
    chosen, search, why = resolve(its, **more)
    assert (chosen.TYPE, search["type"]) == (scheduler, searcher)
    assert why.startswith(f"scheduler auto: {scheduler}")
    assert "fifo with" not in why or "searcher_given" not in more
    assert "while trials" not in why or why.endswith(f"tpe while trials take less than {SHORT_S:g} s")
    chosen.setup(its)
    if "searcher_given" not in more:
        count = more.get("objectives", 1)
        searcher_from_json(search).setup(SearcherContext(its.space, (its.objective,) * count, 0, its.num_samples))


def test_a_search_with_one_trial_is_too_short_for_early_stopping() -> None:
    done = simulate(
        lambda config, checkpoint: iter(()), {"x": uniform(0, 1)}, metric="loss", mode="min", max_t=3, num_samples=1
    )
    notes = [d.reason for d in done.decisions if isinstance(d, Note)]
    assert notes[0] == "scheduler auto: fifo, since 1 trial is too few for early stopping"


@pytest.mark.parametrize(("drawing", "scheduler"), [("tpe", "fifo"), ("random", "asha")])
def test_trials_of_an_optuna_objective_are_stopped_early_unless_its_searcher_learns(
    drawing: str, scheduler: str
) -> None:
    search = {"type": "define_by_run", "search": {"type": drawing}}
    done = simulate(
        lambda config, checkpoint: iter([Step({"loss": 1.0}, 1.0)]), {"x": uniform(0, 1)}, metric="loss", mode="min",
        max_t=3, num_samples=1, search_alg=search,
    )  # fmt: skip
    notes = [d.reason for d in done.decisions if isinstance(d, Note)]
    assert notes[0].startswith(f"scheduler auto: {scheduler}")


def test_the_log_says_what_was_chosen_and_why() -> None:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Any:
        for r in range((checkpoint or 0) + 1, 4):
            yield Step({"loss": config["x"] / r}, 1.0, r)

    done = simulate(evaluate, {"x": uniform(0, 1)}, metric="loss", mode="min", max_t=3, num_samples=9)
    notes = [d.reason for d in done.decisions if isinstance(d, Note)]
    assert (
        notes[0]
        == "scheduler auto: freeze_thaw with max_t 3: a model of the learning curves decides which trials to train"
    )
    assert notes[1].startswith("budget: 3 full trainings (9 iterations), shared by all trials")
    assert done.state == "completed"
