"""Run a script's Trainer on a Ray cluster: `Trainer(strategy=RayStrategy(num_workers=8))`.

When the script calls fit, validate, test or predict, that method is pickled together with the Trainer and the model,
and runs on a group of ranks, under Lightning's own DDP or FSDP strategy. `results` describes what is returned.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from tuner.domain.experiment import Scaling
from tuner.errors import EntrypointError, SpecError
from tuner.settings import Settings
from tuner.trials.lightning.flavour import FLAVOURS, Flavoured, flavour_of
from tuner.trials.lightning.results import Returned, collect, hand_back, landmarks, results_of
from tuner.trials.lightning.switches import GlobalState
from tuner.trials.lightning.trial import Ranks, assign_trainer
from tuner.trials.messages.protocol import RankAssignment
from tuner.usercode.pickling import dumps


class RayStrategy(Flavoured):
    """Lightning's DDP strategy on the workers of a Ray cluster.

    Args:
        num_workers: the number of ranks, on as many nodes as necessary. The Trainer's `devices` and `num_nodes`
            are ignored.
        use_gpu: True to give each worker one GPU. The script's machine does not need a GPU. Do not set the Trainer's
            `accelerator`.
        resources_per_worker: for example ``{"CPU": 4, "GPU": 0.5, "my_resource": 1}``; one CPU by default.
        placement_strategy: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD", as in Ray.
        backend: the backend of torch.distributed. "auto" is nccl if each worker has a GPU, else gloo.
        ray_address: the address of a Ray cluster. The default is RAY_ADDRESS if it is set, else a private Ray instance on
            this machine. If the script is already connected to a Ray cluster, that one is used.
        runtime_env: the Ray runtime environment of the workers.
        autoscaling: True if the cluster can grow. Then a call such as `fit` waits up to `placement_timeout_s` even for
            resources that the cluster does not have yet.
        placement_timeout_s: how many seconds to wait for resources.
        keep_workers_s: how many seconds to keep the idle processes for the Trainer's next call.
        lightning: "lightning.pytorch" or "pytorch_lightning", if the script imports both.
        options: options of Lightning's DDPStrategy, such as ``find_unused_parameters=True``.

    Raises:
        PlacementError: the cluster cannot hold the workers.
        EntrypointError: the Trainer, the model or an argument cannot be pickled.

    An error on a worker is raised unchanged in the script, with a note that names the worker's rank.
    """

    base: ClassVar[str] = "pytorch:strategies.DDPStrategy"
    one_flavour: ClassVar[bool] = True

    def __init__(
        self,
        num_workers: int = 1,
        *,
        use_gpu: bool = False,
        resources_per_worker: Mapping[str, float] | None = None,
        placement_strategy: str = "PACK",
        backend: str = "auto",
        ray_address: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        placement_timeout_s: float = 600.0,
        autoscaling: bool = False,
        keep_workers_s: float = 30.0,
        lightning: str | None = None,
        **options: Any,
    ) -> None:
        flavour = self._flavours[0]
        self.scaling = Scaling(
            num_workers=num_workers,
            use_gpu=use_gpu,
            resources_per_worker=dict(resources_per_worker or {}),
            placement_strategy=placement_strategy,  # type: ignore[arg-type]
            backend=backend,  # type: ignore[arg-type]
        )
        self.ray_address = ray_address
        self.worker_options = {
            "runtime_env": dict(runtime_env) if runtime_env else None,
            "timeout_s": placement_timeout_s,
            "autoscaling": autoscaling,
        }
        self.keep_workers_s = keep_workers_s
        super().__init__(**options)
        self.cluster_environment = Ranks.make(flavour, 0, num_workers, 0, 1, 0)
        self._resting: tuple[Any, list[Any]] | None = None
        if not self.scaling.bundle().get("GPU"):
            self.parallel_devices = [torch.device("cpu")] * num_workers  # even if the script's machine has GPUs
        elif not torch.cuda.is_available() and not torch.backends.mps.is_available():
            self._accelerator = CUDAElsewhere.make(flavour)  # on a Mac, this would fail, so it is left out there

    def _configure_launcher(self) -> None:
        self._launcher = Launcher.make(self._flavours[0], self)

    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        if self._resting is not None:
            trainer, callbacks = self._resting
            trainer.callbacks, self._resting = callbacks, None

    def rest_callbacks(self, trainer: Any) -> None:
        """Remove the callbacks from the script's Trainer until `on_exception` is called.

        The copies of the callbacks on the ranks have already been notified of the error, so those in the script must not be.
        """
        self._resting = trainer, trainer.callbacks
        trainer.callbacks = []

    def release_workers(self) -> None:
        """Stop this script's idle worker processes now, instead of after `keep_workers_s` seconds."""
        from tuner.trials.lightning.workers import release

        release()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        return {**state, "_launcher": None}


