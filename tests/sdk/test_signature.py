"""The signature of `tuner.run` is written out for editors; these tests compare it with the declared options."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Mapping
from typing import Any

import pytest

import tuner
from tuner.domain.experiment import Limits, Scaling, Spec
from tuner.sdk.generate import TARGET, generated

PARAMETERS = inspect.signature(tuner.run).parameters
HINTS = typing.get_type_hints(inspect.unwrap(tuner.run))
WIDER = {"num_workers": int | Mapping[str, int]}  # a range is taken apart when the spec is checked
LEFT_TO_NONE = {"resources_per_worker": None}  # a mapping, whose default is written as None and means the empty one


def declared() -> list[tuple[type, dataclasses.Field[Any]]]:
    top = [(Spec, option) for option in dataclasses.fields(Spec) if "description" in option.metadata]
    return top + [(kind, option) for kind in (Scaling, Limits) for option in dataclasses.fields(kind)]


@pytest.mark.parametrize(("kind", "option"), declared(), ids=lambda value: getattr(value, "name", None))
def test_every_option_is_a_parameter_with_the_declared_type_and_default(kind: type, option: Any) -> None:
    assert option.name in PARAMETERS, f"add {option.name} to tuner.run, or run python -m tuner.sdk.generate"
    default = LEFT_TO_NONE.get(option.name, option.default)
    hint = typing.get_type_hints(kind)[option.name]
    assert PARAMETERS[option.name].default == default
    assert HINTS[option.name] in (hint, hint | None, WIDER.get(option.name))


def test_the_options_of_scaling_and_limits_are_generated() -> None:
    assert TARGET.read_text() == generated(), "run python -m tuner.sdk.generate"


def test_every_parameter_is_described_in_the_order_of_the_signature() -> None:
    text = inspect.getdoc(tuner.run) or ""
    arguments = text[text.index("Args:") : text.index("Returns:")]
    assert re.findall(r"^    (\w+): \S", arguments, re.MULTILINE) == list(PARAMETERS)
