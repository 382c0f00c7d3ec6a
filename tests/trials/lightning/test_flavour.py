"""Find the Lightning package that the user means, and do not import the other one."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

import tuner
from tests.trials.lightning.cases import FLAVOURS, trainer, trial
from tuner.errors import SpecError
from tuner.trials.lightning.flavour import flavour_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")
from tuner.lightning import RayStrategy, ReportCallback, prepare_trainer
import {mine} as pl
trainer = pl.Trainer(strategy=RayStrategy(2), callbacks=[ReportCallback("loss")], logger=False)
assert prepare_trainer(trainer) is trainer
assert isinstance(trainer.strategy, pl.strategies.DDPStrategy) and isinstance(trainer.callbacks[0], pl.Callback)
assert trainer.world_size == 2 and trainer.strategy.launcher is not None
assert "{other}" not in sys.modules and "ray.train" not in sys.modules
"""


@pytest.mark.parametrize("flavour", [FLAVOURS[0], pytest.param(FLAVOURS[1], marks=pytest.mark.long)])
def test_only_the_imported_one_is_used(flavour: str) -> None:
    (other,) = set(FLAVOURS) - {flavour}
    code = SCRIPT.format(mine=flavour, other=other)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_where_both_are_imported_the_one_that_the_caller_uses_is_meant(flavour: str) -> None:
    for name in FLAVOURS:
        importlib.import_module(name)
    names: dict[str, Any] = {
        "Trainer": importlib.import_module(flavour).Trainer,
        "RayStrategy": tuner.lightning.RayStrategy,
    }
    exec("made = RayStrategy(2)", names)
    assert flavour_of(names["made"]).pytorch == flavour


def test_where_that_does_not_tell_it_asks() -> None:
    for name in FLAVOURS:
        importlib.import_module(name)
    with pytest.raises(SpecError, match='lightning="pytorch_lightning"'):
        exec("RayStrategy(2)", {"RayStrategy": tuner.lightning.RayStrategy})
    with pytest.raises(SpecError, match="got 'keras'"):
        tuner.lightning.RayStrategy(2, lightning="keras")
    made = tuner.lightning.RayStrategy(2, lightning="pytorch_lightning")
    assert isinstance(made, importlib.import_module("pytorch_lightning").strategies.DDPStrategy)


def test_something_else_is_no_trainer() -> None:
    with trial(), pytest.raises(TypeError, match="expected a Lightning object"):
        tuner.lightning.prepare_trainer(object())


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_notebook_may_use_it(flavour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connector = importlib.import_module(f"{flavour}.trainer.connectors.accelerator_connector")
    monkeypatch.setattr(connector, "_IS_INTERACTIVE", True)
    made = trainer(flavour, strategy=tuner.lightning.RayStrategy(2, lightning=flavour))
    assert made.strategy.launcher.is_interactive_compatible


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_in_a_trial_a_ray_strategy_starts_nothing(flavour: str) -> None:
    made = trainer(flavour, strategy=tuner.lightning.RayStrategy(2, lightning=flavour))
    with trial():
        tuner.lightning.prepare_trainer(made)
    assert (made.strategy.launcher, made.world_size) == (None, 1)
