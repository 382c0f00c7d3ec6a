"""The parameters of a search space at the command line: `--param lr=loguniform(1e-4,1e-1)`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from tuner import space
from tuner.errors import ErrorCollector, SpecError

PRIMITIVES = (
    "choice", "grid_search", "lograndint", "loguniform", "qlograndint", "qloguniform", "qrandint", "qrandn", "quniform",
    "randint", "randn", "uniform",
)  # fmt: skip
LISTS = ("choice", "grid_search")
"""The primitives that take a list, whose brackets may be left out."""


def space_of(params: Sequence[str]) -> dict[str, Any]:
    """Return the search space of parameters such as ``lr=loguniform(1e-4, 1e-1)``. Raise one SpecError for all mistakes."""
    mistakes = ErrorCollector()
    found: dict[str, Any] = {}
    for text in params:
        with mistakes:
            name, domain = parameter(text)
            if name in found:
                raise SpecError(f"{name} is given twice", "/space")
            found[name] = domain
    mistakes.check()
    return found


def parameter(text: str) -> tuple[str, Any]:
    """Return the name and the domain in a text such as ``width=choice(16, 32)``. Raise SpecError if it is malformed."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise SpecError(f"expected NAME=VALUE such as lr=loguniform(1e-4,1e-1), got {text!r}", "/space")
    value = value.strip()
    try:
        tree = ast.parse(value, mode="eval").body
    except SyntaxError as error:
        if (kind := value.partition("(")[0]) in PRIMITIVES and "(" in value:
            quotes = f'; put each text in quotes, as in {kind}("v1.5","v2")' if kind in LISTS else ""
            raise SpecError(
                f"{text!r} begins with {kind}( but is malformed: {error.msg}{quotes}", f"/space/{name.strip()}"
            ) from error
        return name.strip(), value  # a constant, such as a path
    if not isinstance(tree, ast.Call):
        return name.strip(), _constant(tree, value)
    kind = tree.func.id if isinstance(tree.func, ast.Name) else ast.unparse(tree.func)
    if kind not in PRIMITIVES:
        raise SpecError(f"expected one of {', '.join(PRIMITIVES)}, got {kind!r} in {text!r}", f"/space/{name.strip()}")
    positional = [_constant(part, _written(part, value)) for part in tree.args]
    named = {word.arg: _constant(word.value, _written(word.value, value)) for word in tree.keywords if word.arg}
    if kind in LISTS and not (len(positional) == 1 and isinstance(positional[0], list | tuple)):
        positional = [positional]
    try:
        return name.strip(), getattr(space, kind)(*positional, **named)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{text}: {error}", f"/space/{name.strip()}") from error


def _written(part: ast.expr, whole: str) -> str:
    """Return a part of the text as it was written: ``resnet-50``, which `ast.unparse` writes with blanks around its minus."""
    return ast.get_source_segment(whole, part) or ast.unparse(part)


def _constant(tree: ast.expr, text: str) -> Any:
    """Return the value of a literal. Return any other text unchanged, so that ``choice(adam, sgd)`` needs no quotes."""
    try:
        return ast.literal_eval(tree)
    except ValueError:
        return text
    except TypeError as error:  # a list as a key
        raise SpecError(f"{text!r} is malformed: {error}", "/space") from error
