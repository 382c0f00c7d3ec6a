"""`tuner.run`: a search from a script or a notebook. It creates the same experiment as the REST API."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from tuner.domain.experiment import Mode, Spec
from tuner.domain.states import ExperimentState
from tuner.driver.assemble import Parts
from tuner.driver.part_arguments import parts_explained, parts_of
from tuner.driver.parts import dump_parts, names_code, plain_json, plain_names, plain_points
from tuner.errors import ClusterUnreachable, Conflict, ErrorCollector, SpecError
from tuner.experiment.code.by_value import needs_other_python
from tuner.experiment.operations.usecases import continue_experiment, create_from_python, id_of, never_driven, numbered
from tuner.experiment.operations.verbs import TRIAL_VERBS, act_on_trial, why_it_stays_ended
from tuner.experiment.specs.model import OPTIONS
from tuner.experiment.specs.spec import mistakes_beside
from tuner.experiment.specs.stored import check_driven
from tuner.names import keywords_explained, name_of, printable
from tuner.sdk import driving
from tuner.sdk.arguments import adapted
from tuner.sdk.callbacks.observers import StoredLog, observing
from tuner.sdk.cautions import (
    checked_callbacks,
    warn_of_descriptions,
    warn_of_distributions,
    warn_of_first_argument,
    warn_of_json_forms,
    warn_of_large_space,
    warn_of_lists,
    warn_of_size,
    warn_of_sweeps,
    warn_of_thresholds,
    warn_of_unused_points,
)
from tuner.sdk.executors import (
    Choice,
    choose,
    drop_ahead,
    may_be_local,
    noting_imports,
    start_ahead,
    start_forks,
    starts_ray,
)
from tuner.sdk.live import notebook
from tuner.sdk.live.echo import Echo
from tuner.sdk.live.progress import Progress, Stored
from tuner.sdk.live.terminal import tell
from tuner.sdk.result import Result, without_result
from tuner.service_url import service_url
from tuner.settings import Settings
from tuner.space import Space
from tuner.store import ExperimentRecord, Store, shown_url
from tuner.usercode.importing import refuse_while_importing
from tuner.usercode.trainable import by_value

__all__ = ["Result", "resume", "run"]


@parts_explained
def run(
    trainable: Any,
    space: Mapping[str, Any] | None = None,
    *,
    metric: str | Sequence[str] | None = None,
    mode: Mode | Sequence[Mode] | None = None,
    num_samples: int | None = None,
    scheduler: Any = None,
    search_alg: Any = None,
    num_workers: int | Mapping[str, int] = 1,
    max_workers: int | None = None,
    resources_allocation: Literal["even", "top"] = "even",
    keep_global_batch_size: bool = True,
    use_gpu: bool = False,
    resources_per_worker: Mapping[str, float] | None = None,
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK",
    backend: Literal["auto", "gloo", "nccl", "none"] = "auto",
    reuse_workers: bool = True,
    working_dir: Literal["trial", "caller"] = "trial",
    max_concurrent_trials: int | None = None,
    time_budget_s: float | None = None,
    budget: float | None = None,
    gpu_hours: float | None = None,
    max_failed_trials: int | None = None,
    repeats: int | Literal["auto"] = 0,
    max_failures: int = 0,
    max_system_failures: int = 10,
    placement_timeout_s: float = 600.0,
    hang_timeout_s: float | None = 1800.0,
    stop_grace_s: float = 10.0,
    seed: int = 0,
    name: str | None = None,
    project: str = "default",
    priority: int = 0,
    weight: float = 1.0,
    max_t: int | None = None,
    time_attr: str = "training_iteration",
    stop: Any = None,
    points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
    warm_start: Literal["auto"] | Sequence[str] | None = None,
    storage: str | os.PathLike[str] | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    scope: Literal["all", "last"] = "all",
    runtime_env: Mapping[str, Any] | None = None,
    executor: Literal["auto", "ray", "local", "agents"] = "auto",
    ray_address: str | None = None,
    address: Any = None,
    scaling_config: Any = None,
    run_config: Any = None,
    tune_config: Any = None,
    callbacks: Sequence[Any] | None = None,
    verbose: int = 1,
) -> Result:
    """Search for the best configuration of `trainable` and wait until the search has ended.

    Press Ctrl-C once to pause the search, so that `tuner.resume` can continue it. Press it twice to stop at once. SIGTERM and
    SIGHUP pause the search too, and then end the script with SystemExit, unless you have set a handler for them.

    Args:
        trainable: a function that calls `tuner.report`, or its name as "module:name". Every rank calls it as
            ``trainable(config)`` after torch.distributed has been set up. Functions are pickled by value, so those in
            notebooks and scripts work. Classes with `setup` and `step` work, and so does code written for Ray:
            functions, `tune.Trainable` classes, `TorchTrainer` objects.
        space: name -> primitive (`tuner.loguniform(1e-4, 1e-1)`), constant, or a dict of these. Ray Tune's objects work
            too. None if there is nothing to search.
        metric: the reported metric to optimize, or a list of metrics for several objectives.
        mode: "min" or "max", or a list with one for each metric. `metric` and `mode` are required unless a Ray Tune
            object specifies them.
        num_samples: trials to start. None starts as many as `time_budget_s` allows, or 100 without a time budget. A grid is
            run this many times.
        scheduler: for example ``tuner.ASHAScheduler()``, its name, or its JSON form. None is "auto": the scheduler that
            did best in benchmarks of similar experiments; the first lines of the experiment's log name it and say
            why. ``tuner.FIFOScheduler()`` stops no trial early.
        search_alg: "random", "grid", "tpe", "gp", ... or an object. None is "auto".
        num_workers: ranks of a trial. {"min": 1, "max": 8} is short for `num_workers` 1 and `max_workers` 8, and makes
            trials elastic: they start with 1 rank, grow up to 8 ranks while workers are free, and give them back when a
            trial waits.
        max_workers: elastic trials: a trial starts with `num_workers` ranks, and may grow up to this number while
            workers are free; None: every trial has `num_workers` ranks.
        resources_allocation: which elastic trials get the workers that are free. "even": all trials alike, as Ray
            Tune's DistributeResources; "top": the best trial first, as DistributeResourcesToTopJob.
        keep_global_batch_size: in an elastic trial, `tuner.torch.prepare_data_loader` divides the total batch of
            `num_workers` ranks among the present ranks; False: the batch size per rank stays the same.
        use_gpu: give each rank a GPU.
        resources_per_worker: CPU, GPU and custom resources of a rank, such as {"CPU": 0.5}; without an entry, a rank
            has one CPU.
        placement_strategy: Ray's strategy for placing the ranks on nodes.
        backend: backend of torch.distributed; "auto" is nccl with GPUs and gloo without; "none": the ranks have no
            process group.
        reuse_workers: start the next trial in the worker processes of a finished one.
        working_dir: working directory of the ranks; "trial": a new one for each trial; "caller": that of the process
            that created the experiment.
        max_concurrent_trials: trials that may run at the same time; None: as many as the cluster holds.
        time_budget_s: running time in seconds after which the search ends, counted from the start of the first trial.
            Starting Ray and the workers does not count, and neither do pauses.
        budget: training that all trials together may spend, as a number of full trainings of `max_t` each; None: a
            fifth of `num_samples`, but at least 3. Only the default scheduler, `freeze_thaw`, uses it. With any other
            scheduler it is an error: use `num_samples` instead.
        gpu_hours: GPU hours that all trials together may use. Once they are used up, the trials end at their next
            report, or after `stop_grace_s`. A GPU counts for as long as a rank holds it.
        max_failed_trials: failed trials after which the search ends as failed; `continue` resets the count; None: no
            limit.
        repeats: how many times leading configurations may be evaluated again once the search has used its trials or its
            budget, if results differ from run to run. Each repeat is a trial of its own. The best configuration is then
            the one with the best expected value over its runs. auto: as many as are worthwhile, using at most a fifth
            of the training before them.
        max_failures: retries of a trial after errors in the training code.
        max_system_failures: retries of a trial after lost nodes and preemptions.
        placement_timeout_s: seconds to wait for resources once it is the trial's turn; a longer wait is a system
            failure.
        hang_timeout_s: seconds without a report after which a trial counts as hung; None: never.
        stop_grace_s: seconds that a rank may take to leave the training function before its group is killed.
        seed: searches with the same seed draw the same configurations. The default is fixed, so that a search can be
            repeated; pass another seed to draw other configurations.
        name: name of the experiment. None: the name of the function. Each call creates a new experiment, even if earlier ones
            have the same name; `tuner.load` and the commands then need the id, which the first lines show.
        project: project of the experiment. A service can limit tokens to one project; here it is only a label.
        priority: experiments of a higher priority get resources first. It matters on a service that runs several
            experiments.
        weight: share of the cluster relative to other experiments of the same priority.
        max_t: value of `time_attr` at which a trial is complete. Schedulers use `max_t` and `time_attr` unless they are given
            their own.
        time_attr: what `max_t` counts: "training_iteration" (reports), or a metric.
        stop: ``{"training_iteration": 27}``, ``{"accuracy": 0.99}``, or a stopper of `tuner.stoppers`.
        points_to_evaluate: configurations to try first, as ``{"lr": 0.1, "optimizer/momentum": 0.9}``.
        warm_start: earlier experiments to learn from: "auto" for those of this home with the same metric and
            parameters, or a list of ids or names. The first configurations are similar to the best ones of those experiments.
            The default scheduler's model also uses these experiments, and trusts them to the extent that they have predicted
            this search so far.
        storage: where checkpoints are stored: a path (relative to this process's working directory) or a pyarrow.fs URI.
            None: TUNER_STORAGE, by default a folder of the home (``~/.tuner``, or TUNER_HOME).
        checkpoint: when checkpoints are saved and which are kept, such as ``{"frequency": 5, "keep_best": 1, "keep_last": 1,
            "at_end": True, "interval_s": 60}``. The function passed as `checkpoint` to `tuner.report` is called only
            at these times, and when the scheduler needs a checkpoint or the objective has a new best value.
        scope: which value of a trial counts: "all" for its best report, "last" for its last one.
        runtime_env: Ray's runtime environment for the ranks.
        executor: where trials run: "ray", or "local" for processes on this machine without Ray, which start faster. "auto":
            "local" if trials have one worker and need only CPUs, and the script does not use Ray; else "ray".
            "agents" is for experiments that are created on a service.
        ray_address: address of a Ray cluster. None: the cluster that this process is connected to, or a private one on this
            machine. Ray and the driver keep running until the process exits or calls `tuner.shutdown()`, so that the next call
            starts at once.
        address: URL of a tuner service to run on, such as "http://host:8000", or a client returned by `tuner.connect`. The token
            comes from TUNER_TOKEN. The function is sent by value, and only the service's workers unpickle it. None: run
            from this process.
        scaling_config: a `ray.train.ScalingConfig`, in place of the arguments above.
        run_config: a `RunConfig` of `ray.train` or `ray.tune`, in place of the arguments above.
        tune_config: a `ray.tune.TuneConfig`, in place of the arguments above.
        callbacks: objects that receive trial and report events, such as ``[tuner.callbacks.CSVLoggerCallback("logs")]``.
            They are called in threads of this process, with entries of the durable log, and can neither slow the search nor
            break it.
        verbose: 0 prints only warnings, on stderr; 1 shows progress; 2 also shows what the ranks print, unless `address` is
            given.

    Returns:
        The result. Failed trials do not raise: see ``result.errors``.

    Raises:
        SpecError: an argument is wrong. Nothing was started.
        ClusterUnreachable: Ray could not be reached or started.
        ServiceError: the service at `address` could not be reached, or refused the request.
    """
    return _search(adapted(run, dict(locals())))


def _search(given: Mapping[str, Any]) -> Result:
    """Create the experiment that the arguments of `run` describe, and drive it to its end."""
    trainable, ray_address = given["trainable"], given["ray_address"]
    refuse_while_importing("tuner.run")
    _check_required(given)
    callbacks = checked_callbacks(given["callbacks"])
    if not Settings.from_env().ray_address:
        if may_be_local(given):
            start_ahead(given)
        elif starts_ray(given):
            start_forks(given)
    warn_of_large_space(given["space"] or {})
    mistakes, space = ErrorCollector(), Space({})
    with mistakes:
        space = Space.from_python(given["space"] or {})
        if not len(space):
            warn_of_lists(given["space"] or {})
            warn_of_sweeps(given["space"] or {})
        warn_of_json_forms(given["space"] or {})
        warn_of_descriptions(given["space"] or {})
        warn_of_distributions(given["space"] or {})
    warn_of_thresholds(given["stop"], given["metric"], given["mode"])
    parts = parts_of(given["scheduler"], given["search_alg"], given["stop"], mistakes)
    # A grid is run in addition to the points.
    if not space.has_grid and plain_json(parts.searcher).get("type") != "grid":
        warn_of_unused_points(given["points_to_evaluate"], given["num_samples"])
    if not given["space"] and parts.scheduler is not None:
        with mistakes:
            space = Space.from_python(parts.scheduler.default_space())
    data = _spec_data(given, space, parts)
    if mistakes.found:
        mistakes.found += mistakes_beside(mistakes.found, data, parts)
        mistakes.check()
    function = None if isinstance(trainable, str) else trainable
    warn_of_first_argument(function, given["space"])
    code = by_value(function, space_blob=space.blob(), parts_blob=dump_parts(parts))
    if given["address"] is not None:
        from tuner.sdk.remote import run_on  # loads httpx and the models of the API

        return run_on(given["address"], data, code, space, parts, given["verbose"], callbacks)
    warn_of_size(function, code)
    settings = Settings.from_env()
    driving.refuse_ray_client(given["executor"], ray_address or settings.ray_address)
    with _store(settings) as store:
        alone = not (ray_address or settings.ray_address) and (driving.on_own_ray() or not driving.connected())
        check = functools.partial(
            driving.check_spec, code=code, ray_address=ray_address, settings=settings, alone=alone
        )
        with noting_imports():
            record = create_from_python(store, data, code, parts, check)
        if given["name"] and given["verbose"] and (said := _namesakes(store, record)):
            tell(said)
        keep = not _brings_code(store, record.spec)
        chosen = _choice(store, settings, record, ray_address)
        try:
            return _drive(store, settings, record.public_id, chosen, ray_address, given["verbose"], keep, callbacks)
        except ClusterUnreachable as error:
            never_driven(store, record.public_id, str(error))
            raise


def _namesakes(store: Store, record: ExperimentRecord) -> str | None:
    """Return a line that says how to refer to this experiment if earlier ones have its name; None if none has it."""
    earlier = [other.public_id for other in store.experiments.named(record.name) if other.id != record.id]
    if not earlier:
        return None
    many = f"{len(earlier)} earlier searches have the name" if len(earlier) > 1 else "an earlier search has the name"
    return (
        f"note: {many} {printable(record.name)!r} too (the last one is {earlier[0]}), so tuner.load and the commands need "
        f"an id: {record.public_id} for this search"
    )


def _check_required(given: Mapping[str, Any]) -> None:
    meanings = {
        "metric": "the name of the reported value to optimize",
        "mode": "'min' or 'max': whether lower or higher values are better",
    }
    if missing := [(f"/{name}", f"needed: {what}") for name, what in meanings.items() if given[name] is None]:
        raise SpecError(missing)
    if given["address"] is not None and given["ray_address"] is not None:
        raise SpecError(
            "expected either address (of a service) or ray_address (of a Ray cluster), got both", "/address"
        )


def _spec_data(given: Mapping[str, Any], space: Space, parts: Parts) -> dict[str, Any]:
    """Return the spec as JSON. Each argument that is named like an option of the spec becomes that option."""
    trainable, metric, mode = given["trainable"], given["metric"], given["mode"]
    entrypoint = trainable if isinstance(trainable, str) else None
    changed = {
        "name": given["name"] or (None if entrypoint else name_of(trainable)),
        "entrypoint": entrypoint,
        "space": space.to_json(),
        "metric": plain_names(metric),
        "mode": plain_names(mode),
        "scheduler": plain_json(parts.scheduler),
        "search": plain_json(parts.searcher),
        "stop": plain_json(parts.stopper) if parts.stopper else {},
        "points_to_evaluate": plain_points(given["points_to_evaluate"]),
        "warm_start": _earlier(given["warm_start"]),
        "checkpoint": {**({"storage": given["storage"]} if given["storage"] else {}), **(given["checkpoint"] or {})},
        "runtime_env": dict(given["runtime_env"] or {}),
    }
    given = {**given, "resources_per_worker": dict(given["resources_per_worker"] or {})}
    same = {name: given[name] for name in OPTIONS[""] if name in given and name not in changed}
    sections = {name: {option: given[option] for option in OPTIONS[name]} for name in ("scaling", "limits")}
    return {**changed, **same, **sections}


def _earlier(warm_start: Any) -> Any:
    """Return `warm_start` as a spec has it: with the ids of experiments in place of `Result` objects."""
    if warm_start is None or warm_start == "auto":
        return warm_start
    if isinstance(warm_start, str):
        return [warm_start]
    several = warm_start if isinstance(warm_start, list | tuple) else [warm_start]
    return [getattr(one, "experiment_id", None) or getattr(one, "id", one) for one in several]


@keywords_explained
def resume(
    experiment_id: str,
    *,
    retry: Iterable[int] = (),
    ray_address: str | None = None,
    callbacks: Sequence[Any] | None = None,
    verbose: int = 1,
) -> Result:
    """Continue an experiment that is paused or whose driver is gone, and wait until it has ended.

    It also continues an experiment that has ended if a user has requested more trials, such as a retry. Every trial
    continues from its last committed checkpoint. If a running service drives the experiment, this call only follows it.

    The training function is the one that was passed to `tuner.run`, even if the script has been edited since. Modules that it
    imports are read again. To train with an edited function, start a new search with ``warm_start=[experiment_id]``.

    Args:
        experiment_id: ``exp_...``, or the experiment's name if no other experiment has it.
        retry: the numbers of failed trials to run again, as `tuner retry` does: for each, a new trial with the same configuration
            starts from the newest checkpoint. An experiment that has ended runs again.
        ray_address: as for `run`.
        callbacks: as for `run`. Each callback continues where it stopped; its class name identifies it.
        verbose: as for `run`.

    Raises:
        Conflict: the experiment has ended and no trials were requested; a trial of `retry` has not failed; or several experiments
            have this name, which the message lists.
        NewerLog: another version has written something of the experiment that this one cannot read.
        NotFound: the database of this home has no such experiment, or the experiment has no such trial.
        SpecError: its trials run on agents, and no service drives it now; the local executor cannot run them here; or another
            version of Python has pickled the training function.
    """
    refuse_while_importing("tuner.resume")
    settings, observers = Settings.from_env(), checked_callbacks(callbacks)
    with _store(settings) as store:
        record = store.experiments.get(id_of(store, experiment_id))
        again = _failed(store, record, retry)
        reopens = record.state.ended
        is_asked = any(asked.command == "continue" for asked in store.commands.pending([record.id]))
        if reopens and not again and not is_asked:
            if (why := why_it_stays_ended(record)) is not None:
                raise Conflict(f"{record.public_id} is {record.state} and cannot be continued: {why}")
            raise Conflict(
                f"{record.public_id} is {record.state}; there is nothing to resume. `tuner retry {record.public_id} NUMBER...` "
                "(in Python, retry=[NUMBER, ...]) runs failed trials again, and "
                f"`tuner continue {record.public_id} --num-samples 8` runs 8 more trials"
            )
        if record.source == "study":
            raise Conflict(
                f"{record.public_id} is a study, whose trials are run by a script: continue it with tuner.create_study"
            )
        check_driven(record)
        chosen = _choice(store, settings, record, ray_address)  # may refuse, so nothing is written before
        if not reopens:
            store.commands.add(record.id, "resume", reason="by a user")
        for trial in again:
            act_on_trial(store, "retry", trial)
        return _drive(store, settings, record.public_id, chosen, ray_address, verbose, False, observers, reopens)


def _failed(store: Store, record: ExperimentRecord, numbers: Iterable[int]) -> list[str]:
    """Return the ids of the trials with these numbers. Raise Conflict if one has not failed, and NotFound if there is none."""
    verb = TRIAL_VERBS["retry"]
    found = [store.trials.get(numbered(store, record.public_id, number)) for number in dict.fromkeys(numbers)]
    for trial in found:
        if trial.state in verb.refused:
            raise Conflict(f"trial {trial.number} of {record.public_id} is {trial.state} and cannot be {verb.past}")
    return [trial.public_id for trial in found]


def read_result(
    store: Store,
    experiment_id: str,
    ray_address: str | None = None,
    callbacks: Sequence[Any] = (),
    *,
    log: bool = True,
) -> Result:
    """Read the result of an experiment from this database. The result's `add` can run more trials.

    log: see `Result.load`.
    """
    return Result.load(store, experiment_id, functools.partial(_add, experiment_id, ray_address, callbacks), log=log)


def _add(
    experiment_id: str, ray_address: str | None, callbacks: Sequence[Any], num_samples: int | None, verbose: int
) -> Result:
    """Run more trials of an experiment in this home. If a running service drives the experiment, only follow it.

    For a study, only request the trials, because the script that calls `tuner.create_study` runs them.
    """
    settings = Settings.from_env()
    with _store(settings) as store:
        record = store.experiments.get(experiment_id)
        if record.source == "study":
            continue_experiment(store, experiment_id, num_samples)
            if verbose:
                where = f"tuner.create_study(..., name={record.name!r})"
                print(
                    printable(f"{experiment_id} is a study: the script that calls {where} gets the trials from ask()")
                )
            return read_result(store, experiment_id, ray_address, callbacks)
        check_driven(record)
        chosen = _choice(store, settings, record, ray_address)  # may refuse, so nothing is written before
        if record.state in (ExperimentState.PAUSING, ExperimentState.PAUSED):
            store.commands.add(record.id, "resume", reason="by a user")
        continue_experiment(store, experiment_id, num_samples)
        keep = not _brings_code(store, record.spec)
        return _drive(store, settings, experiment_id, chosen, ray_address, verbose, keep, callbacks, reopens=True)


def _choice(store: Store, settings: Settings, record: ExperimentRecord, ray_address: str | None) -> Choice | None:
    """Return where the trials run, or None if a service runs them on agents and the script only follows."""
    if driving.only_followed(record):
        return None
    driving.refuse_ray_client(record.spec.executor, ray_address or settings.ray_address)
    code = store.code.get(record.spec.code) if record.spec.code else None
    is_driven = (record.lease_until or 0.0) > time.time()  # then this call only follows
    if not is_driven and (why := needs_other_python(record.spec, code)) is not None:
        raise SpecError(f"{record.public_id} cannot be continued: {why}")
    return choose(record.spec, code, ray_address or settings.ray_address)


def _brings_code(store: Store, spec: Spec) -> bool:
    """Return True if the driver host has to load the user's code. Such a host should serve no other experiment."""
    code = store.code.get(spec.code) if spec.code is not None else None
    parts = (spec.scheduler, spec.search, spec.stop)
    return bool(code and (code.parts_blob or code.space_blob)) or any(names_code(part) for part in parts)


def _store(settings: Settings) -> Store:
    settings.make_home()
    store = Store.open(settings.database_url, synchronous=settings.durability)
    store.migrate(patient=True)
    return store


def _drive(
    store: Store,
    settings: Settings,
    experiment_id: str,
    chosen: Choice | None,
    ray_address: str | None,
    verbose: int,
    keep: bool,
    callbacks: Sequence[Any],
    reopens: bool = False,
) -> Result:
    """Have a driver host run the experiment to its end, and show progress.

    chosen: where its trials run. None: a service drives it, and this call only follows.
    keep: True if the next call may use the same host. False if the host has imported user code, because that code may change.
    """
    if chosen is not None:
        drop_ahead(chosen.local)
    echo = Echo(store, store.experiments.get(experiment_id).id) if verbose > 1 else None
    progress = Progress(Stored(store, experiment_id), show=verbose > 0, echo=echo, reopens=reopens)
    interrupts = driving.pausing_by_signal(store, experiment_id)
    with observing(callbacks, StoredLog(store, experiment_id), experiment_id, settings.home, progress.say):
        try:
            if chosen is None:
                driving.follow(store, experiment_id, progress, interrupts)
            elif chosen.local:
                driving.drive_here(store, settings, experiment_id, progress, interrupts, chosen.why, keep)
            else:
                driving.drive_on_ray(
                    store, settings, experiment_id, ray_address, progress, interrupts, chosen.why, keep
                )
        except (KeyboardInterrupt, SystemExit) as error:
            # Ctrl-C was pressed twice, a signal arrived while Ray was starting, or nothing could be paused.
            if not interrupts.elsewhere:
                said = f"The search was stopped at once. No report is lost; continue with: {_resuming(experiment_id)}"
            elif interrupts.pauses:
                said = f"The process that drives the search pauses it; continue with: {_resuming(experiment_id)}"
            else:
                said = (
                    f"The search continues, since another process drives it. To pause it: tuner pause {experiment_id}"
                )
            if isinstance(error, KeyboardInterrupt):
                error.add_note(said)
            elif not interrupts.count:  # otherwise `interrupts` has said so
                tell(said, sys.stderr)
                if error.code == signal.SIGTERM:  # by the handler that Ray sets when it starts
                    error.code = 128 + signal.SIGTERM
            raise
    result = read_result(store, experiment_id, ray_address, callbacks)
    if verbose:
        url = service_url(settings.home, shown_url(settings.database_url))
        where = url or f"`tuner serve`, then http://localhost:{settings.port}"
        progress.say(f"curves and decisions: {where}/experiments/{experiment_id}")
    if result.state == "paused":
        progress.say(f"paused; continue with: {_resuming(experiment_id)}")
    if not verbose and (why := without_result(result)):
        progress.say(why)
    interrupts.end_process()
    return result


def _resuming(experiment_id: str) -> str:
    """Return what a user enters to continue a search: Python in a notebook, else a command."""
    return f'tuner.resume("{experiment_id}")' if notebook.is_here() else f"tuner resume {experiment_id}"
