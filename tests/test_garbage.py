"""Garbage is collected less often while modules are imported, and as the user wants it afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tuner.garbage import FIRST, RARELY, collect_late, rarely_collected


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.set_threshold(*before)
    gc.callbacks[:] = callbacks


def test_within_a_block_garbage_is_collected_rarely() -> None:
    gc.set_threshold(701, 11)
    with pytest.raises(ImportError), rarely_collected():
        assert gc.get_threshold()[:2] == (RARELY, 11)
        with rarely_collected():
            pass
        assert gc.get_threshold()[0] == RARELY, "the outer block goes on"
        raise ImportError
    assert gc.get_threshold()[:2] == (701, 11)


def test_what_users_set_stays() -> None:
    gc.set_threshold(0)
    with rarely_collected():
        collect_late()
        assert gc.get_threshold()[0] == 0
    gc.set_threshold(701)
    with rarely_collected():
        gc.set_threshold(5_000)
    assert gc.get_threshold()[0] == 5_000


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
