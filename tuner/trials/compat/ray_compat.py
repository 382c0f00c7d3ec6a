"""Make the functions of Ray Train and Ray Tune work inside the trials of `tuner`.

Two module-level variables in Ray hold the objects that `ray.train.report`, `ray.tune.report`, `get_checkpoint`,
`get_context`, `ray.train.torch.*` and `ray.train.lightning.*` call. The first holds a session object. Ray Tune uses it,
and so does Ray Train if version 2 of Ray Train is switched off. The second holds Ray Train's functions, and Ray has a
setter for it. This module sets both variables to objects that pass all calls on to the trial's `Session`.

This module also replaces two methods: a trainer's `fit` then runs the training function on the existing ranks, and the
constructor of the callback that reports from a trainer to Ray Tune then does nothing. Each replacement is made once
user code has imported the Ray module in question; this module does not import it.

Only a few modules use Ray's private modules: this one, `datasets` and `preemption` beside it,
`tuner.trials.groups.cluster.ray_nodes`, and `ray_start` and `tokens` in `tuner.hosts.ray`. The private attributes of
Ray's schedulers and stoppers are read only in `tuner.schedulers.from_ray` and `tuner.schedulers.stoppers.from_ray`.
Tests list these modules, and check the names that this one and `ray_start` use against the installed Ray.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from tuner.errors import NotHere
from tuner.trials.checkpoints.checkpoints import Checkpoint
from tuner.trials.checkpoints.storage import place
from tuner.trials.compat.datasets import Shards
from tuner.trials.compat.on_import import on_import
from tuner.trials.compat.preemption import Notices
from tuner.trials.compat.train_loop import TrainLoop
from tuner.trials.training.metrics import numbers
from tuner.trials.training.session import Session

log = logging.getLogger(__name__)

TUNE_SESSION = "ray.train._internal.session"
TUNE_CONTEXT = "ray.tune.context"
TRAIN_FUNCTIONS = "ray.train.v2._internal.execution.train_fn_utils"
TRAINER = "ray.train.v2.api.data_parallel_trainer"
TUNE_CALLBACK = "ray.tune.integration.ray_train"
MACHINE = "ray._private.resource_and_label_spec"
PRIVATE: Mapping[str, tuple[str, ...]] = {
    TUNE_SESSION: ("_session", "get_session"),
    TUNE_CONTEXT: ("_tune_context",),
    TRAIN_FUNCTIONS: ("_train_fn_utils", "get_train_fn_utils", "set_train_fn_utils"),
    TRAINER: ("DataParallelTrainer",),
    TUNE_CALLBACK: ("TuneReportCallback",),
    MACHINE: ("ResourceAndLabelSpec",),
}
"""The private names that this module uses, by Ray's module. `missing` checks them against the installed Ray."""
TRAINABLE_COUNTS = ("_iteration", "_time_total", "_timesteps_total", "_episodes_total")
"""Private attributes of a `ray.tune.Trainable` that its `restore` sets. The first attribute is the number of steps."""
TRAINABLE_DIRECTORY = ("_logdir", "_setup_logdir")
TRAINABLE_TRIAL = "TRIAL_INFO"
"""The global variable with the key under which a `ray.tune.Trainable` finds its trial in its configuration."""
TUNE_WRAPPERS = "ray.tune.trainable.util"
TUNE_RESOURCES = "_resources"
"""The attribute that `ray.tune.with_resources` sets. `TUNE_WRAPPERS` is the module that defines that function."""


class Finished(BaseException):
    """Ends the training function as if it had returned. In Ray Tune, a report with ``done=True`` has this effect."""


def missing() -> list[str]:
    """Return a message for each name in `PRIVATE` that the installed Ray does not have."""
    found = []
    for module, names in PRIVATE.items():
        try:
            loaded = importlib.import_module(module)
        except ImportError as error:
            found.append(f"{module} cannot be imported: {error}")
            continue
        found += [f"{module}.{name} is gone" for name in names if not hasattr(loaded, name)]
    return found + _missing_of_tune()


def this_machine() -> dict[str, float] | None:
    """Return the numbers of CPUs and GPUs that Ray would detect on this machine.

    Return None if the installed version of Ray does not have the class that detects them.
    """
    try:
        found = importlib.import_module(MACHINE).ResourceAndLabelSpec()
        found.resolve(is_head=True)
        return {"CPU": float(found.num_cpus), "GPU": float(found.num_gpus)}
    except Exception:  # in another version of Ray, the class may be elsewhere or have another signature
        log.debug("cannot find out which resources Ray would detect here", exc_info=True)
        return None


