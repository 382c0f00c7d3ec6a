"""`tuner.torch`: functions for PyTorch training code.

Functions that also exist in `ray.train.torch` have the same names and arguments as in Ray. All functions are optional:
training code can use plain `torch.distributed` and DDP instead, and nothing but `tuner.report` from this package.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from tuner.errors import MissingPackage, WrongArgument
from tuner.names import with_extra
from tuner.trials.training import session

try:
    import torch
    import torch.distributed as dist
    from torch.utils.data import (
        DataLoader,
        DistributedSampler,
        IterableDataset,
        RandomSampler,
        Sampler,
        SequentialSampler,
    )
except ImportError as error:
    raise MissingPackage(f"tuner.torch needs PyTorch: {with_extra('torch')} ({error})") from error

from tuner.trials.training.weights import load_model as load_model
from tuner.trials.training.weights import load_weights as load_weights

__all__ = ["get_device", "get_devices", "load_model", "load_weights", "prepare_data_loader", "prepare_model"]


def get_devices() -> list[torch.device]:
    """Return all devices of this rank, or the CPU if it has no GPU.

    Outside a trial, return the device that a script with one process would use.
    """
    current = session.current()
    if current is None:
        return [torch.device("cuda" if torch.cuda.is_available() else "cpu")]
    devices = current.context.devices
    return [torch.device("cuda", index) for index in devices] or [torch.device("cpu")]


def get_device() -> torch.device:
    """Return the first device of this rank, or the CPU if it has no GPU; see `get_devices`."""
    return get_devices()[0]


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: Literal["ddp", "fsdp"] | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Move a model to this rank's device, and wrap it for data parallel training if there are several ranks.

    Args:
        model: the model.
        move_to_device: True to move the model to this rank's device, a device to move it there, or False to leave it where it is.
        parallel_strategy: "ddp" to wrap the model in DistributedDataParallel; "fsdp" to shard its parameters with FSDP2
            (`torch.distributed.fsdp.fully_shard`), which changes the model in place; None to leave it unwrapped.
        parallel_strategy_kwargs: options for DDP or `fully_shard`.
    """
    if parallel_strategy not in ("ddp", "fsdp", None):
        raise WrongArgument(f"parallel_strategy: expected 'ddp', 'fsdp' or None, got {parallel_strategy!r}")
    options = dict(parallel_strategy_kwargs or {})
    device = move_to_device if isinstance(move_to_device, torch.device) else get_device()
    if move_to_device is not False:
        model = model.to(device)
    if parallel_strategy is None or _world_size() == 1:
        return model
    if parallel_strategy == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, **options)
        return model
    if device.type == "cuda" and "device_ids" not in options and next(model.parameters()).is_cuda:
        options |= {"device_ids": [device], "output_device": device}
    return torch.nn.parallel.DistributedDataParallel(model, **options)


def prepare_data_loader(
    data_loader: DataLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
) -> Any:
    """Return a loader for this rank's share of the data, with the same options and a distributed sampler.

    The batch size of `data_loader` is per rank. If there are several ranks, the new loader counts epochs, starting from
    the iteration of the trial's checkpoint. So every epoch is shuffled differently, `set_epoch` is not needed, and with
    one report per epoch, a resumed trial shuffles as it would have without an interruption. If `data_loader` has a
    sampler of your own, its samples are divided among the ranks. For that, the sampler draws the same samples on all
    ranks: meanwhile, the global random generators have a seed that depends on the epoch only. The data of an iterable
    data set is not divided, because only the data set itself could do that.

    In an elastic trial, the global batch size is the batch size of `data_loader` times `num_workers`, the smallest
    number of ranks. It stays the same when the trial is resized: each global batch has the same samples in the same
    order, and is divided among the current ranks. If it cannot be divided evenly, some ranks get one sample more than
    others. DDP averages over ranks, so the samples of the other ranks then count a little more: choose a batch size
    that every possible number of ranks divides. With ``keep_global_batch_size=False``, each rank keeps the batch size
    of `data_loader`, so that the global batch grows with the number of ranks.

    Args:
        data_loader: the loader whose data is divided.
        add_dist_sampler: True to divide the data among the ranks.
        move_to_device: True to move the tensors of each batch to this rank's device.
        auto_transfer: True to copy the next batch to the GPU while the current batch is used.
    """
    sampler: Any = None
    if add_dist_sampler and _keeps_batches() and not isinstance(data_loader.dataset, IterableDataset):
        batches = _global_batches(data_loader)
        data_loader = _rebuilt(data_loader, None, batches)
        return _Loader(data_loader, batches, get_device() if move_to_device else None, auto_transfer)
    if add_dist_sampler and _world_size() > 1 and not isinstance(data_loader.dataset, IterableDataset):
        sampler = _distributed(data_loader)
        data_loader = _rebuilt(data_loader, sampler)
    return _Loader(data_loader, sampler, get_device() if move_to_device else None, auto_transfer)