class RayFSDPStrategy(RayStrategy):
    """Lightning's FSDP strategy on the workers of a Ray cluster.

    It takes the arguments of `RayStrategy`, except that `options` are those of Lightning's FSDPStrategy. When training
    ends, the whole model is gathered on rank 0 and returned to the script.

    PyTorch supports FSDP1, which this strategy uses, only on accelerators. Without `use_gpu`, the constructor therefore
    raises SpecError. `RayModelParallelStrategy`, which uses FSDP2, works on CPUs too.
    """

    base: ClassVar[str] = "pytorch:strategies.FSDPStrategy"

    def __init__(self, num_workers: int = 1, **options: Any) -> None:
        super().__init__(num_workers, **options)
        if not self.scaling.bundle().get("GPU"):
            raise SpecError("FSDP needs a GPU per worker: use_gpu=True", "/use_gpu")


class RayModelParallelStrategy(RayStrategy):
    """Lightning's strategy for FSDP2 and tensor parallelism on the workers of a Ray cluster.

    The module shards itself in `configure_model`, over ``self.device_mesh["data_parallel"]`` and
    ``["tensor_parallel"]``. By default all workers are data-parallel; `data_parallel_size` and `tensor_parallel_size`
    change this. When training ends, the whole model is gathered on rank 0. The script gets the weights of those layers
    that its own copy of the model has.
    """

    base: ClassVar[str] = "pytorch:strategies.ModelParallelStrategy"

    def __init__(
        self,
        num_workers: int = 1,
        *,
        data_parallel_size: int | None = None,
        tensor_parallel_size: int = 1,
        **options: Any,
    ) -> None:
        options["data_parallel_size"] = data_parallel_size or num_workers // tensor_parallel_size
        super().__init__(num_workers, tensor_parallel_size=tensor_parallel_size, **options)


def _count_as_strategy() -> None:
    """Make `RayStrategy` a virtual subclass of Lightning's Strategy.

    LightningCLI checks the class before it is instantiated, when it has no Lightning base class yet.
    """
    for flavour in FLAVOURS:
        if flavour.pytorch in sys.modules:
            flavour.find("pytorch:strategies.Strategy").register(RayStrategy)


_count_as_strategy()


class CUDAElsewhere(Flavoured):
    """Lightning's CUDA accelerator for scripts on machines without a GPU whose Trainer trains on other machines."""

    base: ClassVar[str] = "pytorch:accelerators.CUDAAccelerator"

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device("cuda", 0)]


class Launcher(Flavoured):
    """Implements Lightning's interface for launching processes: it runs the Trainer's method on a group of `Workers`."""

    base: ClassVar[str] = "pytorch:strategies.launchers.launcher._Launcher"

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._running: Any = None

    @property
    def is_interactive_compatible(self) -> bool:
        return True

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        from tuner.hosts.ray.cluster import connect
        from tuner.trials.lightning.workers import borrow, give_back

        strategy = self._strategy
        payload = _pickled(_Job(function, args, kwargs, trainer))
        connect(strategy.ray_address or Settings.from_env().ray_address)
        key, workers = borrow(strategy.scaling, **strategy.worker_options)
        self._running = workers
        try:
            returned = workers.run(payload, _about())
            if trainer is not None:
                _attach_datamodule(trainer, (*args, *kwargs.values()))
                hand_back(trainer, returned[0])
                _fetch_checkpoints(trainer, workers)
        except BaseException:
            workers.close()
            if trainer is not None:
                strategy.rest_callbacks(trainer)
            raise
        finally:
            self._running = None
        give_back(key, workers, strategy.keep_workers_s)
        return results_of(returned) if trainer is not None else returned[0]

    def kill(self, signum: Any) -> None:
        if self._running is not None:
            self._running.close()


