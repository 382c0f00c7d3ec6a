"""Copy the results from a worker's Trainer to the script's Trainer, as if the script itself had trained.

The results are weights, metrics, the progress of the loops, and the attributes of callbacks, loggers and the module. If
an attribute refers to the trainer, a callback or a layer of the model, only the name of that object is sent, because the
script has it too.
"""

from __future__ import annotations

import io
import logging
import pickle
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch.nn.parameter import is_lazy

from tuner.trials.lightning.switches import generators, set_generators

log = logging.getLogger(__name__)

_LOOPS = ("fit_loop", "validate_loop", "test_loop", "predict_loop")
_METRICS = ("callback_metrics", "logged_metrics", "progress_bar_metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """One rank's results. Ranks other than 0 set only `results` and `shards`."""

    results: bytes  # the value that the Trainer's method returned
    shards: tuple[int | None, ...] = ()  # the batch size of each predict loader; None if it was not divided among ranks
    weights: bytes | None = None
    state: bytes = b""
    metrics: bytes = b""
    loops: bytes = b""
    generators: Any = None  # the states of the random generators, from which the script continues
    parts: bytes = b""  # the value of `_parts`, in a single pickle, so that shared objects stay shared


def landmarks(trainer: Any) -> dict[str, Any]:
    """Return the objects that both the script and the worker have, by name: the trainer, its callbacks, the layers and so on."""
    module = trainer.lightning_module
    found = {"trainer": trainer, "strategy": trainer.strategy, "datamodule": trainer.datamodule}
    found["profiler"] = trainer.profiler
    found |= {f"callback {index}": callback for index, callback in enumerate(trainer.callbacks)}
    found |= {f"logger {index}": logger for index, logger in enumerate(trainer.loggers)}
    found |= {f"module {name}": part for name, part in module.named_modules(remove_duplicate=False)}
    found |= {f"parameter {name}": part for name, part in module.named_parameters(remove_duplicate=False)}
    return {name: thing for name, thing in found.items() if thing is not None}


def collect(
    trainer: Any, known: Mapping[str, Any], results: Any, weights: Mapping[str, Any] | None, *, sharded: bool
) -> Returned:
    """Collect the results on a worker after the Trainer's method has run. known: the `landmarks` from before the run."""
    if not trainer.is_global_zero:
        return Returned(results=_dump(results) if trainer.state.fn == "predict" else b"", shards=_shards(trainer))
    return Returned(
        results=_dump(results),
        shards=_shards(trainer),
        weights=_dump(dict(weights)) if weights is not None else None,
        state=pickle.dumps(trainer.state),
        metrics=_dump({name: dict(getattr(trainer, name)) for name in _METRICS}),
        loops=_dump(
            {"should_stop": trainer.should_stop, **{name: getattr(trainer, name).state_dict() for name in _LOOPS}}
        ),
        generators=generators(),
        parts=_pickled(_parts(trainer, known, sharded), {id(thing): name for name, thing in known.items()}),
    )


def _parts(trainer: Any, known: Mapping[str, Any], sharded: bool) -> dict[str, dict[str, Any]]:
    """Return the attributes to send to the script: a dict of attributes for each object, by the object's name.

    The entry "callbacks" has the Trainer's callbacks in order, including those from the module's `configure_callbacks`,
    which were added on the worker. The entry "layers" has the layers that the module created in `setup` or
    `configure_model`. It is empty if the module is sharded, since each worker then has only part of the module.
    """
    carried = ("callback ", "logger ", "profiler")
    return {
        **{name: _attributes(thing) for name, thing in known.items() if name.startswith(carried)},
        "module ": _public(trainer.lightning_module),
        "callbacks": {str(index): callback for index, callback in enumerate(trainer.callbacks)},
        "layers": {} if sharded else _new_layers(trainer.lightning_module, known),
    }


def hand_back(trainer: Any, returned: Returned) -> None:
    """Copy the worker's results to the script's `trainer` and its model, as if the script itself had trained."""
    known = landmarks(trainer)
    module = trainer.lightning_module
    parts = _Unpickler(io.BytesIO(returned.parts), known).load()
    for path, layer in parts.pop("layers").items():
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, layer)
    if returned.weights is not None:
        _set_weights(module, _load(returned.weights))
    module.trainer = weakref.proxy(trainer)
    trainer.strategy.connect(module)
    trainer.callbacks = list(parts.pop("callbacks").values())
    for name, attributes in parts.items():
        _set_attributes(known[name], attributes)
    for name, values in _load(returned.metrics).items():
        mine = getattr(trainer, name)
        mine.clear()
        mine.update(values)
    loops = _load(returned.loops)
    trainer.should_stop = loops["should_stop"]
    for name in _LOOPS:
        _set_progress(getattr(trainer, name), loops[name])
    trainer.state = pickle.loads(returned.state)
    set_generators(returned.generators)


