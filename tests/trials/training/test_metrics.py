from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from tuner.trials.training.metrics import LONGEST_NAME, MetricWarnings, flatten, numbers


def test_numbers_of_every_kind() -> None:
    flat = flatten(
        {
            "float": 0.5,
            "int": 3,
            "bool": True,
            "fraction": Fraction(1, 4),
            "numpy": np.float32(0.25),
            "numpy int": np.int64(7),
            "array": np.array(2.5),
            "tensor": torch.tensor(1.5),
            "grad": torch.tensor(1.5, requires_grad=True),
            "bfloat": torch.tensor(2.0, dtype=torch.bfloat16),
        }
    )
    assert flat == {
        "float": 0.5,
        "int": 3.0,
        "bool": 1.0,
        "fraction": 0.25,
        "numpy": 0.25,
        "numpy int": 7.0,
        "array": 2.5,
        "tensor": 1.5,
        "grad": 1.5,
        "bfloat": 2.0,
    }
    assert all(type(value) is float for value in flat.values())


def test_nested_metrics_flatten_with_slashes() -> None:
    assert flatten({"val": {"loss": 1, "top": {"5": 2}}, "lr": 3}) == {"val/loss": 1.0, "val/top/5": 2.0, "lr": 3.0}


def test_nan_and_infinity_pass() -> None:
    flat = flatten({"nan": float("nan"), "inf": torch.tensor(float("inf"))})
    assert flat["inf"] == float("inf")
    assert flat["nan"] != flat["nan"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0.5", "'val/x' must be a number, or an array or tensor of one element, not str '0.5'"),
        ([1], "not list [1]"),
        (np.zeros(3), "not numpy.ndarray of shape (3,)"),
        (torch.zeros(2, 1), "not torch.Tensor of shape (2, 1)"),
        (np.zeros(0), "not numpy.ndarray of shape (0,)"),
        (1j, "not complex 1j"),
        (torch.tensor(1j), "not complex 1j"),
        (np.array("text"), "not str 'text'"),
        (Decimal(1), "not decimal.Decimal Decimal('1')"),
        (10**400, "metric 'val/x' is too large for a float, which is at most 1.8e+308"),
        (-(10**400), "metric 'val/x' is too large"),
        (Fraction(10**400), "metric 'val/x' is too large"),
        (np.array(10**400, dtype=object), "metric 'val/x' is too large"),
    ],
)
def test_anything_else_is_an_error_that_names_the_key(value: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        flatten({"fine": 1, "val": {"x": value}})
    assert words in str(caught.value)
    assert "val/x" in str(caught.value)


def test_one_element_is_a_number_whatever_its_shape_and_none_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    odd = MetricWarnings("auc")
    for _ in range(2):
        flat = flatten(
            {"a": np.array([0.5]), "val": {"b": torch.ones(1, 1), "c": None}, "d": np.array(2.0), "auc": None}, odd
        )
        assert math.isnan(flat.pop("auc"))
        assert flat == {"a": 0.5, "val/b": 1.0, "d": 2.0}
    assert capsys.readouterr().err.splitlines() == [
        "metric 'a' is numpy.ndarray of shape (1,): its only element is reported",
        "metric 'val/b' is torch.Tensor of shape (1, 1): its only element is reported",
        "left out of the report: metric 'val/c', which is None",
        "the objective 'auc' is None in a report, which counts as NaN",
    ], "once for each"
    assert flatten({"a": None, "b": torch.ones(1)}) == {"b": 1.0}


def test_what_is_no_dict_or_has_odd_names() -> None:
    with pytest.raises(TypeError, match="metrics must be a dict of numbers, not float 0.5"):
        flatten(0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="metric names are non-empty strings, not 1"):
        flatten({1: 0.5})  # type: ignore[dict-item]
    for value in (1, 0.5):
        with pytest.raises(TypeError, match="metric names are non-empty strings, not ''"):
            flatten({"": value})
        for twice in ({"a/b": value, "a": {"b": 2}}, {"a": {"b": 2}, "a/b": value}):
            with pytest.raises(TypeError, match="metric 'a/b' is reported twice"):
                flatten(twice)
    longest = "é" * LONGEST_NAME
    assert flatten({longest: 0.5}) == {longest: 0.5}
    for metrics in ({longest + "x": 0.5}, {longest + "x": 1}, {longest[1:]: {"x": 0.5}}):
        with pytest.raises(TypeError, match="expected a metric name of at most 500 characters, got 501: 'éé"):
            flatten(metrics)


def test_only_what_is_no_number_is_left_out_of_a_dict_within_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    named: set[str] = set()
    for _ in range(2):
        found = numbers({"eval": {"loss": 0.5, "split": "test"}, "note": None}, named, "eval/loss")
        assert found == {"eval/loss": 0.5}
    told = capsys.readouterr().err
    assert [told.count("'eval/split'"), told.count("'note'")] == [1, 1], "named, and once"
    with pytest.raises(TypeError, match="'eval/loss' must be a number"):
        numbers({"eval": {"loss": "low"}}, named, "eval/loss")
