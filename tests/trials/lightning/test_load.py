"""`tuner.lightning.load_model`: from the checkpoint of a Lightning trial to a module that predicts."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import tuner
from tests.trials.lightning.cases import FLAVOURS, loaders, trainer, trial
from tuner.errors import CheckpointError
from tuner.trials.checkpoints.checkpoints import Checkpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Kind:
    """Something among the hyperparameters that is no plain value."""


def lit_net(flavour: str, *, keeps: bool) -> Any:
    """Return the class of a module with one hyperparameter, which it saves if `keeps`."""
    pl = importlib.import_module(flavour)

    class LitNet(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, width: int, kind: Any = None) -> None:
            super().__init__()
            if keeps:
                self.save_hyperparameters()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Dropout(), torch.nn.Linear(width, 1))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layers(inputs)
            return out

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

        def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
            self.log("val_loss", torch.nn.functional.mse_loss(self(batch[0]), batch[1]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return LitNet


def saved_by_a_trial(flavour: str, model: Any) -> Checkpoint:
    """Return the checkpoint that a trial of one epoch leaves with."""
    with trial(leave_at=1) as driver:
        tuner.lightning.prepare_trainer(trainer(flavour, max_epochs=2)).fit(model, *loaders())
    assert driver.saved is not None
    return driver.saved


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_one_line_loads_the_best_module(flavour: str) -> None:
    LitNet = lit_net(flavour, keeps=True)
    trained = LitNet(width=5)
    checkpoint = saved_by_a_trial(flavour, trained)
    model = tuner.lightning.load_model(checkpoint, LitNet)
    assert not model.training
    assert model.hparams.width == 5
    inputs = torch.ones(2, 4)
    assert torch.equal(model(inputs), trained.eval()(inputs))


def test_a_module_that_saves_no_hyperparameters_gets_them_from_the_caller() -> None:
    LitNet = lit_net("lightning.pytorch", keeps=False)
    trained = LitNet(width=5)
    checkpoint = saved_by_a_trial("lightning.pytorch", trained)
    with pytest.raises(
        CheckpointError, match=r"'width': call self.save_hyperparameters\(\) in LitNet, .* or pass them"
    ):
        tuner.lightning.load_model(checkpoint, LitNet)
    with pytest.raises(CheckpointError, match="has the weights of another module: "):
        tuner.lightning.load_model(checkpoint, LitNet, width=6)
    model = tuner.lightning.load_model(checkpoint, LitNet, width=5)
    assert torch.equal(model.layers[0].weight, trained.layers[0].weight)


def test_objects_among_the_hyperparameters_are_unpickled_only_if_trusted() -> None:
    LitNet = lit_net("lightning.pytorch", keeps=True)
    checkpoint = saved_by_a_trial("lightning.pytorch", LitNet(width=5, kind=Kind()))
    with pytest.raises(CheckpointError, match="more than tensors and plain values.*trusted=True"):
        tuner.lightning.load_model(checkpoint, LitNet)
    assert isinstance(tuner.lightning.load_model(checkpoint, LitNet, trusted=True).hparams.kind, Kind)


def test_what_cannot_be_loaded_is_explained(tmp_path: Path) -> None:
    LitNet = lit_net("lightning.pytorch", keeps=True)
    with pytest.raises(CheckpointError, match="there is no checkpoint: the search has no best trial"):
        tuner.lightning.load_model(None, LitNet)
    with pytest.raises(TypeError, match=r"expected the class of a LightningModule.*tuner.torch.load_model"):
        tuner.lightning.load_model(Checkpoint(tmp_path), torch.nn.Linear)
    (tmp_path / "state.pt").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"not saved by ReportCallback: there is no checkpoint.ckpt, only state.pt"
    ):
        tuner.lightning.load_model(Checkpoint(tmp_path), LitNet)
    (tmp_path / "checkpoint.ckpt").mkdir()
    with pytest.raises(CheckpointError, match="is sharded: consolidate it with `python -m lightning.pytorch.utilities"):
        tuner.lightning.load_model(Checkpoint(tmp_path), LitNet)


def test_a_class_that_loads_in_its_own_way_unpickles_no_objects(tmp_path: Path) -> None:
    class Own(torch.nn.Linear):
        @classmethod
        def load_from_checkpoint(cls, path: str, **options: Any) -> Any:
            torch.load(path, weights_only=False)
            return cls(2, 1)

    torch.save({"state_dict": {}, "hyper_parameters": {"kind": Kind()}}, tmp_path / "checkpoint.ckpt")
    with pytest.raises(CheckpointError, match="more than tensors and plain values.*trusted=True"):
        tuner.lightning.load_model(Checkpoint(tmp_path), Own)
    assert isinstance(tuner.lightning.load_model(Checkpoint(tmp_path), Own, trusted=True), Own)
    (tmp_path / "checkpoint.ckpt").write_bytes(b"damaged")
    with pytest.raises(CheckpointError):
        tuner.lightning.load_model(Checkpoint(tmp_path), Own)


@pytest.mark.parametrize("key", ["hyper_parameters", "module_arguments"])
@pytest.mark.parametrize("name", ["_instantiator", "_class_path"])
def test_a_checkpoint_that_names_code_is_refused(tmp_path: Path, key: str, name: str) -> None:
    LitNet = lit_net("lightning.pytorch", keeps=True)
    torch.save({"state_dict": {}, key: {"width": 5, name: "os.system"}}, tmp_path / "checkpoint.ckpt")
    with pytest.raises(CheckpointError, match=f"name code that creates the module, in {name}: .*trusted=True"):
        tuner.lightning.load_model(Checkpoint(tmp_path), LitNet)


def test_an_error_of_the_module_keeps_its_words(tmp_path: Path) -> None:
    class Broken(torch.nn.Linear):
        @classmethod
        def load_from_checkpoint(cls, path: str, **options: Any) -> Any:
            raise RuntimeError("no such device")

    torch.save({}, tmp_path / "checkpoint.ckpt")
    with pytest.raises(RuntimeError, match=r"^no such device$"):
        tuner.lightning.load_model(Checkpoint(tmp_path), Broken)