def _set_weights(module: Any, weights: Mapping[str, torch.Tensor]) -> None:
    if weights.keys() - module.state_dict().keys():
        _configure(module)
    mine = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, tensor in weights.items():
        held = mine.get(name)
        if held is not None and not is_lazy(held) and not held.is_meta and _kind(held) != _kind(tensor):
            # the parameter's size has changed, or `precision` has changed its type
            held.data = torch.empty_like(tensor)
    unmade = any(tensor.is_meta for tensor in mine.values())
    if homeless := ", ".join(module.load_state_dict(weights, strict=False, assign=unmade).unexpected_keys):
        log.warning("the model in the script does not have %s, so these weights are not returned", homeless)


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _configure(module: Any) -> None:
    """Call the module's `configure_model` in the script, to create the layers that so far exist only on the workers."""
    try:
        module.configure_model()
    except Exception as error:  # configure_model may need the devices of the workers
        log.warning("configure_model cannot be called here, so not all weights are returned: %s", error)


def results_of(returned: Sequence[Returned]) -> Any:
    """Return the value for the Trainer's method to return in the script.

    For predictions, this combines the values of all ranks in data set order. Otherwise it is rank 0's value.
    """
    if not returned[0].shards:
        return _load(returned[0].results)
    by_rank = [_load(one.results) for one in returned]
    if by_rank[0] is None or len(by_rank) == 1:
        return by_rank[0]
    shards = returned[0].shards
    if len(shards) == 1:
        return in_order(by_rank, shards[0])
    return [in_order([loaders[index] for loaders in by_rank], size) for index, size in enumerate(shards)]


def in_order(by_rank: Sequence[Sequence[Any]], batch_size: int | None) -> list[Any]:
    """Combine the predictions of all ranks into the list of batches that a single process would return.

    Rank r of w ranks has predicted samples r, r + w, r + 2w, ... in batches of `batch_size`. If every batch has one row
    per sample, the rows are put in data set order. Otherwise the batches stay whole: first the first batch of each
    rank, then the second batch of each rank, and so on. If the loader was not divided among the ranks, `batch_size` is
    None, and the batches also stay whole.
    """
    if batch_size is not None:
        rows = [[row for batch in batches for row in _rows(batch)] for batches in by_rank]
        sizes = [len(row) for row in rows]
        if all(_sliceable(batch) for batches in by_rank for batch in batches) and max(sizes) - min(sizes) <= 1:
            flat = [rank[index] for index in range(max(sizes)) for rank in rows if index < len(rank)]
            return [_stack(flat[begin : begin + batch_size]) for begin in range(0, len(flat), batch_size)]
    longest = max(len(batches) for batches in by_rank)
    return [batches[index] for index in range(longest) for batches in by_rank if index < len(batches)]


def _shards(trainer: Any) -> tuple[int | None, ...]:
    loader = getattr(trainer.predict_loop, "_combined_loader", None)
    if trainer.state.fn != "predict" or loader is None:
        return ()
    return tuple(
        getattr(one.batch_sampler, "batch_size", None)
        if type(getattr(one.batch_sampler, "sampler", None)).__name__ == "UnrepeatedDistributedSamplerWrapper"
        else None
        for one in loader.flattened
    )


def _sliceable(batch: Any) -> bool:
    if isinstance(batch, torch.Tensor):
        return bool(batch.dim())
    if not isinstance(batch, dict | tuple | list) or not batch:
        return False
    values = batch.values() if isinstance(batch, dict) else batch
    return all(_sliceable(value) for value in values) and len({_length(value) for value in values}) == 1


