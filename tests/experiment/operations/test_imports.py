"""Imported searches are checked before anything is written."""

from __future__ import annotations

import math

import pytest

from tests.store.examples import T0, a_spec
from tuner.errors import SpecError
from tuner.experiment.operations import imports
from tuner.experiment.operations.imports import ImportedTrial
from tuner.space import Space, choice, uniform
from tuner.store import Store
from tuner.store.records import IMPORTED


@pytest.mark.parametrize(("value", "refused"), [(1, False), (math.inf, True)])
def test_a_trial_outside_the_space_is_refused_before_anything_is_written(
    sqlite_store: Store, value: float, refused: bool
) -> None:
    space = Space.from_python({"clip": choice([1.0, math.inf])})
    trial = ImportedTrial(
        params={"clip": value},
        began=T0,
        ended=T0 + 1,
        reports=[(T0 + 1, {"loss": 0.5}, None)],
        outcome="completed",
        reason="done",
    )

    def write() -> None:
        imports.write(
            sqlite_store, name="clip", project="default", space=space, metrics=["loss"], modes=["min"], trials=[trial],
            origin="a test", scope="last",
        )  # fmt: skip

    if refused:
        with pytest.raises(SpecError, match="trial 0 has inf, which is not in the space") as caught:
            write()
        assert caught.value.errors[0][0] == "/space/clip"
    else:
        write()
    assert len(sqlite_store.experiments.page().items) == (0 if refused else 1)


@pytest.mark.parametrize("origin", ["this folder", "another folder"])
def test_an_import_replaces_what_an_interrupted_one_from_the_same_place_has_left(
    sqlite_store: Store, origin: str
) -> None:
    why = f"the import from {origin} is not complete"
    left = sqlite_store.experiments.create(a_spec("same"), source=IMPORTED, incomplete=why, now=T0)
    trial = ImportedTrial(
        params={"x": 0.5},
        began=T0,
        ended=T0 + 1,
        reports=[(T0 + 1, {"loss": 0.5}, None)],
        outcome="completed",
        reason="done",
    )
    made = imports.write(
        sqlite_store, name="same", project="default", space=Space.from_python({"x": uniform(0, 1)}), metrics=["loss"],
        modes=["min"], trials=[trial], origin="this folder", scope="last",
    )  # fmt: skip
    there = {one.public_id for one in sqlite_store.experiments.page().items}
    assert there == ({made.public_id} if origin == "this folder" else {made.public_id, left.public_id})