class _Job:
    """A call to a Trainer's method, which is pickled and sent to every rank."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], trainer: Any
    ) -> None:
        self.function, self.args, self.kwargs, self.trainer = function, args, kwargs, trainer
        self.switches = GlobalState.here()

    def __call__(self, assignment: RankAssignment) -> Any:
        self.switches.set()
        trainer = self.trainer
        if trainer is None:
            return self.function(*self.args, **self.kwargs)
        where = (
            assignment.rank,
            assignment.world_size,
            assignment.local_rank,
            assignment.local_world_size,
            assignment.node_rank,
        )
        device = torch.device("cuda", assignment.devices[0]) if assignment.devices else torch.device("cpu")
        assign_trainer(trainer, Ranks.make(flavour_of(trainer), *where), device)
        known = landmarks(trainer)
        keeper = _KeepWeights(trainer)
        run = flavour_of(trainer).find("pytorch:trainer.call._call_and_handle_interrupt")
        results = run(trainer, self.function, *self.args, **self.kwargs)
        returned: Returned = collect(trainer, known, results, keeper.weights(), sharded=keeper.sharded)
        return returned


class _KeepWeights:
    """Collects the model's weights at the end of training.

    If the model is sharded, the weights have to be collected before the Trainer's strategy is torn down.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._strategy = strategy = trainer.strategy
        self._kept: Mapping[str, Any] | None = None
        self._whole = {"_state_dict_type": "full", "_save_distributed_checkpoint": False}  # FSDP's, then FSDP2's
        self._sharded = [name for name in self._whole if hasattr(strategy, name)]
        if self._sharded:
            strategy.teardown = self._before_teardown

    @property
    def sharded(self) -> bool:
        return bool(self._sharded)

    def weights(self) -> Mapping[str, Any] | None:
        if self._sharded:
            return self._kept
        if self._trainer.state.fn != "fit" and self._trainer.ckpt_path is None:
            return None
        # Call this on every rank, since metrics in the model may run collectives.
        state: Mapping[str, Any] = self._trainer.lightning_module.state_dict()
        return state

    def _before_teardown(self) -> None:
        strategy, state = self._strategy, self._trainer.state
        if state.status == "running" and state.fn == "fit":
            was = {name: getattr(strategy, name) for name in self._sharded}
            strategy.__dict__.update({name: self._whole[name] for name in self._sharded})
            self._kept = strategy.lightning_module_state_dict()
            strategy.__dict__.update(was)
        type(strategy).teardown(strategy)


def _about() -> dict[str, Any]:
    from tuner.trials.lightning.workers import terminal

    here = terminal()
    # Lightning's seed_everything sets environment variables, which the workers need too.
    settings = {
        name: value for name, value in os.environ.items() if name.startswith(("PL_", "CUBLAS_WORKSPACE_CONFIG"))
    }
    return {
        "tty": here["tty"],
        "environment": {**here["environment"], **settings},
        "sys_path": [os.path.abspath(entry or os.getcwd()) for entry in sys.path],
        "directory": os.getcwd(),
    }


def _pickled(job: _Job) -> bytes:
    try:
        return dumps(job)
    except Exception as error:
        if any(getattr(argument, "_compiler_ctx", None) is not None for argument in job.args):
            raise EntrypointError(
                "a compiled module cannot be sent to the workers; pass fit the module itself and compile in its configure_model, "
                "as in self.net = torch.compile(self.net)"
            ) from error
        culprits = ", ".join(_culprits(job)) or "an object that the Trainer refers to"
        raise EntrypointError(f"{culprits} cannot be sent to the workers: {type(error).__name__}: {error}") from error


def _attach_datamodule(trainer: Any, given: Sequence[Any]) -> None:
    kind = flavour_of(trainer).find("pytorch:LightningDataModule")
    for one in given:
        if isinstance(one, kind):
            trainer.datamodule, one.trainer = one, trainer


def _culprits(job: _Job) -> list[str]:
    parts = {f"argument {index} ({type(value).__name__})": value for index, value in enumerate(job.args)}
    if job.trainer is not None:
        parts |= {f"the callback {type(one).__name__}": vars(one) for one in job.trainer.callbacks}
        parts |= {f"the logger {type(one).__name__}": one for one in job.trainer.loggers}
    found = []
    for name, part in parts.items():
        try:
            dumps(part)
        except Exception:
            found.append(name)
    return found


def _fetch_checkpoints(trainer: Any, workers: Any) -> None:
    """Copy the checkpoint files of the Trainer's callbacks to this machine if they exist only on rank 0's."""
    for callback in trainer.checkpoint_callbacks:
        paths = {getattr(callback, name, "") for name in ("best_model_path", "last_model_path")}
        for path in paths | set(getattr(callback, "best_k_models", ())):
            if path and "://" not in path and not os.path.exists(path) and (content := workers.read(path)) is not None:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(content)
