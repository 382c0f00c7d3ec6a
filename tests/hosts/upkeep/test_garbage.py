"""A long garbage collection is not repeated over the same objects, but they are still freed once nothing refers to them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from tuner.hosts.upkeep import garbage
from tuner.hosts.upkeep.garbage import ShortCollections


class Trial:
    """An object that the collector tracks."""


@pytest.fixture
def watched() -> Iterator[None]:
    short = ShortCollections()
    gc.freeze()  # collections look at what the tests make, and not at all that is loaded
    gc.disable()  # only the tests collect: Python would collect everything now and then, too
    short.begin()
    yield
    short.end()
    gc.enable()
    gc.unfreeze()


def test_objects_of_a_long_collection_are_left_out_of_later_ones(
    watched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "LONG_S", 0.0)
    before = gc.get_freeze_count()
    trials = [Trial() for _ in range(1000)]
    gc.collect(1)
    assert gc.get_freeze_count() <= before, "only full collections look at everything"
    before = gc.get_freeze_count()  # it shrinks if an object that earlier tests have left is freed
    gc.collect()
    assert gc.get_freeze_count() >= before + 1000
    last = weakref.ref(trials[-1])
    trials.clear()
    assert last() is None


def test_objects_of_a_short_collection_are_looked_at_again(watched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LONG_S", 60.0)
    before = gc.get_freeze_count()
    trials = [Trial() for _ in range(1000)]
    gc.collect()
    assert gc.get_freeze_count() <= before
    assert len(trials) == 1000