class _Loader:
    """Wraps a DataLoader, to count epochs for its sampler and to move batches. It has all attributes of the DataLoader."""

    def __init__(self, loader: DataLoader[Any], sampler: Any, device: torch.device | None, ahead: bool) -> None:
        self._loader, self._sampler, self._device = loader, sampler, device
        self._ahead = ahead and device is not None and device.type == "cuda"
        current = session.current()
        self._epoch = current.context.start_iteration if current is not None else 0

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def sampler(self) -> Any:
        """Return the sampler that divides the data. Code that was written for DistributedSampler calls its `set_epoch`."""
        return self._loader.sampler if self._sampler is None else self._sampler

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # the object is being copied or unpickled, and has no attributes yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(self._epoch)
        self._epoch += 1
        if self._device is None or (self._device.type == "cpu" and not self._ahead):
            return iter(self._loader)
        return self._moved_ahead() if self._ahead else (_to(batch, self._device) for batch in self._loader)

    def _moved_ahead(self) -> Iterator[Any]:
        """Yield batches on the GPU. While one is in use, copy the next one on a separate CUDA stream."""
        stream = torch.cuda.Stream(self._device)
        following: Any = None
        for batch in self._loader:
            with torch.cuda.stream(stream):
                moved = _to(batch, self._device)
            if following is not None:
                yield following
            torch.cuda.current_stream(self._device).wait_stream(stream)
            _record(moved, torch.cuda.current_stream(self._device))
            following = moved
        if following is not None:
            yield following


class _GlobalBatches(Sampler[list[int]]):
    """Divides each global batch of an elastic trial among the ranks.

    The samples of a global batch depend on the epoch, but not on the number of ranks. A rank gets every n-th of them,
    where n is the number of ranks. If the last batch has fewer samples than there are ranks, its samples are repeated.
    """

    def __init__(self, sampler: Sampler[int], size: int, drop_last: bool, rank: int, ranks: int) -> None:
        self._sampler, self._size, self._drop_last = sampler, size, drop_last
        self._rank, self._ranks = rank, ranks
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        whole = _drawn(self._sampler, self._epoch)
        for begin in range(0, len(whole), self._size):
            batch = whole[begin : begin + self._size]
            if len(batch) < self._size and self._drop_last:
                return
            while len(batch) < self._ranks:
                batch += batch[: self._ranks - len(batch)]
            yield batch[self._rank :: self._ranks]

    def __len__(self) -> int:
        samples = len(self._sampler)  # raises TypeError, as a loader does, if the sampler has no length
        return samples // self._size if self._drop_last else -(-samples // self._size)


def _keeps_batches() -> bool:
    """Return whether this is a rank of an elastic trial that keeps its global batch size."""
    current = session.current()
    return (
        current is not None and current.context.base_world_size is not None and current.context.keep_global_batch_size
    )


def _global_batches(loader: DataLoader[Any]) -> _GlobalBatches:
    current = session.current()
    assert current is not None
    sampler: Any = loader.sampler
    if _has_each_once(loader) or isinstance(sampler, DistributedSampler):
        shuffle = sampler.shuffle if isinstance(sampler, DistributedSampler) else isinstance(sampler, RandomSampler)
        sampler = DistributedSampler(loader.dataset, num_replicas=1, rank=0, shuffle=shuffle, seed=_seed())
    size = _batch_size(loader)
    if size is None:
        raise WrongArgument(
            "prepare_data_loader cannot divide the items of a loader with batch_size=None among a changing number of ranks: "
            "set keep_global_batch_size to False, or divide them yourself and pass add_dist_sampler=False"
        )
    size *= current.context.get_base_world_size()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if _world_size() > 1 else (0, 1)
    return _GlobalBatches(sampler, size, loader.drop_last, rank, ranks)


