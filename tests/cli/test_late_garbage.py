"""A command collects garbage late, and then as the user wants it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tuner.cli.late_garbage import FIRST, collect_late


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.set_threshold(*before)
    gc.callbacks[:] = callbacks


@pytest.mark.parametrize("between", [FIRST, 10_000])
def test_the_first_collection_of_a_command_is_late_and_the_others_are_not(between: int) -> None:
    """between: the value that a part of the command sets, such as the service, or that of `collect_late`."""
    gc.set_threshold(701, 11)
    callbacks = list(gc.callbacks)
    collect_late()
    assert gc.get_threshold()[:2] == (FIRST, 11)
    gc.set_threshold(between, 11)
    gc.collect()
    assert gc.get_threshold()[0] == (701 if between == FIRST else between)
    assert gc.callbacks == callbacks


def test_garbage_that_is_never_collected_is_not_collected_late() -> None:
    gc.set_threshold(0)
    collect_late()
    assert gc.get_threshold()[0] == 0
