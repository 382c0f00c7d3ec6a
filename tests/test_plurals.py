"""Test that numbers and their nouns agree."""

from __future__ import annotations

import pytest

from tuner.plurals import counted


@pytest.mark.parametrize(
    ("number", "form", "expected"),
    [
        (0, "", "0 reports"),
        (1, "", "1 report"),
        (2, "", "2 reports"),
        (1.0, "g", "1 report"),
        (1.004, ".3g", "1 report"),
        (0.5, "g", "0.5 reports"),
        (1234, ",", "1,234 reports"),
    ],
)
def test_a_noun_agrees_with_the_number_that_is_shown(number: float, form: str, expected: str) -> None:
    assert counted(number, "report", form) == expected
