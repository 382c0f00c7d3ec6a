"""`tuner.run`: a search from a script or a notebook. The same experiment, in the same database, as through the REST API."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tuner.domain.experiment import Mode, Spec
from tuner.domain.states import ExperimentState
from tuner.driver.parts import dump_parts, names_code, plain_json
from tuner.driver.virtual import parts_of
from tuner.errors import ClusterUnreachable, Conflict, Mistakes, SpecError, TunerError
from tuner.experiments.spec import mistakes_beside
from tuner.experiments.usecases import create_from_python, id_of, never_driven
from tuner.names import keywords_explained
from tuner.sdk.arguments import adapted
from tuner.sdk.result import Result
from tuner.settings import Settings
from tuner.space import Space
from tuner.store import CodeRecord, Store
from tuner.trials.checkpoints.storage import absolute
from tuner.usercode.trainable import by_value

if TYPE_CHECKING:
    from tuner.sdk.progress import Progress

__all__ = ["Result", "resume", "run"]

POLL_S = 0.25
_PARTS = ("scheduler", "search", "stop")


@keywords_explained
def run(
    trainable: Any,
    space: Mapping[str, Any] | None = None,
    *,
    metric: str | Sequence[str] | None = None,
    mode: Mode | Sequence[Mode] | None = None,
    num_samples: int | None = None,
    scheduler: Any = None,
    search_alg: Any = None,
    num_workers: int = 1,
    use_gpu: bool = False,
    resources_per_worker: Mapping[str, float] | None = None,
    placement_strategy: str = "PACK",
    backend: str = "auto",
    reuse_workers: bool = True,
    working_dir: Literal["trial", "caller"] = "trial",
    max_concurrent_trials: int | None = None,
    time_budget_s: float | None = None,
    budget: float | None = None,
    max_failures: int = 0,
    hang_timeout_s: float | None = 1800.0,
    placement_timeout_s: float = 600.0,
    seed: int = 0,
    name: str | None = None,
    max_t: int | None = None,
    time_attr: str = "training_iteration",
    stop: Any = None,
    points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
    storage: str | os.PathLike[str] | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    scope: str = "all",
    runtime_env: Mapping[str, Any] | None = None,
    ray_address: str | None = None,
    address: str | None = None,
    scaling_config: Any = None,
    run_config: Any = None,
    tune_config: Any = None,
    verbose: int = 1,
) -> Result:
    """Search for the best configuration of `trainable` and wait for the end.

    trainable: called as ``trainable(config)`` on every rank, with torch.distributed set up; calls `tuner.report`. A function,
        or "module:name". Functions travel by value, so those of notebooks and scripts work. So do classes with `setup` and
        `step`, and what was written for Ray (functions, `tune.Trainable` classes, `TorchTrainer` objects).
    space: name -> primitive (`tuner.loguniform(1e-4, 1e-1)`), constant, or a dict of such; Ray Tune's objects work too.
        None: nothing is searched.
    metric, mode: the reported objective and "min" or "max"; lists for several objectives. Needed, unless an object of Ray
        Tune says them.
    num_samples: trials to start; None: as many as `time_budget_s` allows, 100 without one. Grids are run so many times.
    scheduler: e.g. ``tuner.ASHAScheduler()``, its name, or its JSON form. None is "auto": what the benchmarks show to be best
        for this experiment; the first entry of the decision log says what that was and why. ``tuner.FIFOScheduler()`` stops
        nothing.
    search_alg: "random", "grid", "tpe", "gp", ... or an object. None is "auto".
    num_workers, use_gpu, resources_per_worker: the ranks of each trial; fractions of a CPU or GPU are allowed.
    working_dir: of the ranks: "trial", a directory of their own in each trial, or "caller", that of this process.
    max_concurrent_trials: None: as many as the cluster holds.
    time_budget_s: running time in seconds after which everything is stopped, counted from the start of the first trial: neither
        the start of Ray and of the workers counts nor a pause.
    budget: how many full trainings' worth (of max_t each) the default search may spend, all trials together. None: a fifth of
        num_samples, but at least 3. SpecError for schedulers that count no budget; those end with num_samples.
    max_t: value of `time_attr` at which a trial is complete. Schedulers inherit both.
    seed: equal seeds draw equal configurations. The default is fixed, so that a search can be repeated; give others for others.
    points_to_evaluate: configurations to try first, as ``{"lr": 0.1, "optimizer/momentum": 0.9}``.
    scope: "all", the best value ever reported counts, or "last", each trial's last one.
    checkpoint: a policy, such as ``{"frequency": 5, "keep_best": 1, "keep_last": 1, "at_end": True, "interval_s": 60}``: when
        functions passed to `tuner.report` are called, besides where the scheduler needs it and at a new best value, and what
        is kept.
    backend: of torch.distributed: "auto" (nccl with GPUs, gloo without), one by name, or "none".
    stop: ``{"training_iteration": 27}``, ``{"accuracy": 0.99}``, or a stopper of `tuner.stoppers`.
    storage: where checkpoints go, a path (a relative one as seen from the caller) or any pyarrow.fs URI; default: under the
        home (``~/.tuner``, or TUNER_HOME).
    ray_address: a Ray cluster; None: the Ray that this process is connected to already, or a private one on this machine.
        It and the driver stay for the next call, which then starts at once, until the process ends or `tuner.shutdown()`.
    address: a tuner service to run on; not available yet.
    scaling_config, run_config, tune_config: `ray.train.ScalingConfig`, `RunConfig` and `ray.tune.TuneConfig` objects, in the
        place of the arguments above.
    verbose: 0 prints nothing, 1 shows progress, 2 also what the ranks on this machine print, with trial and rank.

    Ctrl-C once pauses the search in good order, to be taken up by `tuner.resume`; twice ends at once.

    Raises SpecError for whatever is wrong with the arguments, before anything is started. Failed trials do not raise: see
    ``result.trials`` and ``result.error``.
    """
    storage, checkpoint = _seen_from_here(storage), _with_storage_seen_from_here(checkpoint)
    if (other := adapted(run, locals())) is not None:
        return run(**other)
    if metric is None or mode is None:
        raise SpecError(
            [
                (pointer, f"needed: {what}")
                for pointer, what, value in (
                    ("/metric", "the name of the reported value to search by", metric),
                    ("/mode", "'min' or 'max', which of its values is the best", mode),
                )
                if value is None
            ]
        )
    if address is not None:
        raise SpecError(
            "running on a service is not available yet; ray_address takes the address of a Ray cluster", "/address"
        )
    mistakes, built = Mistakes(), Space({})
    with mistakes:
        built = Space.from_python(space or {})
        if not len(built):
            _warn_of_lists(space or {})
    parts = parts_of(scheduler, search_alg, stop, mistakes)
    entrypoint = trainable if isinstance(trainable, str) else None
    data = {
        "name": name or (None if entrypoint else getattr(trainable, "__name__", None)),
        "entrypoint": entrypoint,
        "space": built.to_json(),
        "metric": metric if isinstance(metric, str) else list(metric),
        "mode": mode if isinstance(mode, str) else list(mode),
        "num_samples": num_samples,
        "seed": seed,
        "max_t": max_t,
        "time_attr": time_attr,
        "scheduler": plain_json(parts.scheduler),
        "search": plain_json(parts.searcher),
        "stop": plain_json(parts.stopper) if parts.stopper else {},
        "points_to_evaluate": [dict(point) for point in points_to_evaluate or ()],
        "scaling": {
            "num_workers": num_workers,
            "use_gpu": use_gpu,
            "resources_per_worker": dict(resources_per_worker or {}),
            "placement_strategy": placement_strategy,
            "backend": backend,
            "reuse_workers": reuse_workers,
            "working_dir": working_dir,
        },
        "limits": {
            "max_concurrent_trials": max_concurrent_trials,
            "time_budget_s": time_budget_s,
            "budget": budget,
            "max_failures": max_failures,
            "hang_timeout_s": hang_timeout_s,
            "placement_timeout_s": placement_timeout_s,
        },
        "checkpoint": {**({"storage": storage} if storage else {}), **(checkpoint or {})},
        "scope": scope,
        "runtime_env": dict(runtime_env or {}),
    }
    if mistakes.found:
        mistakes.found += mistakes_beside(mistakes.found, data, parts)
        mistakes.check()
    function = None if isinstance(trainable, str) else trainable
    code = by_value(function, space_blob=built.blob(), parts_blob=dump_parts(parts))
    _warn_of_size(function, code)
    settings = Settings.from_env()
    with _store(settings) as store:
        alone = not (ray_address or settings.ray_address) and (_on_own_ray() or not _connected())
        record = create_from_python(store, data, code, parts, _check_size if alone else None)
        brings_code = code.parts_blob or code.space_blob or any(names_code(data[part]) for part in _PARTS)
        try:
            return _drive(store, settings, record.public_id, ray_address, verbose, keep=not brings_code)
        except ClusterUnreachable as error:
            never_driven(store, record.public_id, str(error))
            raise


@keywords_explained
def resume(experiment_id: str, *, ray_address: str | None = None, verbose: int = 1) -> Result:
    """Take up an experiment that is paused, or whose driver is gone, and wait for the end.

    experiment_id: ``exp_...``, or the experiment's name if no other has it.

    Every trial goes on from its last committed checkpoint. If a running service has the experiment, or takes it up
    first, this follows it. Raises Conflict if the experiment has ended or if several have this name (the message lists
    them), and NotFound if this home's database does not have it.
    """
    settings = Settings.from_env()
    with _store(settings) as store:
        record = store.get_experiment(id_of(store, experiment_id))
        if record.state.ended:
            raise Conflict(f"{record.public_id} is {record.state}; there is nothing to resume")
        store.add_command(record.id, "resume", reason="by a user")
        return _drive(store, settings, record.public_id, ray_address, verbose, keep=False)


LARGE_BYTES = 50_000_000
"""A training function that is larger than this when pickled is warned of."""


def _warn_of_size(function: Any, code: CodeRecord) -> None:
    """Warn of data that travel by value with the function: they go into the database, once for each experiment."""
    size = len(code.blob or b"")
    if size <= LARGE_BYTES:
        return
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    large = [name for name, value in zip(names, cells, strict=False) if getattr(value, "nbytes", 0) > LARGE_BYTES]
    found = getattr(function, "__globals__", {})
    used = getattr(getattr(function, "__code__", None), "co_names", ())
    large += [name for name in used if getattr(found.get(name), "nbytes", 0) > LARGE_BYTES]
    which = f" (most of it is {', '.join(large)})" if large else ""
    warnings.warn(
        f"the training function takes {size / 1e6:.0f} MB of data along by value{which}, which go into the database; hand large "
        "objects over by tuner.with_parameters(train, data=...) instead, which stores them once and shares them among ranks",
        UserWarning,
        stacklevel=4,
    )


def _warn_of_lists(space: Mapping[str, Any]) -> None:
    """Where nothing is to be chosen, a list was most likely meant as a choice."""
    lists = [f"{name} is the one value {value!r}" for name, value in space.items() if isinstance(value, list | tuple)]
    if lists:
        what = f"{', '.join(lists)} for all trials: tuner.choice([...]) draws from a list, tuner.grid_search([...]) tries it all"
        warnings.warn(what, UserWarning, stacklevel=4)


def _seen_from_here(storage: Any) -> Any:
    """A storage that means the same to every process; what is no path at all is left to the check of the spec."""
    return absolute(storage) if storage and isinstance(storage, str | os.PathLike) else storage


def _with_storage_seen_from_here(checkpoint: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if not isinstance(checkpoint, Mapping) or "storage" not in checkpoint:
        return checkpoint
    return {**checkpoint, "storage": _seen_from_here(checkpoint["storage"])}


def _store(settings: Settings) -> Store:
    settings.home.mkdir(parents=True, exist_ok=True)
    store = Store.open(settings.database_url, synchronous=settings.durability)
    store.migrate()
    return store


def _drive(
    store: Store, settings: Settings, experiment_id: str, ray_address: str | None, verbose: int, keep: bool
) -> Result:
    """Have a driver host run the experiment to its end, and show progress.

    keep: whether the host may serve the next call too: not one that has imported code of the user's, which may change.
    """
    from tuner.sdk.echo import Echo
    from tuner.sdk.progress import Progress

    echo = Echo(store, store.get_experiment(experiment_id).id) if verbose > 1 else None
    progress = Progress(store, experiment_id, show=verbose > 0, echo=echo)
    if verbose > 0 and not _connected():
        where = ray_address or settings.ray_address
        progress.say(f"connecting to Ray at {where}" if where else "starting a private Ray on this machine")
    from tuner.driver import kept  # loads Ray, which takes a second or two: the line above tells of it
    from tuner.driver.cluster import DEAD

    with progress, _Interrupts(store, experiment_id) as interrupts:
        for attempt in range(3):
            started = functools.partial(_wait_for_start, progress=progress, interrupts=interrupts)
            try:
                with (
                    kept.borrow(settings, ray_address or settings.ray_address, started, keep=keep) as host,
                    interrupts.heard(),
                ):
                    _wait(host, experiment_id, progress, interrupts)
                break
            except Conflict:
                if attempt == 0:
                    with interrupts.heard():
                        _follow(store, experiment_id, progress, interrupts)
                    break
                time.sleep(settings.lease_s)  # the lease of a driver that died on another machine runs out
            except DEAD:
                if attempt == 2 or interrupts.count > 1:
                    kept.shutdown()
                    raise
                progress.say("the driver was killed; a new one goes on from what is committed")
    result = Result(store, experiment_id)
    if result.state == "paused":
        progress.say(f"paused; go on with: tuner resume {experiment_id}")
    return result


def _check_size(spec: Spec) -> None:
    """SpecError where the private Ray that is to be started could never hold a trial: starting it takes seconds."""
    from tuner.driver.cluster import too_large

    if (reason := too_large(spec.scaling)) is not None:
        raise SpecError(reason, "/scaling")


def _connected() -> bool:
    """Whether this process has a Ray already; does not import it to find out."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _on_own_ray() -> bool:
    """Whether that is the one that an earlier search has started."""
    kept = sys.modules.get("tuner.driver.kept")
    return kept is not None and kept.on_own_ray()


