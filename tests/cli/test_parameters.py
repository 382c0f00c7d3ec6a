"""The parameters of a search space at the command line."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.cli.parameters import parameter, space_of
from tuner.errors import SpecError


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("lr=loguniform(1e-4, 1e-1)", "loguniform", None),
        ("width=choice(16,32,64)", "choice", [16, 32, 64]),
        ("width=choice([16,32,64])", "choice", [16, 32, 64]),
        ("shape=choice([16, 32], [64])", "choice", [[16, 32], [64]]),
        ("optimizer=choice(adam, sgd)", "choice", ["adam", "sgd"]),
        ("model=choice(resnet-50, a/b)", "choice", ["resnet-50", "a/b"]),
        ("flag=choice(true, false, null)", "choice", ["true", "false", "null"]),
        ("flag=choice(True, False, None, 1)", "choice", [True, False, None, 1]),
        ("n=qrandint(2, 8, q=2)", "qrandint", None),
    ],
)
def test_parameters(text: str, kind: str, values: list[Any] | None) -> None:
    name, domain = parameter(text)
    assert name == text.partition("=")[0]
    assert kind in repr(domain)
    if values is not None:
        assert repr(domain) == f"choice(categories={values})"


def test_constants() -> None:
    assert parameter("epochs=3") == ("epochs", 3)
    assert parameter("data=/data/set one") == ("data", "/data/set one")
    assert parameter("kind=adam") == ("kind", "adam")
    assert parameter("flag=true") == ("flag", "true"), "as in choice(true, false)"
    assert parameter("flag=True") == ("flag", True)
    assert parameter("noise=uniform noise") == ("noise", "uniform noise")


def test_texts_that_need_quotes_are_said_to_need_them() -> None:
    with pytest.raises(SpecError, match=r'malformed: .*; put each text in quotes, as in choice\("v1.5","v2"\)'):
        parameter("version=choice(v1.5, v2)")


@pytest.mark.parametrize(
    "text",
    [
        "lr",
        "lr=",
        "=3",
        "lr=loguniform(1e-4",
        "lr=system(1)",
        "lr=loguniform(1)",
        "lr=os.system(1)",
        "lr={[]:1}",
    ],
)
def test_wrong_parameters_are_refused(text: str) -> None:
    with pytest.raises(SpecError) as refused:
        parameter(text)
    assert refused.value.errors[0][0] in ("/space", "/space/lr")


def test_all_mistakes_are_said_at_once() -> None:
    with pytest.raises(SpecError) as refused:
        space_of(["lr=0.1", "lr=0.2", "width=system(1)"])
    assert [pointer for pointer, _ in refused.value.errors] == ["/space", "/space/width"]
    assert "lr is given twice" in str(refused.value)
