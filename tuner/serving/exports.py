"""`tuner.export`: write the best model of a search as files that other programs read."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from tuner.domain.segments import NO_SPACE
from tuner.errors import MissingPackage, SpecError, TunerError, text_of
from tuner.names import did_you_mean, with_extra
from tuner.serving.card import card, config_json
from tuner.serving.origin import Origin, Source, origin

try:
    import torch
except ImportError as error:
    raise MissingPackage(f"tuner.export needs PyTorch: {with_extra('export')} ({error})") from error

from tuner.trials.checkpoints.saver import FULL_BYTES
from tuner.trials.training.weights import load_model, load_weights

Format = Literal["safetensors", "torch_export", "onnx"]
NEEDS: dict[str, tuple[str, ...]] = {"safetensors": ("safetensors",), "onnx": ("onnx", "onnxscript")}
"""The libraries that each format needs besides torch."""
FILES: dict[str, str] = {"safetensors": "model.safetensors", "torch_export": "model.pt2", "onnx": "model.onnx"}


def export(
    source: Source,
    folder: str | os.PathLike[str],
    *,
    model: Any = None,
    formats: Sequence[Format] = ("safetensors",),
    example_input: Any = None,
    dynamic_batch: bool = True,
    config: Mapping[str, Any] | None = None,
    file: str | None = None,
    key: str | None = None,
) -> Path:
    """Write the best model of a search into a new folder, with a model card, and return the folder.

    ``tuner.export(result, "model", model=lambda config: Net(config["width"]), formats=["torch_export"], example_input=images)``

    The folder contains the model in each format, `config.json`, and `README.md` with the configuration, the metric and its
    best value, the experiment and the trial, the lineage of the weights, and library versions. The program of "torch_export"
    is run on the example input, and must return what the model returns. If anything fails, no folder is left behind.

    Args:
        source: a result, the id or name of an experiment in this home's database, or a checkpoint.
        folder: the folder to create. If it exists already, it must be empty.
        model: the model as it was trained, a function that makes it from the configuration, or the class of a
            LightningModule. Only "safetensors" does not need the model; without it, the file contains what
            `tuner.torch.load_weights` finds.
        formats: "safetensors": the weights, in `model.safetensors`. "torch_export": weights and code, in `model.pt2`, which
            `torch.export.load` reads without the class of the model. "onnx": the same in `model.onnx`, for other runtimes.
        example_input: an input of the model: a tensor, a tuple of positional arguments, or a dict of keyword arguments. An
            argument may be a list, tuple or dict of tensors; a model of one dict gets ``({"x": images},)``.
            "torch_export" and "onnx" need an example.
        dynamic_batch: let the first dimension of each tensor in `example_input` have any size, if the model can handle it.
            The example then needs at least two rows. False fixes all sizes.
        config: the configuration of the model, if `source` is a checkpoint.
        file: the file of the checkpoint with the weights, such as "model.pt" beside "optimizer.pt". By default, the only file
            with a common suffix.
        key: the key of the weights in this file. By default, a common key such as "model" or "state_dict".

    Raises:
        SpecError: a format is unknown, or a format lacks its model, its example input or its library.
        CheckpointError: there is no checkpoint, or its weights do not fit the model.
        TunerError: torch cannot export the model, or the exported program does not return what the model returns.
    """
    _check(formats, model, example_input)
    target = Path(folder).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SpecError(f"{target} exists already: name a new or empty folder", "/folder")
    found = origin(source, config)
    args, kwargs = _called_with(example_input)
    if dynamic_batch:
        _check_rows(formats, args, kwargs)
    made = None if model is None else _model(found, model, file, key)
    name = None if made is None else f"{type(made).__module__}.{type(made).__qualname__}"
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part"))
    try:
        aside.chmod(0o755)
        files: dict[str, str] = {}
        if "safetensors" in formats:
            weights = load_weights(found.checkpoint, file=file, key=key) if made is None else made.state_dict()
            files[FILES["safetensors"]] = _write_safetensors(aside / FILES["safetensors"], weights, found)
        if made is not None and {"torch_export", "onnx"} & set(formats):
            program = _program(made, args, kwargs, dynamic_batch)
            if "torch_export" in formats:
                path = aside / FILES["torch_export"]
                files[path.name] = _write_program(path, program, made, args, kwargs)
            if "onnx" in formats:
                files[FILES["onnx"]] = _write_onnx(aside / FILES["onnx"], program)
        (aside / "config.json").write_text(config_json(found, files, name, _shapes(args, kwargs)), encoding="utf-8")
        (aside / "README.md").write_text(card(found, files, name), encoding="utf-8")
        os.rename(aside, target)
    except Exception as error:
        if shutil.disk_usage(aside).free >= FULL_BYTES and NO_SPACE not in text_of(error):
            raise
        # The libraries that write the files name no path, and torch says only "unexpected pos 576 vs 534".
        raise TunerError(f"cannot write {target}: {NO_SPACE} ({text_of(error)})") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _check(formats: Sequence[str], model: Any, example_input: Any) -> None:
    if isinstance(formats, str) or not formats:
        raise SpecError(f"expected a list of {', '.join(FILES)}, got {formats!r}", "/formats")
    for name in formats:
        if name not in get_args(Format):
            raise SpecError(f"expected some of {', '.join(FILES)}, got {name!r}{did_you_mean(name, FILES)}", "/formats")
        missing = [library for library in NEEDS.get(name, ()) if importlib.util.find_spec(library) is None]
        if missing:
            raise SpecError(f"the format {name} needs {' and '.join(missing)}: {with_extra('export')}", "/formats")
        if name != "safetensors" and model is None:
            raise SpecError(f"the format {name} contains the code of the model: pass the model", "/model")
        if name != "safetensors" and example_input is None:
            raise SpecError(
                f"an export in the format {name} calls the model: pass an input to call it with", "/example_input"
            )


def _check_rows(formats: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if not {"torch_export", "onnx"} & set(formats):
        return
    for value in torch.utils._pytree.tree_leaves((args, kwargs)):
        if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] < 2:
            raise SpecError(
                f"a tensor has the shape {tuple(value.shape)}, but torch.export treats a single row as a fixed size: "
                "pass at least two rows, or dynamic_batch=False",
                "/example_input",
            )


def _called_with(example_input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if example_input is None:
        return (), {}
    if isinstance(example_input, Mapping):
        return (), dict(example_input)
    return (tuple(example_input) if isinstance(example_input, tuple | list) else (example_input,)), {}


def _model(found: Origin, model: Any, file: str | None, key: str | None) -> torch.nn.Module:
    if inspect.isclass(model):
        if hasattr(model, "load_from_checkpoint"):
            if file is not None or key is not None:
                where = "/key" if file is None else "/file"
                raise SpecError("a LightningModule is loaded from checkpoint.ckpt: leave file and key out", where)
            from tuner.trials.lightning.load import load_model as load_module  # Lightning may not be installed

            loaded: torch.nn.Module = load_module(found.checkpoint, model)
            return loaded
        raise SpecError(
            f"tuner does not know how to make a {model.__name__} from a configuration: pass a function that does, such as "
            f"lambda config: {model.__name__}(**config)",
            "/model",
        )
    made = model if isinstance(model, torch.nn.Module) else model(dict(found.config))
    if not isinstance(made, torch.nn.Module):
        raise SpecError(f"expected a torch.nn.Module or a function that returns one, got {made!r}", "/model")
    return load_model(found.checkpoint, made, file=file, key=key)


def _write_safetensors(path: Path, weights: Mapping[str, torch.Tensor], found: Origin) -> str:
    from safetensors.torch import save_file

    known = {"format": "pt", "experiment": found.experiment, "trial": found.trial, "metric": found.metric}
    # tensors are copied, because they cannot share memory in this format
    apart = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in weights.items()
        if isinstance(value, torch.Tensor)
    }
    path.touch()
    mode = (
        path.stat().st_mode
    )  # like that of the other files; some versions of safetensors let only the owner read theirs
    save_file(apart, path, {name: str(value) for name, value in known.items() if value is not None})
    path.chmod(mode)
    left_out = ", ".join(f"`{name}`" for name in weights if name not in apart)
    without = f", without {left_out}, which this format cannot hold" if left_out else ""
    return f"the weights: `safetensors.torch.load_file`{without}"


def _program(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_batch: bool) -> Any:
    shapes = None
    if dynamic_batch:
        rows = {0: torch.export.Dim.AUTO}

        def free(value: Any) -> Any:
            return rows if isinstance(value, torch.Tensor) and value.dim() > 0 else None

        with contextlib.suppress(TypeError):  # the example does not fit `forward`; torch.export says how
            signature = inspect.signature(model.forward)
            given = signature.bind(*args, **kwargs).arguments
            for name, parameter in signature.parameters.items():
                if parameter.kind is parameter.VAR_KEYWORD and name in given:
                    raise TunerError(
                        f"torch.export cannot export this {type(model).__name__} with a variable batch, because `forward` takes "
                        f"{', '.join(map(repr, given[name]))} in **{name}: name these arguments in `forward`, or pass "
                        "dynamic_batch=False"
                    )
            shapes = torch.utils._pytree.tree_map(free, dict(given))
    return _explained(
        "torch.export", model, lambda: torch.export.export(model, args, kwargs or None, dynamic_shapes=shapes)
    )


def _write_program(
    path: Path, program: Any, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    torch.export.save(program, path)
    again = torch.export.load(path).module()
    with torch.inference_mode():
        try:
            returned, expected = again(*args, **kwargs), model(*args, **kwargs)
            try:
                torch.testing.assert_close(returned, expected)
            except TypeError as error:
                raise TunerError(
                    f"the outputs of {type(model).__name__} cannot be compared with those of the exported program: make "
                    f"it return tensors, numbers, or lists or dicts of them ({str(error).splitlines()[0]})"
                ) from error
        except AssertionError as error:
            raise TunerError(
                f"the exported program does not return the same values as {type(model).__name__}: {error}"
            ) from error
    return "weights and code: `torch.export.load(file).module()` returns what the model returned for the example input"


def _write_onnx(path: Path, program: Any) -> str:
    def write() -> None:
        made = torch.onnx.export(program, (), dynamo=True, verbose=False)
        assert made is not None
        made.save(str(path))

    _explained("torch.onnx", program, write)
    return "weights and code, for ONNX runtimes"


def _explained(by: str, what: Any, act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Exception as error:  # torch raises exceptions of many classes
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise TunerError(f"{by} cannot export this {type(what).__name__}: {reason}") from error


def _shapes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the name, shape and type of each tensor in the example input. A tensor in a dict has a name such as "0['x']"."""
    tree = torch.utils._pytree
    return [
        {
            "name": f"{name}{tree.keystr(path)}",
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
        }
        for name, argument in [*enumerate(args), *kwargs.items()]
        for path, value in tree.tree_flatten_with_path(argument)[0]
        if isinstance(value, torch.Tensor)
    ]
