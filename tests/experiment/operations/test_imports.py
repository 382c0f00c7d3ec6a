"""Imported searches are checked before anything is written."""

from __future__ import annotations

import math

import pytest

from tests.store.examples import T0
from tuner.errors import SpecError
from tuner.experiment.operations import imports
from tuner.experiment.operations.imports import ImportedTrial
from tuner.space import Space, choice
from tuner.store import Store


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
