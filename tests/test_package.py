"""`import tuner` is light, and every public name is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tuner


def test_import_loads_nothing_heavy() -> None:
    heavy = {"torch", "ray", "sqlalchemy", "optuna", "numpy", "fastapi", "httpx"}
    code = f"import tuner, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_api_loads_no_models_and_no_ray() -> None:
    """A service answers as soon as this is loaded."""
    heavy = {"torch", "ray", "scipy", "optuna", "pandas", "sklearn"}
    code = f"import tuner.api.app, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", tuner.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(tuner, name) is not None


def test_public_names_are_sorted_and_shown() -> None:
    assert list(tuner.__all__) == sorted(tuner.__all__)
    assert set(tuner.__all__) <= set(dir(tuner))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        tuner.rum  # noqa: B018


def test_torch_and_lightning_can_be_imported_as_modules() -> None:
    from tuner.lightning import ReportCallback
    from tuner.torch import prepare_model

    assert tuner.torch.prepare_model is prepare_model
    assert tuner.lightning.ReportCallback is ReportCallback
