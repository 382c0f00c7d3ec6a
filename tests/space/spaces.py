"""Hypothesis strategies for search spaces, in their JSON form."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["lr", "width", "a/b", "type", "mom~entum", "depth", "x", "0"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-1000, 1000), st.floats(-1e6, 1e6), st.text(max_size=4))
JSON = st.recursive(
    st.one_of(SCALARS, st.floats(), st.integers(), st.sampled_from(["uniform", "choice", "const", "tuple", "python"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(
                NAMES, st.sampled_from(["lower", "upper", "q", "categories", "values", "value", "items", "index"])
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@st.composite
def numeric(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(
        st.sampled_from(
            [
                "uniform",
                "loguniform",
                "quniform",
                "qloguniform",
                "randint",
                "lograndint",
                "qrandint",
                "qlograndint",
                "randn",
                "qrandn",
            ]
        )
    )
    log = "log" in kind
    if kind.endswith("randn"):
        data: dict[str, Any] = {"type": kind, "mean": draw(st.floats(-100, 100)), "sd": draw(st.floats(0.01, 100))}
        return data | ({"q": draw(st.sampled_from([0.1, 0.5, 2]))} if kind == "qrandn" else {})
    if kind.endswith("randint"):
        q = draw(st.integers(1, 7)) if kind.startswith("q") else 1
        lower = draw(st.integers(1 if log else -500, 500))
        upper = lower + draw(st.integers(2 * q, 2000))
        return {"type": kind, "lower": lower, "upper": upper} | ({"q": q} if kind.startswith("q") else {})
    if kind.startswith("q"):
        q_float = draw(st.sampled_from([0.1, 0.25, 1e-4, 3.0]))
        low = draw(st.integers(1 if log else -50, 50))
        high = low + draw(st.integers(1, 500))
        return {"type": kind, "lower": low * q_float, "upper": high * q_float, "q": q_float}
    if log:
        exponents = sorted([draw(st.floats(-12, 12)), draw(st.floats(-12, 12))])
        bounds = [math.pow(10, e) for e in exponents]
    else:
        bounds = sorted([draw(st.floats(-1e6, 1e6)), draw(st.floats(-1e6, 1e6))])
    if not bounds[0] < bounds[1]:
        bounds = [1.0, 2.0]
    return {"type": kind, "lower": bounds[0], "upper": bounds[1]}


def choices(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda kind, items: {"type": kind, "categories" if kind == "choice" else "values": items},
        st.sampled_from(["choice", "choice", "grid_search"]),
        st.lists(st.one_of(SCALARS, inner), min_size=1, max_size=4),
    )


def constants() -> st.SearchStrategy[Any]:
    return st.one_of(
        SCALARS, st.builds(lambda v: {"type": "const", "value": v}, st.dictionaries(NAMES, SCALARS, max_size=2))
    )


PART = st.recursive(
    st.one_of(numeric(), constants()),
    lambda inner: st.one_of(
        choices(inner),
        st.dictionaries(NAMES.filter(lambda n: n != "type"), inner, max_size=3),
        st.lists(inner, max_size=3),
        st.builds(lambda items: {"type": "tuple", "items": items}, st.lists(inner, max_size=2)),
    ),
    max_leaves=8,
)
SPACES = st.dictionaries(NAMES, PART, max_size=5)
