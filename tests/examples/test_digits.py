"""The example that the demo trains."""

from __future__ import annotations

import hashlib
import runpy
import sys

import pytest

from tuner.examples import digits


def of_sklearn() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "sklearn"]


def test_the_data_are_those_of_scikit_learn_which_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in of_sklearn():
        monkeypatch.delitem(sys.modules, name)
    training, validation = runpy.run_path(str(digits.__file__))["data"]()
    assert of_sklearn() == [], "a rank would spend two seconds of CPU on this import"
    for data, count, hashed in (
        (training, 1437, "3b80f44cb4d300b6"),
        (validation, 360, "96688cdd0b541403"),
    ):
        images, labels = data.tensors
        assert images.shape == (count, 1, 8, 8)
        both = images.numpy().tobytes() + labels.numpy().tobytes()
        assert hashlib.sha256(both).hexdigest()[:16] == hashed, "compared with load_digits when this was written"