def _length(batch: Any) -> int:
    """Return the number of rows in a batch. `_sliceable` must be true for the batch."""
    if isinstance(batch, torch.Tensor):
        return len(batch)
    return _length(next(iter(batch.values() if isinstance(batch, dict) else batch)))


def _rows(batch: Any) -> list[Any]:
    if not _sliceable(batch):
        return []
    if isinstance(batch, torch.Tensor):
        return list(batch)
    if isinstance(batch, dict):
        columns = [_rows(value) for value in batch.values()]
        return [type(batch)(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]
    columns = [_rows(value) for value in batch]
    made = batch._make if hasattr(batch, "_make") else type(batch)
    return [made(row) for row in zip(*columns, strict=True)]


def _stack(rows: Sequence[Any]) -> Any:
    first = rows[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(list(rows))
    if isinstance(first, dict):
        return type(first)((name, _stack([row[name] for row in rows])) for name in first)
    made = first._make if hasattr(first, "_make") else type(first)
    return made(_stack(column) for column in zip(*rows, strict=True))


def _attributes(thing: Any) -> dict[str, Any]:
    state = thing.__getstate__()
    return dict(state) if isinstance(state, dict) else {}


def _public(module: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_") or name == "_hparams"}


def _new_layers(module: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layers and parameters of a module that are not in `known`, by path.

    Layers and parameters inside a returned layer have no entries of their own.
    """
    found: dict[str, Any] = {}
    for path, layer in module.named_modules(remove_duplicate=False):
        if path and known.get(f"module {path}") is not layer and not _inside(path, found):
            found[path] = layer
    for path, parameter in module.named_parameters(remove_duplicate=False):
        if f"parameter {path}" not in known and not _inside(path, found):
            found[path] = parameter
    return found


def _inside(path: str, layers: Mapping[str, Any]) -> bool:
    names = path.split(".")
    return any(".".join(names[:depth]) in layers for depth in range(1, len(names)))


def _set_attributes(thing: Any, state: Mapping[str, Any]) -> None:
    if hasattr(thing, "__setstate__") and not isinstance(thing, torch.nn.Module):
        thing.__setstate__({**vars(thing), **state})
    else:
        vars(thing).update(state)


def _set_progress(loop: Any, state: Mapping[str, Any], prefix: str = "") -> None:
    """Set a loop's progress. The loop's own `load_state_dict` would also mark the loop as restarting."""
    loop._load_from_state_dict(dict(state), prefix)
    for name, inner in list(vars(loop).items()):
        if hasattr(inner, "_load_from_state_dict") and hasattr(inner, "restarting"):
            _set_progress(inner, state, f"{prefix}{name}.")


def _on_cpu(value: Any) -> Any:
    return apply_to_collection(value, torch.Tensor, lambda tensor: tensor.detach().cpu() if tensor.is_cuda else tensor)


def _dump(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(_on_cpu(value), file, pickle_module=cloudpickle)
    return file.getvalue()


def _load(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)


def _pickled(parts: Mapping[str, Mapping[str, Any]], names: Mapping[int, str]) -> bytes:
    """Pickle the attributes, except those whose values cannot be pickled, such as open files and threads."""
    try:
        return _pickle(parts, names)
    except Exception:
        sent: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for part, values in parts.items():
        for name, value in values.items():
            try:
                _pickle(value, names)
                sent[part][name] = value
            except Exception as error:
                log.debug("%s.%s is not copied from the worker to the script: %s", part, name, error)
    return _pickle(sent, names)


def _pickle(value: Any, names: Mapping[int, str]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, names).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: Any, names: Mapping[int, str]) -> None:
        super().__init__(file)
        self._names = names

    def persistent_id(self, thing: Any) -> str | None:
        return self._names.get(id(thing))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, known: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._known = known

    def persistent_load(self, name: str) -> Any:
        return self._known[name]

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function that a pickle names. Load GPU tensors on the CPU.

        This machine may have no GPU, so the function that loads tensors is replaced.
        """
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _load
        return super().find_class(module, name)
