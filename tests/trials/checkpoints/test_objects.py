"""Objects that come with a training function."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.errors import EntrypointError, TunerError
from tuner.trials.checkpoints import objects
from tuner.trials.checkpoints.objects import Parameterized, Stored, store, with_parameters
from tuner.trials.compat.forms import as_function
from tuner.usercode.pickling import dumps


def train(config: dict[str, Any], data: Any, factor: int = 2) -> Any:
    return config["x"] * data * factor


def test_a_function_is_called_with_its_objects() -> None:
    whole = with_parameters(train, data=3)
    assert whole({"x": 1}) == 6
    assert with_parameters(whole, factor=5)({"x": 1}) == 15
    assert whole.__name__ == with_parameters(partial(train, factor=5), data=3).__name__ == "train"
    assert as_function(whole) is whole


def test_equal_objects_are_stored_once(tmp_path: Path) -> None:
    data = np.arange(1000.0)
    first, second = store("a", data, str(tmp_path)), store("b", data.copy(), str(tmp_path))
    assert first == second
    assert len(list((tmp_path / "objects").rglob("*.pkl"))) == 1
    assert np.array_equal(first.get(), data)
    assert store("c", data + 1, str(tmp_path)) != first


def test_an_object_is_asked_for_where_there_is_somebody_to_ask(tmp_path: Path) -> None:
    stored = store("a", "in the file", str(tmp_path))
    asked: list[Stored] = []
    objects.fetch_by(lambda which: asked.append(which) or "from the store")  # type: ignore[func-returns-value]
    try:
        assert Parameterized(train, {"data": stored}).given() == {"data": "from the store"}
    finally:
        objects.fetch_by(None)
    assert asked == [stored]
    assert stored.get() == "in the file"


def test_what_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    with pytest.raises(EntrypointError, match=r"the object 'lock' \(lock\) cannot be sent"):
        store("lock", threading.Lock(), str(tmp_path))


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    stored = store("a", 1, str(tmp_path))
    Path(stored.uri).unlink()
    with pytest.raises(TunerError, match=f"gone: {stored.uri}"):
        stored.get()


class TestSweep:
    """Objects that no experiment needs any more are deleted."""

    def stored(self, tmp_path: Path, value: Any, age: float = 2 * objects.KEEP_S) -> Stored:
        stored = store("a", value, str(tmp_path), "sqlite:///mine")
        then = time.time() - age
        os.utime(stored.uri, (then, then))
        return stored

    def sweep(self, tmp_path: Path, *functions: Any, database: str = "sqlite:///mine") -> int:
        return len(objects.sweep(str(tmp_path), database, lambda: [dumps(function) for function in functions]))

    def test_an_object_that_is_needed_stays_and_others_go(self, tmp_path: Path) -> None:
        needed, other = self.stored(tmp_path, 1), self.stored(tmp_path, 2)
        assert self.sweep(tmp_path, train, Parameterized(train, {"data": needed})) == 1
        assert needed.load() == 1
        assert not Path(other.uri).exists()
        assert self.sweep(tmp_path) == 1

    def test_a_new_one_stays_and_so_does_one_that_is_asked_for_again(self, tmp_path: Path) -> None:
        """Its experiment is created only after it was stored."""
        self.stored(tmp_path, 1, age=0.0)
        self.stored(tmp_path, 2)
        again = store("a", 2, str(tmp_path), "sqlite:///mine")
        assert self.sweep(tmp_path) == 0
        assert again.load() == 2

    def test_those_of_other_databases_stay(self, tmp_path: Path) -> None:
        stored = self.stored(tmp_path, 1)
        assert self.sweep(tmp_path, database="sqlite:///theirs") == 0
        assert stored.load() == 1

    def test_where_there_is_nothing_nobody_is_asked(self, tmp_path: Path) -> None:
        self.stored(tmp_path, 1, age=0.0)
        assert objects.sweep(str(tmp_path), "sqlite:///mine", lambda: pytest.fail("asked")) == []
        assert objects.sweep(str(tmp_path / "none"), "sqlite:///mine", lambda: pytest.fail("asked")) == []