def _missing_of_tune() -> list[str]:
    from ray import tune

    used = {*tune.Trainable.__init__.__code__.co_names, *vars(tune.Trainable)}
    found = [
        f"ray.tune.Trainable.{name} is gone"
        for name in (*TRAINABLE_COUNTS, *TRAINABLE_DIRECTORY, TRAINABLE_TRIAL)
        if name not in used
    ]

    def function(config: dict[str, Any], data: Any) -> None: ...

    try:
        whole = without_parameters(tune.with_parameters(function, data=1))
    except NotHere as error:
        return [*found, str(error)]
    if whole != (function, {"data": 1}):
        found.append("cannot find what ray.tune.with_parameters wraps")
    if without_resources(tune.with_resources(function, {"cpu": 1}))[1] is None:
        found.append("cannot find the resources of ray.tune.with_resources")
    return found


def install(session: Session) -> Callable[[], None]:
    """Make Ray's functions in this process use this session. Return a function that undoes this."""
    trial = Trial(session)

    def tune() -> None:
        sys.modules[TUNE_SESSION]._session = TuneSession(trial)  # type: ignore[attr-defined]

    def context() -> None:
        sys.modules[TUNE_CONTEXT]._tune_context = TuneContext(trial)  # type: ignore[attr-defined]

    def train() -> None:
        sys.modules[TRAIN_FUNCTIONS].set_train_fn_utils(TrainFunctions(trial))

    put_back: list[Callable[[], None]] = []

    def trainer() -> None:
        put_back.append(_replaced(sys.modules[TRAINER].DataParallelTrainer, "fit", lambda self: _fit(self, trial)))

    def callback() -> None:
        put_back.append(_replaced(sys.modules[TUNE_CALLBACK].TuneReportCallback, "__init__", lambda self: None))

    cancel = [
        on_import(TUNE_SESSION, tune),
        on_import(TUNE_CONTEXT, context),
        on_import(TRAIN_FUNCTIONS, train),
        on_import(TRAINER, trainer),
        on_import(TUNE_CALLBACK, callback),
        on_import("ray.train", _load_lazily),
    ]

    def remove() -> None:
        for undo in (*cancel, *put_back):
            undo()
        if TUNE_SESSION in sys.modules:
            sys.modules[TUNE_SESSION]._session = None  # type: ignore[attr-defined]
        if TUNE_CONTEXT in sys.modules:
            sys.modules[TUNE_CONTEXT]._tune_context = None  # type: ignore[attr-defined]
        if TRAIN_FUNCTIONS in sys.modules:
            sys.modules[TRAIN_FUNCTIONS].set_train_fn_utils(None)

    return remove


def _load_lazily() -> None:
    """Import `ray.train.torch` and similar modules when they are first used.

    Ray's own workers import these modules at startup, so user code may use them without importing them.
    """
    package = sys.modules["ray.train"]

    def get(name: str) -> Any:
        if name in ("torch", "lightning", "huggingface", "collective"):
            return importlib.import_module(f"ray.train.{name}")
        raise AttributeError(f"module 'ray.train' has no attribute {name!r}")

    if not hasattr(package, "__getattr__"):
        package.__getattr__ = get  # type: ignore[method-assign]


def _replaced(cls: Any, name: str, method: Callable[..., Any]) -> Callable[[], None]:
    """Replace a method of a class. Return a function that restores it."""
    own = vars(cls).get(name)
    setattr(cls, name, method)
    return lambda: setattr(cls, name, own) if own is not None else delattr(cls, name)


def _fit(trainer: Any, trial: Trial) -> Any:
    """Run a trainer's training function on the ranks of this trial, instead of `trainer.fit()`.

    Return a `ray.train.Result`. Its `checkpoint` is None, because reported checkpoints belong to the trial. Raise
    NotHere if the trainer asks for a different number of workers, or for GPUs that the trial does not have.
    """
    from ray.train import Result

    wanted, there = trainer.scaling_config, trial.context.world_size
    if wanted.num_workers != there:
        raise NotHere(
            f"a trainer's fit() runs on the ranks of the trial. The trial has {there}, but this trainer asks for "
            f"{wanted.num_workers!r}: pass num_workers={wanted.num_workers!r} to tuner.run"
        )
    if wanted.use_gpu and not trial.context.devices:
        raise NotHere(
            "this trainer asks for GPUs, and the ranks of the trial have none: pass use_gpu=True to tuner.run"
        )
    returned = TrainLoop.of(trainer)({})
    result = Result(metrics=trial.newest, checkpoint=None, error=None, path=trial.directory())
    result.return_value = returned
    return result