class _DividedSampler(Sampler[int]):
    """Divides the samples of the user's sampler among the ranks.

    Each rank gets the same number of samples. If they cannot be divided evenly, the first samples are repeated at the end.
    """

    def __init__(self, sampler: Sampler[int], rank: int, ranks: int) -> None:
        self._sampler, self._rank, self._ranks = sampler, rank, ranks
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        whole = _drawn(self._sampler, self._epoch)
        if whole and (missing := -len(whole) % self._ranks):
            whole += (whole * (missing // len(whole) + 1))[:missing]
        return iter(whole[self._rank :: self._ranks])

    def __len__(self) -> int:
        return -(-len(self._sampler) // self._ranks)  # raises TypeError if the sampler has no length


def _drawn(sampler: Sampler[int], epoch: int) -> list[int]:
    """Return all samples of the user's sampler. All ranks get the same ones, although their random generators differ."""
    seed = (_seed() + epoch) % 2**31
    numpy = sys.modules.get("numpy")
    before = random.getstate(), numpy and numpy.random.get_state(), torch.random.get_rng_state()
    random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would change the generators of the GPUs, too
    if numpy is not None:
        numpy.random.seed(seed)
    try:
        return list(sampler)
    finally:
        random.setstate(before[0])
        torch.random.set_rng_state(before[2])
        if numpy is not None:
            numpy.random.set_state(before[1])


def _seed() -> int:
    current = session.current()
    return current.context.seed % 2**31 if current is not None else 0


def _has_each_once(loader: DataLoader[Any]) -> bool:
    """Return whether a loader reads every sample once in an epoch, in order or shuffled, as without a sampler of the user's."""
    sampler: Any = loader.sampler
    if type(sampler) not in (RandomSampler, SequentialSampler) or getattr(sampler, "replacement", False):
        return False
    # the sampler may read a part of the data set, such as `range(100)`
    return len(sampler) == len(sampler.data_source) == len(loader.dataset)


def _distributed(loader: DataLoader[Any]) -> Any:
    sampler = loader.sampler
    if isinstance(sampler, DistributedSampler):
        return sampler
    if _has_each_once(loader):
        shuffle = isinstance(sampler, RandomSampler)
        return DistributedSampler(loader.dataset, shuffle=shuffle, seed=_seed(), drop_last=False)
    return _DividedSampler(sampler, dist.get_rank(), dist.get_world_size())


def _batch_size(loader: DataLoader[Any]) -> int | None:
    """Return the batch size of a loader, or None if it reads single items, such as batches that its data set makes.

    Raise WrongArgument if the loader has a custom batch sampler, because its batches cannot be divided.
    """
    if loader.batch_size is None and loader.batch_sampler is not None:
        raise WrongArgument(
            "prepare_data_loader cannot divide a loader with a custom batch_sampler; divide it yourself and pass"
            " add_dist_sampler=False"
        )
    size: int | None = loader.batch_size
    return size


def _rebuilt(loader: DataLoader[Any], sampler: Any, batches: _GlobalBatches | None = None) -> DataLoader[Any]:
    """Return a copy of a loader with this sampler, or with these batches."""
    parts = {"batch_size": _batch_size(loader), "sampler": sampler, "drop_last": loader.drop_last}
    options: dict[str, Any] = {
        **(parts if batches is None else {"batch_sampler": batches}),
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "generator": loader.generator,
        "persistent_workers": loader.persistent_workers,
    }
    if hasattr(loader, "in_order"):  # since PyTorch 2.6
        options["in_order"] = loader.in_order
    if loader.num_workers > 0:
        options |= {
            "multiprocessing_context": loader.multiprocessing_context,
            "prefetch_factor": loader.prefetch_factor,
        }
    return DataLoader(loader.dataset, **options)


def _to(batch: Any, device: torch.device | None) -> Any:
    """Move a batch to a device, including tensors in tuples, lists and dicts, and objects with a `to` method."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    # This is before tuples and mappings: a PackedSequence is a tuple, and keeps its sizes on the CPU. An attribute of a mapping,
    # unless its class has it, may be looked up among its items.
    if hasattr(type(batch) if isinstance(batch, Mapping) else batch, "to"):
        with contextlib.suppress(TypeError):
            return batch.to(device)
    if isinstance(batch, Mapping):
        moved = {key: _to(value, device) for key, value in batch.items()}
        if isinstance(batch, defaultdict):
            return defaultdict(batch.default_factory, moved)
        return type(batch)(moved)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_to(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_to(value, device) for value in batch)
    return batch


def _record(batch: Any, stream: Any) -> None:
    """Tell PyTorch's allocator that a batch's tensors are also used on this CUDA stream."""
    if isinstance(batch, torch.Tensor) and batch.is_cuda:
        batch.record_stream(stream)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _record(value, stream)
    elif isinstance(batch, list | tuple):
        for value in batch:
            _record(value, stream)


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
