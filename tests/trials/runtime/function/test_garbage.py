"""Garbage is collected less often while modules are imported, and as the user wants it afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tuner.trials.runtime.function.garbage import RARELY, rarely_collected


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


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
        assert gc.get_threshold()[0] == 0
    gc.set_threshold(701)
    with rarely_collected():
        gc.set_threshold(5_000)
    assert gc.get_threshold()[0] == 5_000
