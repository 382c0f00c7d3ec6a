"""Load the weights in a checkpoint into a model: `tuner.torch.load_model`."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from tuner.errors import CheckpointError
from tuner.trials.checkpoints.checkpoints import Checkpoint

M = TypeVar("M", bound=torch.nn.Module)

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar")
"""The suffixes by which a file with weights is recognized."""
KEYS = ("model", "state_dict", "model_state_dict", "model_state", "net", "weights", "module")
"""The keys under which weights are looked for in a file."""

_WRAPPED = "module."
"""The prefix of all names of weights in a model that DistributedDataParallel or an AveragedModel has wrapped."""
_AVERAGED = "n_averaged"
"""The name under which torch's AveragedModel counts, beside the weights of the model that it has wrapped."""
_COMPILED = "_orig_mod."
"""The part of the names of weights in a model, or in a part of one, that `torch.compile` has wrapped."""


def load_weights(
    checkpoint: Checkpoint | None, *, file: str | None = None, key: str | None = None
) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint, as CPU tensors by name. Only tensors and plain values are unpickled.

    If DistributedDataParallel, an AveragedModel or `torch.compile` has wrapped the model, the names are those of the model in it.

    Args:
        checkpoint: a checkpoint such as `result.best_checkpoint`.
        file: the file with the weights. By default, the only file with a common suffix such as ".pt".
        key: the key of the weights in this file. By default, a common key such as "model" or "state_dict".

    Raises:
        CheckpointError: there are no weights, or they are not tensors. The message lists the files or keys that exist.
    """
    return _layers(_saved(checkpoint, file, key))[-1]


def _saved(checkpoint: Checkpoint | None, file: str | None, key: str | None) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint under the names that they were saved with, without those of `torch.compile`."""
    if checkpoint is None:
        raise CheckpointError("there is no checkpoint: the search has no best trial, or its function saved none")
    with checkpoint.as_directory() as folder:
        name = file or _only_file(checkpoint, folder)
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            raise CheckpointError(f"no file {name} in {checkpoint.path}; it has {', '.join(_files(folder))}")
        saved = _read(path)
    found = _weights(saved, key)
    if found is None:
        known = ", ".join(map(str, saved)) if isinstance(saved, Mapping) else type(saved).__name__
        asked = f"{key!r} is not a mapping of names to tensors" if key else "no usual key has weights; pass key="
        raise CheckpointError(f"{name} in {checkpoint.path}: {asked}; it has {known}")
    return {name.replace(_COMPILED, ""): value for name, value in found.items()}


def _layers(weights: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Return the weights as they were saved, and then under the names of the model inside each wrapper."""
    layers = [weights]
    unwrapped = {"averaged": False, "parallel": False}
    while True:
        inside = {name: value for name, value in layers[-1].items() if name != _AVERAGED}
        wrapper = "averaged" if _AVERAGED in layers[-1] else "parallel"
        if unwrapped[wrapper] or not inside or not all(name.startswith(_WRAPPED) for name in inside):
            return layers
        unwrapped[wrapper] = True
        layers.append({name.removeprefix(_WRAPPED): value for name, value in inside.items()})


def load_model(checkpoint: Checkpoint | None, model: M, *, file: str | None = None, key: str | None = None) -> M:
    """Load the weights in a checkpoint into a model, switch the model to `eval()`, and return it.

    ``model = tuner.torch.load_model(result.best_checkpoint, Net(**result.best_config))``

    Args:
        checkpoint: a checkpoint such as `result.best_checkpoint`.
        model: a model of the same architecture.
        file: the file with the weights; see `load_weights`.
        key: the key of the weights in this file; see `load_weights`.

    Raises:
        CheckpointError: there are no weights in the checkpoint, or they do not fit the model.
    """
    layers = _layers(_saved(checkpoint, file, key))
    names = {name.replace(_COMPILED, ""): name for name in model.state_dict()}  # the model may be compiled itself
    # If a part of the model is called "module", the last layer is too deep.
    weights = next((layer for layer in layers if layer.keys() == names.keys()), layers[-1])
    try:
        model.load_state_dict({names.get(name, name): value for name, value in weights.items()})
    except RuntimeError as error:
        assert checkpoint is not None
        raise CheckpointError(f"{checkpoint.path} has the weights of another model: {error}") from error
    model.eval()
    return model


def _read(path: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} has more than tensors and plain values, so it is not loaded; if you trust it, call torch.load yourself"
        ) from error
    except (EOFError, RuntimeError) as error:
        reason = str(error).partition("\n")[0] or "it ends too early"
        raise CheckpointError(f"{path} is damaged or is not a file of torch.save: {reason}") from error


def _weights(saved: Any, key: str | None) -> dict[str, torch.Tensor] | None:
    if key is not None:
        return _tensors(saved.get(key)) if isinstance(saved, Mapping) else None
    if (whole := _tensors(saved)) is not None:
        return whole
    parts = [_tensors(saved[name]) for name in KEYS if isinstance(saved, Mapping) and name in saved]
    return next((part for part in parts if part is not None), None)


def _tensors(value: Any) -> dict[str, torch.Tensor] | None:
    if not isinstance(value, Mapping) or not value or not all(isinstance(one, torch.Tensor) for one in value.values()):
        return None
    return {str(name): one for name, one in value.items()}


def _files(folder: str) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(root, name), folder) for root, _, names in os.walk(folder) for name in names
    )


def _only_file(checkpoint: Checkpoint, folder: str) -> str:
    files = _files(folder)
    found = [name for name in files if name.endswith(SUFFIXES)]
    if len(found) != 1:
        raise CheckpointError(
            f"cannot tell which file in {checkpoint.path} has the weights; pass file=, one of {', '.join(files)}"
        )
    return found[0]
