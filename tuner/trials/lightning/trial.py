"""Run a Lightning Trainer inside a trial. The trial's ranks are already running, so the Trainer starts no processes."""

from __future__ import annotations

import inspect
import os
import socket
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tuner.errors import TunerError
from tuner.trials.lightning.flavour import Flavoured, flavour_of
from tuner.trials.lightning.report import FILE, On, ReportCallback
from tuner.trials.training import session

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy as _Strategy
else:
    _Strategy = object


def prepare_trainer(
    trainer: Any,
    metrics: str | Sequence[str] | Mapping[str, str] | None = None,
    *,
    on: On | Sequence[On] = "validation_end",
    checkpoint: bool | Callable[[Any, str], Any] = True,
) -> Any:
    """Make `trainer` train on the ranks of this trial, and return it.

    A Lightning script needs only this one line to run as a trial. The Trainer's strategy (DDP, FSDP) and the strategy's
    options are kept, but it uses the trial's process group, ranks and device. The Trainer's `devices` and `num_nodes`
    are ignored. A Trainer for one device becomes a DDP Trainer if the trial has several ranks. A `ReportCallback` with
    the given arguments is added unless the Trainer already has one. If the trial continues from a checkpoint that no Trainer
    has restored yet, the next `fit` restores it.

    Outside a trial, the trainer is not changed, so that the script still runs on its own.
    """
    running = session.current()
    if running is None:
        return trainer
    context = running.context
    ranks = Ranks.make(
        flavour_of(trainer),
        context.world_rank,
        context.world_size,
        context.local_rank,
        context.local_world_size,
        context.node_rank,
    )
    on_cpu = not context.devices or type(trainer.accelerator).__name__ == "CPUAccelerator"
    assign_trainer(trainer, ranks, torch.device("cpu") if on_cpu else torch.device("cuda", context.devices[0]))
    callback = next((c for c in trainer.callbacks if isinstance(c, ReportCallback)), None)
    if callback is None:
        callback = ReportCallback.make(flavour_of(trainer), metrics, on=on, checkpoint=checkpoint)
        trainer.callbacks.append(callback)
    if callback.restores(running) and running.checkpoint is not None:
        folder = callback.opened.enter_context(running.checkpoint.as_directory())
        if os.path.exists(path := os.path.join(folder, FILE)):
            trainer.ckpt_path = path
    return trainer


class Ranks(Flavoured):
    """Implements Lightning's ClusterEnvironment for ranks that `tuner` has started and connected."""

    base: ClassVar[str] = "fabric:plugins.environments.ClusterEnvironment"

    def __init__(self, rank: int, world_size: int, local_rank: int, local_world_size: int, node_rank: int) -> None:
        super().__init__()
        self._rank, self._world_size = rank, world_size
        self._local_rank, self._local_world_size, self._node_rank = local_rank, local_world_size, node_rank
        self._port = 0

    @property
    def local_world_size(self) -> int:
        return self._local_world_size

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """A free port. Lightning uses it only if there is a single rank, which may not have a process group yet."""
        if not self._port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self._port = free.getsockname()[1]
        return self._port

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._world_size

    def global_rank(self) -> int:
        return self._rank

    def local_rank(self) -> int:
        return self._local_rank

    def node_rank(self) -> int:
        return self._node_rank

    def set_world_size(self, size: int) -> None:
        """Ignore the value: Lightning computes nodes times devices, which is wrong if nodes have different numbers of ranks."""

    def set_global_rank(self, rank: int) -> None:
        """Ignore the value, for the same reason as in `set_world_size`."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Accept any settings, because the Trainer's `devices` and `num_nodes` are ignored in a trial."""

    def teardown(self) -> None:
        """Do nothing: the process group belongs to the trial."""


class AssignedStrategy(_Strategy):
    """Mixin for the strategy of a Trainer whose process is already a rank."""

    def _configure_launcher(self) -> None:
        self._launcher = None

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        if self.__dict__.get("_device_mesh") is not None:  # ranks of a tensor-parallel group see the same samples
            kwargs: dict[str, Any] = super().distributed_sampler_kwargs
            return kwargs
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint. If `ReportCallback` saved it, unpickle everything, because it contains more than tensors."""
        inherited = super().load_checkpoint
        if os.path.basename(checkpoint_path) == FILE and "weights_only" in inspect.signature(inherited).parameters:
            return inherited(checkpoint_path, weights_only=False)
        return inherited(checkpoint_path, *args, **kwargs)


_assigned_types: dict[type, type] = {}


def assign_trainer(trainer: Any, ranks: Ranks, device: torch.device) -> None:
    """Make the trainer's strategy use these ranks and this device.

    This is the only function in `tuner` that uses Lightning's accelerator connector, which is private.
    """
    flavour = flavour_of(trainer)
    strategy = trainer.strategy
    if not isinstance(strategy, flavour.find("pytorch:strategies.ParallelStrategy")):
        if ranks.world_size() == 1:
            return
        strategy = flavour.find("pytorch:strategies.DDPStrategy")()
    if not isinstance(strategy, AssignedStrategy):
        kind = type(strategy)
        if kind not in _assigned_types:
            body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
            bases = (AssignedStrategy, kind)
            _assigned_types[kind] = types.new_class(kind.__name__, bases, exec_body=lambda names: names.update(body))
        attributes = strategy.__dict__
        strategy = object.__new__(_assigned_types[kind])
        strategy.__dict__ = attributes  # shared with the object that the user may still refer to
    devices = [device] * ranks.local_world_size
    try:
        connector = trainer._accelerator_connector
        accelerator = "CUDAAccelerator" if device.type == "cuda" else "CPUAccelerator"
        if type(connector.accelerator).__name__ != accelerator:
            connector.accelerator = flavour.find(f"pytorch:accelerators.{accelerator}")()
        connector.strategy = connector._strategy_flag = strategy
        connector.cluster_environment = strategy.cluster_environment = ranks
        connector._parallel_devices = strategy.parallel_devices = devices
        connector._num_nodes_flag = max(1, ranks.world_size() // ranks.local_world_size)
        if hasattr(connector.precision_plugin, "device"):  # autocast was set up for the script's machine
            connector.precision_plugin.device = device.type
        connector._lazy_init_strategy()
    except AttributeError as error:
        raise TunerError(
            f"tuner does not support this version of {flavour.pytorch}: its Trainer's strategy cannot be replaced: {error}"
        ) from error