def _wait_for_start(host: Any, *, progress: Progress, interrupts: _Interrupts) -> None:
    """ClusterUnreachable if the host cannot even come into being: trying again would not help."""
    import ray

    from tuner.driver.cluster import DEAD

    started = host.start.remote()
    try:
        with interrupts.heard():
            while not ray.wait([started], timeout=POLL_S)[0]:
                if interrupts.count > 1:
                    raise KeyboardInterrupt
                progress.update()
        ray.get(started)
    except DEAD as error:
        raise ClusterUnreachable(f"the driver host could not be started on Ray: {error}") from error


def _follow(store: Store, experiment_id: str, progress: Progress, interrupts: _Interrupts) -> None:
    """A running service drives this experiment: watch it."""
    progress.say("a driver that is alive has this experiment, such as that of `tuner serve`; following it")
    while True:
        record = store.get_experiment(experiment_id)
        if record.state.ended or (record.state is ExperimentState.PAUSED and not store.pending_commands([record.id])):
            return
        if interrupts.count > 1:
            raise KeyboardInterrupt
        progress.update()
        time.sleep(POLL_S)


def _wait(host: Any, experiment_id: str, progress: Progress, interrupts: _Interrupts) -> None:
    import ray

    done = host.drive.remote(experiment_id)
    while True:
        ready, _ = ray.wait([done], timeout=POLL_S)
        if ready:
            try:
                ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, TunerError) else error from None
            return
        if interrupts.count > 1:
            raise KeyboardInterrupt
        if interrupts.news:
            interrupts.news = False
            progress.say("pausing: every trial stops at its next report; Ctrl-C again ends at once")
            host.poke.remote()
        progress.update()


class _Interrupts:
    """Ctrl-C, counted: the first asks for a pause, the second is for the caller to act on.

    Where nobody looks at the count, as while Ray is being connected to, it interrupts as anywhere else in Python.
    """

    def __init__(self, store: Store, experiment_id: str) -> None:
        self.store, self.experiment_id = store, experiment_id
        self.count = 0
        self.news = False
        self._heard = False
        self._before: Any = None

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Within this block somebody looks at the count every moment."""
        self._heard = True
        try:
            yield
        finally:
            self._heard = False

    def _take(self, number: int, frame: Any) -> None:
        if not self._heard:
            raise KeyboardInterrupt
        self.count += 1
        if self.count == 1:
            self.news = True
            record = self.store.get_experiment(self.experiment_id)
            self.store.add_command(record.id, "pause", reason="by Ctrl-C")
        else:
            print("ending at once", file=sys.stderr)
