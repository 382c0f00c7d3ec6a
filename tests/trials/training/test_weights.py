"""Weights of a checkpoint, loaded into a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tuner
from tuner.errors import CheckpointError
from tuner.trials.checkpoints.checkpoints import Checkpoint


def a_model() -> torch.nn.Module:
    return torch.nn.Linear(3, 2)


def averaged(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights under the names that `torch.optim.swa_utils.AveragedModel` saves them with."""
    return {"n_averaged": torch.tensor(3), **{f"module.{name}": value for name, value in weights.items()}}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda weights: weights,
        lambda weights: {"model": weights, "optimizer": {"lr": 0.1}, "epoch": 3},
        lambda weights: {"state_dict": {f"module.{name}": value for name, value in weights.items()}},
        lambda weights: {f"_orig_mod.{name}": value for name, value in weights.items()},
        lambda weights: {f"module._orig_mod.{name}": value for name, value in weights.items()},
        lambda weights: averaged(weights),
        lambda weights: {"model": averaged({f"module.{name}": value for name, value in weights.items()})},
        lambda weights: {f"module.{name}": value for name, value in averaged(weights).items()},
    ],
    ids=[
        "alone",
        "under a name",
        "of DDP",
        "compiled",
        "compiled in DDP",
        "averaged",
        "averaged DDP",
        "averaged in DDP",
    ],
)
def test_the_best_model_is_loaded_with_one_line(tmp_path: Path, wrap: Any) -> None:
    trained = a_model()
    torch.save(wrap(trained.state_dict()), tmp_path / "state.pt")
    (tmp_path / "notes.txt").write_text("not weights")
    model = tuner.torch.load_model(Checkpoint(tmp_path), a_model())
    assert not model.training
    inputs = torch.ones(1, 3)
    assert torch.equal(model(inputs), trained(inputs))


def test_a_model_may_have_a_single_part_that_is_called_module(tmp_path: Path) -> None:
    def outer() -> torch.nn.Module:
        return torch.nn.ModuleDict({"module": a_model()})

    trained = outer()
    torch.save(trained.state_dict(), tmp_path / "state.pt")
    model = tuner.torch.load_model(Checkpoint(tmp_path), outer())
    assert torch.equal(model.state_dict()["module.weight"], trained.state_dict()["module.weight"])


def test_an_averaged_model_is_loaded_as_itself_or_as_the_model_inside(tmp_path: Path) -> None:
    trained = torch.optim.swa_utils.AveragedModel(torch.nn.ModuleDict({"module": a_model()}))
    trained.update_parameters(torch.nn.ModuleDict({"module": a_model()}))
    torch.save(trained.state_dict(), tmp_path / "state.pt")
    whole = tuner.torch.load_model(
        Checkpoint(tmp_path), torch.optim.swa_utils.AveragedModel(torch.nn.ModuleDict({"module": a_model()}))
    )
    assert whole.n_averaged.item() == 1
    inside = tuner.torch.load_model(Checkpoint(tmp_path), torch.nn.ModuleDict({"module": a_model()}))
    assert torch.equal(inside.state_dict()["module.weight"], trained.state_dict()["module.module.weight"])


class Compiled(torch.nn.Module):
    """Has the names of weights that `torch.compile` gives to a model."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._orig_mod = model


@pytest.mark.parametrize("compiled", [True, False])
def test_a_compiled_model_takes_the_weights_of_any_model(tmp_path: Path, compiled: bool) -> None:
    trained, new = a_model(), a_model()
    torch.save((Compiled(trained) if compiled else trained).state_dict(), tmp_path / "state.pt")
    tuner.torch.load_model(Checkpoint(tmp_path), Compiled(new))
    assert torch.equal(new(torch.ones(1, 3)), trained(torch.ones(1, 3)))


def test_what_cannot_be_loaded_is_explained(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    torch.save({"first": a_model().state_dict(), "epoch": 3}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="it has first, epoch"):
        tuner.torch.load_weights(checkpoint)
    assert set(tuner.torch.load_weights(checkpoint, key="first")) == {"weight", "bias"}
    with pytest.raises(CheckpointError, match="weights of another model"):
        tuner.torch.load_model(checkpoint, torch.nn.Linear(4, 2), key="first")
    with pytest.raises(CheckpointError, match=r"no file c\.pt"):
        tuner.torch.load_weights(checkpoint, file="c.pt")
    torch.save({}, tmp_path / "b.pt")
    with pytest.raises(CheckpointError, match="cannot tell which file"):
        tuner.torch.load_weights(checkpoint)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_damaged_file_is_not_taken_for_another_model(tmp_path: Path, share: float) -> None:
    torch.save(a_model().state_dict(), tmp_path / "a.pt")
    whole = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointError, match=r"a\.pt is damaged"):
        tuner.torch.load_model(Checkpoint(tmp_path), a_model())


def test_nothing_but_tensors_is_unpickled(tmp_path: Path) -> None:
    torch.save(Path, tmp_path / "state.pt")
    with pytest.raises(CheckpointError, match="more than tensors"):
        tuner.torch.load_weights(Checkpoint(tmp_path))