class Trial:
    """Gives `TuneSession` and `TrainFunctions`, which replace parts of Ray, access to the trial."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.context = session.context
        self.newest: dict[str, Any] | None = None
        self._told: set[str] = set()

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None) -> None:
        self.newest = dict(metrics)
        done = bool(metrics.get("done"))  # in Ray Tune, a trial ends when it reports this
        report = self.session.report_last if done else self.session.report
        if checkpoint is None:
            report(self.numbers(metrics))
        else:
            with tempfile.TemporaryDirectory(prefix="tuner-ray-") as folder:
                _copy(checkpoint, folder)
                report(self.numbers(metrics), checkpoint=folder)
        if done:
            raise Finished

    def checkpoint(self) -> Any:
        """Return the checkpoint to continue from, as a `ray.tune.Checkpoint`, or None if the trial starts without one."""
        own = self.session.checkpoint
        if own is None:
            return None
        from ray.tune import Checkpoint as RayCheckpoint

        where = place(own.path)  # expands "~" and environment variables, which Ray would not do
        return RayCheckpoint(where.path if where.local else own.path)

    def shard(self, name: str | None) -> Any:
        return Shards.of_this_trial().get(name)

    def directory(self) -> str:
        return self.context.trial_dir or os.getcwd()

    def resources(self) -> Any:
        """Return the resources of the trial's ranks as a `PlacementGroupFactory`, the type that Ray Tune uses."""
        from ray.tune import PlacementGroupFactory

        ranks = self.context.get_trial_resources()
        if not any(amount for rank in ranks for amount in rank.values()):
            raise NotHere(
                "ray.tune.get_context().get_trial_resources() of ranks that ask for no resources: Ray's PlacementGroupFactory "
                "cannot hold them. tuner.get_context().get_trial_resources() returns them as a list"
            )
        return PlacementGroupFactory(ranks)

    def numbers(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics that are numbers. Ray accepts other values too; the names of such metrics are printed once."""
        return numbers(metrics, self._told, self.session.objective)


def _copy(checkpoint: Any, folder: str) -> None:
    """Copy the files of a checkpoint to a directory.

    The user's directory is not moved, because Ray does not move it either, and several ranks may share it.
    """
    if isinstance(checkpoint, Checkpoint):
        checkpoint.to_directory(folder)
        return
    with checkpoint.as_directory() as source:
        if not os.path.isdir(source):
            raise FileNotFoundError(f"the reported checkpoint is not a directory: {source}")
        shutil.copytree(source, folder, dirs_exist_ok=True)


class TuneSession:
    """Replaces Ray Tune's session.

    `world_rank` is always a number, because `ray.train.report` raises an error if it is None.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        context = trial.context
        self.world_rank, self.world_size = context.world_rank, context.world_size
        self.local_rank, self.local_world_size = context.local_rank, context.local_world_size
        self.node_rank = context.node_rank
        self.experiment_name = context.experiment_id
        self.trial_name = f"trial_{context.trial_number:05d}"
        self.trial_id = context.trial_id
        self.run_id = context.segment_id
        self.trial_dir = trial.directory()
        self.metadata: dict[str, Any] = {}
        self.accelerator: Any = None
        self.storage: Any = None
        self._state: dict[str, Any] = {}

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None) -> None:
        self._trial.report(metrics, checkpoint)

    @property
    def loaded_checkpoint(self) -> Any:
        return self._trial.checkpoint()

    @property
    def trial_resources(self) -> Any:
        return self._trial.resources()

    def get_dataset_shard(self, dataset_name: str | None = None) -> Any:
        return self._trial.shard(dataset_name)

    def get_state(self, key: str) -> Any:
        return self._state.get(key)

    def set_state(self, key: str, value: Any) -> None:
        self._state[key] = value

    def __getattr__(self, name: str) -> Any:
        raise NotHere(f"Ray uses the attribute {name!r} of its session, which does not exist in a trial of tuner")


