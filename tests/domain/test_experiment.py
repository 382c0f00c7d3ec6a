"""Test copies of a spec."""

from __future__ import annotations

import dataclasses

import pytest

from tests.store.examples import a_spec


def test_a_copy_of_a_spec_is_as_with_dataclasses() -> None:
    spec = dataclasses.replace(a_spec(), resolved={"search": None}, tags={"a": "b"})
    copy = spec.replaced(code="c", resolved={"search": {}})
    expected = dataclasses.replace(spec, code="c", resolved={"search": {}})
    assert (copy, copy.resolved) == (expected, expected.resolved)
    assert dataclasses.asdict(copy) == dataclasses.asdict(expected)
    assert (spec.code, spec.resolved) == (None, {"search": None})
    with pytest.raises(TypeError, match="no sped"):
        spec.replaced(sped=1)
