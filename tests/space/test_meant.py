"""Find constants that were meant as parameters."""

from __future__ import annotations

from typing import Any

import pytest

import tuner
from tests.driver.bench import Bench
from tuner.space.meant import meant_as_parameters

CHOICE = '{"type": "choice", "categories": ...} (in Python tuner.choice(...))'
UNIFORM = '{"type": "uniform", "lower": ..., "upper": ...} (in Python tuner.uniform(...))'
ANY_CHOICE = CHOICE.replace("...}", "[...]}").replace("(...)", "([...])")
BOUNDS = UNIFORM.replace("(...)", "(lower, upper)")


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ("uniform(0, 1)", UNIFORM),
        (" tune.uniform(0,1)", UNIFORM),
        ("tuner.choice([1, 2])", CHOICE),
        ("randn()", '{"type": "randn"} (in Python tuner.randn(...))'),
        ({"lower": 0, "upper": 1}, BOUNDS),
        ({"min": 0, "max": 1}, BOUNDS),
        ({"distribution": "log_uniform_values", "min": 0.1, "max": 1}, BOUNDS),
        ({"values": [1, 2]}, ANY_CHOICE),
        ([16, 32], ANY_CHOICE),
    ],
)
def test_a_constant_with_the_look_of_a_parameter_gets_a_note_with_the_form_to_write(value: Any, form: str) -> None:
    (note,) = meant_as_parameters({"net": {"lr": value}}, searched=False)
    assert note.startswith("net/lr has the same value in all trials, ")
    assert note.endswith(f"If you mean a parameter, write {form}")


@pytest.mark.parametrize(
    "value",
    [
        "uniform",
        "uniform (0, 1) noise",
        3,
        None,
        {"type": "const", "value": "uniform(0, 1)"},
        {"lower": "a", "upper": "b"},
    ],
)
def test_other_constants_get_no_note(value: Any) -> None:
    assert list(meant_as_parameters({"lr": value}, searched=False)) == []


def test_lists_and_bounds_beside_parameters_are_constants() -> None:
    space = {"layers": [64, 64], "clip": {"min": 0, "max": 1}, "lr": {"type": "uniform", "lower": 0, "upper": 1}}
    assert list(meant_as_parameters(space, searched=True)) == []


def test_the_log_of_a_search_begins_with_the_note() -> None:
    bench = Bench(space={"lr": "uniform(0, 1)"}, num_samples=1)
    notes = [entry.reason for _, entry in bench.log if entry.KIND == "note"]
    assert any(note.startswith("lr has the same value in all trials, str 'uniform(0, 1)'") for note in notes)


@pytest.mark.parametrize(
    "options",
    [
        {"space": {"layers": [64, 64], "lr": tuner.sample_from(lambda config: 0.1)}},
        {"space": {"layers": [64, 64]}, "search": {"type": "define_by_run"}},
    ],
    ids=["sample_from", "define_by_run"],
)
def test_lists_are_constants_if_configurations_differ_without_parameters_in_the_space(options: dict[str, Any]) -> None:
    bench = Bench(num_samples=1, **options)
    assert not [entry.reason for _, entry in bench.log if entry.KIND == "note" and "layers" in entry.reason]