class TrainFunctions:
    """Replaces Ray Train's functions (`TrainFnUtils`)."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._context = TrainContext(trial)
        self._notices = Notices(trial.context.world_rank, trial.context.world_size)

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: Any = None,
        checkpoint_dir_name: str | None = None,
        checkpoint_upload_mode: Any = None,
        delete_local_checkpoint_after_upload: bool | None = None,
        checkpoint_upload_fn: Any = None,
        validation: Any = False,
    ) -> None:
        """Report metrics and a checkpoint.

        The upload options are ignored, because `tuner` uploads in the background, to directories of its own choice.
        """
        if validation:
            raise NotHere("ray.train.report(validation=...) needs Ray's own controller; report the value yourself")
        try:
            self._trial.report(metrics, checkpoint)
        finally:
            if checkpoint is not None and delete_local_checkpoint_after_upload:
                shutil.rmtree(checkpoint.path, ignore_errors=True)

    def get_checkpoint(self) -> Any:
        return self._trial.checkpoint()

    def get_all_reported_checkpoints(self, *args: Any, **kwargs: Any) -> Any:
        raise NotHere(
            "ray.train.get_all_reported_checkpoints: the driver keeps the checkpoints of a trial. get_checkpoint() returns the "
            "checkpoint to continue from, and result.best_checkpoint is the best checkpoint of all trials"
        )

    def get_dataset_shard(self, dataset_info: Any) -> Any:
        return self._trial.shard(dataset_info.dataset_name)

    def get_context(self) -> TrainContext:
        return self._context

    def get_preemption_info(self) -> Any:
        """Return which of the trial's nodes are about to be preempted, or None.

        The driver knows of them too: it pauses the trial at its next report, and the trial continues on other nodes.
        """
        found = self._notices.affected()
        if found is None:
            return None
        from ray.train.v2.api.preemption import PreemptionInfo

        return PreemptionInfo(**found)

    def is_distributed(self) -> bool:
        return True

    def barrier(self) -> None:
        if self._trial.context.world_size > 1:
            _torch_distributed("barrier").barrier()

    def broadcast_from_rank_zero(self, data: Any) -> Any:
        if self._trial.context.world_size == 1:
            return data
        values = [data]
        _torch_distributed("broadcast_from_rank_zero").broadcast_object_list(values, src=0)
        return values[0]

    def __getattr__(self, name: str) -> Any:
        raise NotHere(f"ray.train uses {name!r}, which a trial of tuner does not have")


class TrainContext:
    """The object that `ray.train.get_context()` returns."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._of = trial.context

    def get_experiment_name(self) -> str:
        """Return a name that no other trial has: an experiment of Ray Train is one training.

        `ray.train.lightning.RayTrainReportCallback` saves to a folder in /tmp that has this name.
        """
        return f"{self._of.experiment_id}-{self.get_trial_name()}"

    def get_trial_name(self) -> str:
        return f"trial_{self._of.trial_number:05d}"

    def get_trial_id(self) -> str:
        return self._of.trial_id

    def get_trial_resources(self) -> Any:
        return self._trial.resources()

    def get_trial_dir(self) -> str:
        return self._trial.directory()

    def get_metadata(self) -> dict[str, Any]:
        return {}

    def get_world_size(self) -> int:
        return self._of.world_size

    def get_world_rank(self) -> int:
        return self._of.world_rank

    def get_local_rank(self) -> int:
        return self._of.local_rank

    def get_local_world_size(self) -> int:
        return self._of.local_world_size

    def get_node_rank(self) -> int:
        return self._of.node_rank

    def get_storage(self) -> Any:
        raise NotHere(
            "ray.train.get_context().get_storage(): pass checkpoints to report, "
            "which stores them where tuner.run(storage=...) says"
        )


class TuneContext(TrainContext):
    """The object that `ray.tune.get_context()` returns. Ray's own warns that trials of Tune have no ranks, but here they have."""

    def get_experiment_name(self) -> str:
        return self._of.experiment_id


def _torch_distributed(name: str) -> Any:
    import torch.distributed as dist

    if not dist.is_initialized():
        raise NotHere(f"ray.train.collective.{name} needs torch.distributed, which backend='none' does not set up")
    return dist


