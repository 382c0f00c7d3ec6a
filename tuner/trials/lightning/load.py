"""Load a LightningModule from a checkpoint that `ReportCallback` saved: `tuner.lightning.load_model`."""

from __future__ import annotations

import inspect
import os
import pickle
from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from tuner.errors import CheckpointError, WrongArgument
from tuner.trials.checkpoints.checkpoints import Checkpoint
from tuner.trials.lightning.report import FILE

M = TypeVar("M")
HYPERPARAMETERS = ("hyper_parameters", "hparams", "module_arguments")
"""The checkpoint keys under which Lightning looks for a module's arguments. Old versions used the last two."""
CODE = ("_instantiator", "_class_path")
"""Names of stored arguments with which a checkpoint can make Lightning call any function or class."""


def load_model(checkpoint: Checkpoint | None, module: type[M], *, trusted: bool = False, **hyperparameters: Any) -> M:
    """Return the LightningModule from a checkpoint that `ReportCallback` saved, on the CPU and in `eval()` mode.

    ``model = tuner.lightning.load_model(result.best_checkpoint, LitNet)``

    The module gets the arguments that its `save_hyperparameters()` stored. If the module does not call that method, pass the
    arguments yourself: ``load_model(result.best_checkpoint, LitNet, **result.best_config)``.

    Args:
        checkpoint: a checkpoint such as `result.best_checkpoint`.
        module: the class of the LightningModule.
        trusted: True to unpickle everything in the file, which can run code. By default, only tensors and plain values are
            unpickled, and a checkpoint is refused if it names a function or a class that creates the module.
        hyperparameters: arguments for the module. They override the arguments in the checkpoint.

    Raises:
        CheckpointError: there is no checkpoint, it was not saved by `ReportCallback`, an argument is missing, or the
            weights belong to another module. The message says which.
        RuntimeError: creating the module or loading its weights failed for another reason.
    """
    if checkpoint is None:
        raise CheckpointError("there is no checkpoint: the search has no best trial, or its function saved none")
    load = getattr(module, "load_from_checkpoint", None)
    if load is None or not inspect.isclass(module):
        raise WrongArgument(
            f"expected the class of a LightningModule, got {module!r}; tuner.torch.load_model loads weights into any module"
        )
    if "weights_only" in inspect.signature(load).parameters:
        hyperparameters["weights_only"] = not trusted
    with checkpoint.as_directory() as folder:
        path = os.path.join(folder, FILE)
        if os.path.isdir(path):
            raise CheckpointError(
                f"{FILE} in {checkpoint.path} is sharded: consolidate it with "
                f"`python -m lightning.pytorch.utilities.consolidate_checkpoint {path}`, and load the file that this writes"
            )
        if not os.path.exists(path):
            there = ", ".join(sorted(os.listdir(folder))) or "nothing"
            raise CheckpointError(
                f"{checkpoint.path} was not saved by ReportCallback: there is no {FILE}, only {there}; "
                "tuner.torch.load_model loads weights from other files"
            )
        if not trusted:
            _check(path)
        try:
            model: Any = load(path, map_location="cpu", **hyperparameters)
        except TypeError as error:
            if "required" not in str(error) or "argument" not in str(error):
                raise
            raise CheckpointError(
                f"{error}: call self.save_hyperparameters() in {module.__name__}, so that checkpoints have its arguments, "
                "or pass them to load_model by name"
            ) from error
        except RuntimeError as error:
            if "Error(s) in loading state_dict" not in str(error):
                raise
            raise CheckpointError(f"{checkpoint.path} has the weights of another module: {error}") from error
    model.eval()
    loaded: M = model
    return loaded


def _check(path: str) -> None:
    """Raise CheckpointError if loading a file could run code. Not all versions of Lightning check for this."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} has more than tensors and plain values, such as objects among the hyperparameters: "
            f"if you trust the author of the file, pass trusted=True ({str(error).splitlines()[0]})"
        ) from error
    except Exception as error:  # a damaged file can cause errors of many classes
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    for key in HYPERPARAMETERS:
        found = content.get(key) if isinstance(content, Mapping) else None
        named = [name for name in CODE if isinstance(found, Mapping) and name in found]
        if named:
            raise CheckpointError(
                f"the hyperparameters in {path} name code that creates the module, in {' and '.join(named)}: "
                "if you trust the author of the file, pass trusted=True"
            )