class RayTrainable:
    """Runs a `ray.tune.Trainable` in a trial. The Trainable's method `train` calls its `step` and counts the calls.

    Each segment creates a new object, whose `setup` gets the current configuration. If the segment has a checkpoint,
    `load_checkpoint` is called next. `reset_config` is never called, because objects are not reused.
    """

    def __init__(self, cls: type, config: dict[str, Any], objects: Mapping[str, Any], trial: Trial) -> None:
        from ray.tune import Trainable

        self._object = _in_trial(cls, config, objects, trial)
        self._trial = trial
        self.saves = cls.save_checkpoint is not Trainable.save_checkpoint  # type: ignore[attr-defined]

    def step(self) -> Mapping[str, Any]:
        result: dict[str, Any] = self._object.train()
        flags = {name: bool(result.pop(name, False)) for name in ("done", "should_checkpoint")}
        filled = self._object.get_auto_filled_metrics().keys() | {"training_iteration"}
        return self._trial.numbers({n: v for n, v in result.items() if n not in filled}) | flags

    def save(self, folder: str) -> None:
        state = self._object.save_checkpoint(folder)
        if isinstance(state, dict):
            import ray.cloudpickle

            with open(os.path.join(folder, _STATE), "wb") as file:
                ray.cloudpickle.dump(state, file)
        counts = {name: getattr(self._object, name) for name in TRAINABLE_COUNTS}
        with open(os.path.join(folder, _COUNTS), "w", encoding="utf-8") as text:
            json.dump(counts, text)

    def load(self, folder: str, iteration: int) -> None:
        with open(os.path.join(folder, _COUNTS), encoding="utf-8") as text:
            counts = {**json.load(text), TRAINABLE_COUNTS[0]: iteration}
        for name in TRAINABLE_COUNTS:
            setattr(self._object, name, counts[name])
        state: Any = folder
        if os.path.exists(os.path.join(folder, _STATE)):
            import ray.cloudpickle

            with open(os.path.join(folder, _STATE), "rb") as file:
                state = ray.cloudpickle.load(file)
        self._object.load_checkpoint(state)

    def close(self) -> None:
        self._object.stop()


_STATE = "_trainable_state.pkl"
_COUNTS = "_trainable_counts.json"


def _in_trial(cls: Any, config: dict[str, Any], objects: Mapping[str, Any], trial: Trial) -> Any:
    """Create an instance of the Trainable with the trial's directory, names and resources.

    Its type is the class itself, not a subclass: RLlib pickles the type with each checkpoint, and a checkpoint must
    also be readable elsewhere.
    """
    from ray.tune.result import TRIAL_INFO

    made = cls.__new__(cls)
    made._setup_logdir = lambda: setattr(made, TRAINABLE_DIRECTORY[0], trial.directory())
    made.setup = lambda config: cls.setup(made, config, **objects)
    made.__init__({**config, TRIAL_INFO: _TrialInfo(trial)})
    del made._setup_logdir, made.setup
    return made


class _TrialInfo:
    """The object from which a `ray.tune.Trainable` gets information about its trial."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.trial_id = trial.context.trial_id
        self.trial_name = f"trial_{trial.context.trial_number:05d}"

    @property
    def trial_resources(self) -> Any:
        return self._trial.resources()


def without_parameters(trainable: Any) -> tuple[Any, dict[str, Any]] | None:
    """Return the trainable that was passed to `ray.tune.with_parameters`, and the objects that were passed with it.

    Return None if `trainable` does not come from `ray.tune.with_parameters`.
    """
    layers = trainable.__mro__ if isinstance(trainable, type) else (trainable,)
    for at, layer in enumerate(layers):
        method: Any = vars(layer).get("setup") if isinstance(layer, type) else layer
        if getattr(method, "__module__", None) != TUNE_WRAPPERS or not getattr(method, "__closure__", None):
            continue
        inside = inspect.getclosurevars(method).nonlocals
        if inside.keys() == {"trainable"}:  # `with_resources` wraps a bound method in a function with this variable
            continue
        try:
            registry, prefix = inside["parameter_registry"], inside["prefix"]
            objects = {name: registry.get(prefix + name) for name in inside["keys"]}
            return (layers[at + 1] if isinstance(layer, type) else inside["trainable"]), objects
        except (KeyError, AttributeError) as error:
            raise NotHere(
                f"this version of Ray has a different tune.with_parameters ({error} does not exist): use tuner.with_parameters"
            ) from error
    return None


def without_resources(trainable: Any, constants: Callable[[], Mapping[str, Any]] = dict) -> tuple[Any, Any]:
    """Return (trainable, resources) for a trainable that `ray.tune.with_resources` may have changed.

    A class may also request resources itself. The resources are None if none are requested. constants: returns the
    values that all configurations share, on which a class's request may depend.
    """
    if isinstance(trainable, type):
        request = getattr(trainable, "default_resource_request", None)
        return trainable, request(dict(constants())) if request is not None else None
    request = getattr(trainable, TUNE_RESOURCES, None)
    if request is None or not isinstance(trainable, FunctionType):
        return trainable, request
    bare = FunctionType(
        trainable.__code__, trainable.__globals__, trainable.__name__, trainable.__defaults__, trainable.__closure__
    )
    bare.__kwdefaults__ = trainable.__kwdefaults__
    bare.__qualname__, bare.__module__, bare.__doc__ = trainable.__qualname__, trainable.__module__, trainable.__doc__
    bare.__annotations__ = trainable.__annotations__
    bare.__dict__.update({name: value for name, value in vars(trainable).items() if name != TUNE_RESOURCES})
    return bare, request
