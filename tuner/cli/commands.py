"""The `tuner` command."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner.cli.places import OnNeither, OnService, OnThisMachine
from tuner.errors import ClusterUnreachable, Conflict, NotAllowed, NotFound, Retryable, SpecError, TunerError
from tuner.experiment.verbs import TRIAL_VERBS, VERBS, Verb
from tuner.names import printable

app = typer.Typer(no_args_is_help=True, help="Distributed hyperparameter tuning.")

_chosen: dict[str, str | None] = {}
"""The values of the options --address and --token, which name the service to use and the token for it."""


@app.callback()
def choose(
    address: Annotated[
        str | None,
        typer.Option(help="use the service at this URL instead of the local database; default: TUNER_ADDRESS"),
    ] = None,
    token: Annotated[str | None, typer.Option(help="token for the service; default: TUNER_TOKEN")] = None,
) -> None:
    """Distributed hyperparameter tuning."""
    _chosen.update(address=address, token=token)


@app.command(cls=OnThisMachine)
def demo(
    as_json: Annotated[bool, typer.Option("--json", help="at the end, print the outcome as one line of JSON")] = False,
    serve_after: Annotated[
        bool, typer.Option("--serve", help="serve the web UI during the search, and then until Ctrl-C")
    ] = False,
    trials: Annotated[int, typer.Option(help="how many configurations to try")] = 16,
    port: Annotated[int | None, typer.Option(help="port of the web UI")] = None,
) -> None:
    """Run an example search: tune a small network on handwritten digits, with ASHA and two DDP ranks for each trial."""
    from tuner.cli.demo import run_demo

    run_demo(as_json=as_json, serve_after=serve_after, trials=trials, port=port)


@app.command(context_settings={"allow_interspersed_args": False}, cls=OnService)
def run(
    target: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="what to run: a script, FILE.py:FUNCTION, or module:function")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="arguments of the script; {lr} stands for the value of the parameter lr"),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            help="a parameter of the search space, such as 'lr=loguniform(1e-4,1e-1)'; repeat the option for each parameter"
        ),
    ] = None,
    metric: Annotated[str, typer.Option(help="the reported metric to minimize or maximize")] = "loss",
    mode: Annotated[str, typer.Option(help="min or max")] = "min",
    metric_pattern: Annotated[
        str | None,
        typer.Option(
            help="a regular expression that finds metrics in lines of stdout, such as 'loss: (?P<loss>[0-9.]+)'"
        ),
    ] = None,
    num_samples: Annotated[int | None, typer.Option(min=1, help="number of trials to start")] = None,
    num_workers: Annotated[
        str | None,
        typer.Option(help="number of ranks of each trial; a range such as 1-8 for elastic trials of a function"),
    ] = None,
    use_gpu: Annotated[bool | None, typer.Option("--use-gpu", help="give each rank a GPU")] = None,
    max_t: Annotated[int | None, typer.Option(min=1, help="length of a full training, by default in reports")] = None,
    time_attr: Annotated[
        str | None, typer.Option(help="the unit of --max-t: training_iteration, time_total_s, or a metric")
    ] = None,
    scheduler: Annotated[str | None, typer.Option(help="the scheduler: asha, median, freeze_thaw, fifo, ...")] = None,
    search_alg: Annotated[str | None, typer.Option(help="the searcher: random, grid, tpe, gp, ...")] = None,
    max_concurrent_trials: Annotated[
        int | None, typer.Option(min=1, help="number of trials that may run at the same time")
    ] = None,
    time_budget_s: Annotated[float | None, typer.Option(help="seconds after which the search ends")] = None,
    max_failures: Annotated[
        int | None, typer.Option(min=0, help="how many times a trial is retried after errors in its code")
    ] = None,
    stop_grace_s: Annotated[
        float | None, typer.Option(help="seconds that a rank has to stop by itself before it is killed")
    ] = None,
    working_dir: Annotated[
        str | None,
        typer.Option(
            help="the working directory of the ranks: trial (a new folder for each trial) or caller (the current folder); "
            "default: caller for a script, trial for a function"
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="seed of the search; the same seed gives the same random configurations")
    ] = None,
    name: Annotated[str | None, typer.Option(help="name of the experiment")] = None,
    executor: Annotated[
        str | None,
        typer.Option(help="where trials run: auto, ray, or local, which means processes on this machine without Ray"),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="address of a Ray cluster to use instead of a local one")
    ] = None,
    verbose: Annotated[
        int, typer.Option(help="0: print only the result; 1: also the progress; 2: also the output of the ranks")
    ] = 1,
) -> None:
    """Search for the best configuration of a script or a function, and wait until the search has ended.

    Exit status 1: the search failed or was cancelled, or no trial has a result. 130: the search was paused by Ctrl-C.

    Options of tuner come before the script, and arguments of the script after it.
    """
    from tuner.cli.run import run_status, run_target, workers_of

    settings = _settings()
    given = {
        "metric": metric,
        "mode": mode,
        "num_samples": num_samples,
        "num_workers": workers_of(num_workers),
        "use_gpu": use_gpu,
        "max_t": max_t,
        "time_attr": time_attr,
        "scheduler": scheduler,
        "search_alg": search_alg,
        "max_concurrent_trials": max_concurrent_trials,
        "time_budget_s": time_budget_s,
        "max_failures": max_failures,
        "stop_grace_s": stop_grace_s,
        "working_dir": working_dir,
        "seed": seed,
        "name": name,
        "executor": executor,
        "ray_address": ray_address,
        "address": settings.address,
        "verbose": verbose,
    }
    options = {option: value for option, value in given.items() if value is not None}
    result = run_target(target, arguments or [], param or [], metric_pattern, options)
    print(printable(str(result)))
    if status := run_status(result):
        raise typer.Exit(status)


@app.command(cls=OnThisMachine)
def serve(
    host: Annotated[
        str | None, typer.Option(help="address to listen on; addresses other than loopback require tokens")
    ] = None,
    port: Annotated[int | None, typer.Option(help="port to listen on; 0 picks a free one")] = None,
    database_url: Annotated[str | None, typer.Option(help="sqlite:///FILE or postgresql://...")] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="address of a Ray cluster to use instead of a local one")
    ] = None,
    auth: Annotated[bool, typer.Option("--auth", help="require a token on loopback too")] = False,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="also continue experiments whose script has ended, without a request to do so"),
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="end the local Ray that an earlier `tuner serve` started")
    ] = False,
) -> None:
    """Run the service: REST API, web UI and driver.

    The service runs experiments that are created over the API. It also shows experiments of scripts. If their script has
    ended, the service continues them on request.
    """
    settings = _settings(
        host=host, port=port, database_url=database_url, ray_address=ray_address, auth="on" if auth else None
    )
    if stop:
        from tuner.driver.hosts.head import stop_head

        print("stopped" if stop_head(settings.home) else "there was nothing to stop")
        return
    from tuner.early import answering

    with answering(settings.host, settings.port) as early:
        from tuner import service

        service.serve(settings, early, adopt)


@app.command(cls=OnNeither)
def agent(
    address: Annotated[str, typer.Argument(metavar="URL", help="URL of the service, such as http://host:8000")],
    target: Annotated[
        str | None,
        typer.Argument(
            help="the training function: module:function or FILE.py:FUNCTION; default: the experiment's entrypoint"
        ),
    ] = None,
    experiment: Annotated[str, typer.Option(help="the experiment: exp_..., or its name")] = "",
    command: Annotated[
        str | None,
        typer.Option(help="a program to run instead of a function, with its arguments, such as 'train.py --lr {lr}'"),
    ] = None,
    metric_pattern: Annotated[
        str | None, typer.Option(help="a regular expression that finds metrics in the output of the program")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="where to store checkpoints; default: the experiment's storage")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="number of trials that may run at the same time")] = 1,
    name: Annotated[str | None, typer.Option(help="name of this agent; default: host:pid")] = None,
    lease_s: Annotated[
        float,
        typer.Option(
            min=1.0,
            help="if this agent sends nothing for this many seconds, the service gives its trials to other agents",
        ),
    ] = 60.0,
) -> None:
    """Run trials of an experiment with the executor "agents" on this machine, until the experiment has ended.

    The machine needs neither Ray nor a database. After Ctrl-C or SIGTERM, the agent gives its trials back, and ends. The token is
    read from TUNER_TOKEN.
    """
    from tuner.cli.agent import work

    if not experiment:
        raise SpecError("is required: the id or the name of an experiment", "/experiment")
    settings = _settings(address=address)
    count = work(
        settings.address or address,
        settings.token,
        experiment,
        target=target,
        command=command,
        metric_pattern=metric_pattern,
        name=name,
        storage=storage,
        parallel=parallel,
        lease_s=lease_s,
        settings=settings,
        say=lambda line: print(printable(line), flush=True),
    )
    print(f"{count} trials or parts of trials were run by this agent")


@app.command(cls=OnService)
def resume(
    experiment: Annotated[str, typer.Argument(help="the experiment: exp_..., or its name")],
    ray_address: Annotated[
        str | None, typer.Option(help="address of a Ray cluster to use instead of a local one")
    ] = None,
) -> None:
    """Continue an experiment that is paused, or whose driver was killed, and wait until the experiment has ended.

    If TUNER_ADDRESS is set, the service at this address continues the experiment, and the command does not wait.
    """
    settings = _settings()
    if settings.address is not None:
        from tuner.cli.experiments import ask

        if ray_address is not None:
            raise SpecError("--ray-address is for a search that this machine drives; the service uses its own Ray")
        print(printable(ask(settings, "resume", experiment)))
        return
    from tuner.sdk.run import resume as take_up

    result = take_up(experiment, ray_address=ray_address)
    print(result)


@app.command(cls=OnThisMachine)
def migrate(
    database_url: Annotated[str | None, typer.Option(help="sqlite:///FILE or postgresql://...")] = None,
) -> None:
    """Create the database, or update its tables to this version."""
    from tuner.store import Store, shown_url

    settings = _settings(database_url=database_url)
    settings.home.mkdir(parents=True, exist_ok=True)
    with Store.open(settings.database_url, synchronous=settings.durability) as store:
        store.migrate()
    print(f"{shown_url(settings.database_url)} is up to date")


@app.command(cls=OnThisMachine)
def backup(file: Annotated[str, typer.Argument(help="the file to create")]) -> None:
    """Copy the database of this home to a new SQLite file. Services and searches may run meanwhile."""
    from pathlib import Path

    from tuner.store.backup import backup as copy

    size = copy(_settings().database_url, Path(file))
    print(printable(f"{file}: {size:,} bytes"))


@app.command(cls=OnThisMachine)
def restore(
    file: Annotated[str, typer.Argument(help="a file that `tuner backup` has written")],
    force: Annotated[bool, typer.Option("--force", help="replace the database even if it has experiments")] = False,
) -> None:
    """Replace the database of this home with a backup. End services and searches first."""
    from pathlib import Path

    from tuner.store import Store
    from tuner.store.backup import restore as put_back

    settings = _settings()
    put_back(settings.database_url, Path(file), force=force)
    with Store.open(settings.database_url, synchronous=settings.durability) as store:
        store.migrate()
    print(printable(f"restored the database from {file}"))


@app.command(cls=OnService)
def explain(
    trial: Annotated[
        str, typer.Argument(help="a trial, trl_...; or an experiment's id or name, for all its decisions")
    ],
    number: Annotated[int | None, typer.Argument(help="number of a trial of the experiment")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
) -> None:
    """Show every decision about a trial and its reason: why the trial was started, paused or stopped."""
    from tuner.cli import explain as here
    from tuner.cli import remote

    settings = _settings()
    about = here.decisions_about if settings.address is None else remote.decisions_about
    for line in about(settings, trial, as_json, number):
        print(printable(line))


@app.command(cls=OnNeither)
def simulate(
    target: Annotated[
        str,
        typer.Argument(
            help="the function to simulate, FILE.py:FUNCTION or module:function; it yields tuner.Step objects"
        ),
    ],
    param: Annotated[
        list[str],
        typer.Option(
            help="a parameter of the search space, such as 'lr=loguniform(1e-4,1e-1)'; repeat the option for each parameter"
        ),
    ],
    metric: Annotated[str, typer.Option(help="the metric to minimize or maximize")] = "loss",
    mode: Annotated[str, typer.Option(help="min or max")] = "min",
    num_samples: Annotated[int | None, typer.Option(min=1, help="number of trials to start")] = None,
    max_t: Annotated[int | None, typer.Option(min=1, help="number of reports of a full training")] = None,
    scheduler: Annotated[str | None, typer.Option(help="the scheduler: asha, median, freeze_thaw, fifo, ...")] = None,
    search_alg: Annotated[str | None, typer.Option(help="the searcher: random, grid, tpe, gp, ...")] = None,
    max_concurrent_trials: Annotated[
        int, typer.Option(min=1, help="number of trials that may run at the same time")
    ] = 4,
    time_budget_s: Annotated[float | None, typer.Option(help="virtual seconds after which the search ends")] = None,
    seed: Annotated[
        int, typer.Option(help="seed of the search; the same seed gives the same random configurations")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print the outcome as one JSON object")] = False,
) -> None:
    """Run a search in virtual time, with a function that yields the reports of a training. Nothing is stored.

    Exit status 1: no trial has a result.
    """
    from tuner.cli.simulate import simulated

    options = {
        "metric": metric,
        "mode": mode,
        "num_samples": num_samples,
        "max_t": max_t,
        "scheduler": scheduler,
        "search_alg": search_alg,
        "max_concurrent_trials": max_concurrent_trials,
        "time_budget_s": time_budget_s,
        "seed": seed,
    }
    row, lines = simulated(target, param, options)
    for line in [json.dumps(row)] if as_json else lines:
        print(printable(line))
    if row["best"] is None:
        raise typer.Exit(1)


@app.command(cls=OnNeither)
def docs(
    topic: Annotated[
        str | None,
        typer.Argument(help="a page such as recipes, an error such as SpecError, or a cause of failures such as oom"),
    ] = None,
) -> None:
    """Print a page of the documentation, or what to do about an error. Without a topic, list all pages."""
    from tuner.cli.docs import text_about

    print(text_about(topic))


@app.command(cls=OnService)
def logs(
    trial: Annotated[str, typer.Argument(help="a trial, trl_...; or an experiment's id or name")],
    number: Annotated[int | None, typer.Argument(help="number of a trial of the experiment")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="only this rank of the trial")] = None,
    segment: Annotated[
        int | None, typer.Option(min=1, help="number of the trial's segment; default: the newest segment")
    ] = None,
    tail: Annotated[
        int | None, typer.Option(min=0, help="only this many lines at the end of each rank's output")
    ] = None,
    search: Annotated[str | None, typer.Option(help="only lines that contain this text, ignoring case")] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="also print what the rank (default: 0) writes from now on, until it ends"),
    ] = False,
) -> None:
    """Print the output of a trial's ranks, whichever nodes they ran on."""
    from tuner.cli import logs as here
    from tuner.cli import remote
    from tuner.store import LogQuery

    settings = _settings()
    logs_of = here.logs_of if settings.address is None else remote.logs_of
    query = LogQuery(rank=rank, segment=segment, tail=tail, search=search)
    printed = False
    for text in logs_of(settings, trial, number, query, follow=follow):
        print(printable(text), end="", flush=True)
        printed = printed or bool(text)
    if not printed:
        print("no output to show" if search or tail == 0 else "this trial has printed nothing", file=sys.stderr)


@app.command(cls=OnService)
def replay(
    experiment: Annotated[str, typer.Argument(help="an experiment's id or name")],
    scheduler: Annotated[
        str | None,
        typer.Argument(help="the other scheduler: asha, median, freeze_thaw, ...; default: the experiment's scheduler"),
    ] = None,
    options: Annotated[
        list[str] | None, typer.Argument(help="an option of the scheduler, such as reduction_factor=3")
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="the searcher: random, tpe, ...; default: the trials in the recorded order")
    ] = None,
    concurrent: Annotated[
        int | None,
        typer.Option(min=1, help="number of trials that train at the same time; default: as in the experiment"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as one JSON object")] = False,
) -> None:
    """Show what a search would have cost and found under another scheduler, and when each of its trials would have stopped."""
    from tuner.cli import remote
    from tuner.cli import replay as here

    settings = _settings()
    replayed = here.replayed if settings.address is None else remote.replayed
    for line in replayed(settings, experiment, scheduler, options or [], search, concurrent, as_json):
        print(printable(line))


@app.command(cls=OnService)
def schedule(
    experiment: Annotated[str, typer.Argument(help="an experiment's id or name; or a trial, trl_...")],
    trial: Annotated[
        int | None, typer.Argument(help="number of a trial of the experiment; default: the best trial")
    ] = None,
) -> None:
    """Print, as JSON, the configurations that led to a trial's weights, each with the iteration after which it applies."""
    from tuner.cli import explain as here
    from tuner.cli import remote

    settings = _settings()
    schedule_of = here.schedule_of if settings.address is None else remote.schedule_of
    print(schedule_of(settings, experiment, trial))


@app.command(name="ls", cls=OnService)
@app.command(name="list", cls=OnService)
def list_experiments(
    limit: Annotated[int, typer.Option(help="list at most this many experiments", min=1, max=1000)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
) -> None:
    """List the experiments of this home, or of the service if TUNER_ADDRESS is set, newest first."""
    from tuner.cli import experiments, explain

    settings = _settings()
    if as_json:
        for row in experiments.rows(settings, limit):
            print(json.dumps(row))
        return
    remote = settings.address is not None
    lines = experiments.table(experiments.rows(settings, limit)) if remote else explain.experiments(settings, limit)
    for line in lines:
        print(printable(line))


@app.command(cls=OnService)
def submit(
    spec: Annotated[Path, typer.Argument(help="a YAML or JSON file with the spec of an experiment")],
    key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            help="a key for this request: a second request with the same key creates nothing and prints the same id",
        ),
    ] = None,
    code: Annotated[
        Path | None,
        typer.Option(help="a folder of Python code to upload; the entrypoint is first looked up in this folder"),
    ] = None,
) -> None:
    """Create an experiment on the service at TUNER_ADDRESS (default: the service on this machine), and print its id."""
    from tuner.cli.experiments import submit as create

    print(create(_settings(), spec, key, code))


@app.command(cls=OnService)
def fork(
    experiment: Annotated[str, typer.Argument(help="the experiment: exp_..., or its name")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="a change of the spec, such as space.lr.upper=0.5; the value is JSON or text; repeat for several changes",
        ),
    ] = None,
    learn: Annotated[
        bool, typer.Option("--learn", help="let the new search learn from the trials of the existing experiment")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            help="a key for this request: a second request with the same key creates nothing and prints the same id",
        ),
    ] = None,
) -> None:
    """Create an experiment from the spec of an existing one, with changes, and print its id.

    Like `submit`, the command uses the service at TUNER_ADDRESS, or the service on this machine.
    """
    from tuner.cli import experiments

    print(experiments.fork(_settings(), experiment, changes or [], learn, key))


@app.command(cls=OnService)
def change(
    experiment: Annotated[str, typer.Argument(help="the experiment: exp_..., or its name")],
    changes: Annotated[
        list[str],
        typer.Option(
            "--set",
            help="a change, such as num_samples=40, space.lr.upper=0.5, space.momentum=null or assume.dropout=0; the value is "
            "JSON or text; repeat for several changes",
        ),
    ],
) -> None:
    """Change the name, notes, tags, num_samples, limits or search space of an experiment, also while it runs."""
    from tuner.cli import experiments

    print(printable(experiments.change(_settings(), experiment, changes)))


@app.command(cls=OnService)
def show(
    experiment: Annotated[str, typer.Argument(help="the experiment: exp_..., or its name")],
    as_json: Annotated[bool, typer.Option("--json", help="print everything as one JSON object")] = False,
) -> None:
    """Show an experiment: its state, its best trial and all its trials."""
    from tuner.cli import experiments

    row = experiments.shown(experiments.result(_settings(), experiment))
    for line in [json.dumps(row)] if as_json else experiments.lines(row):
        print(printable(line))


@app.command(cls=OnService)
def best(experiment: Annotated[str, typer.Argument(help="the experiment: exp_..., or its name")]) -> None:
    """Print the best trial of an experiment as JSON, with its configuration and its checkpoint.

    Exit status 1: there is no best trial.
    """
    from tuner.cli import experiments

    found = experiments.best(experiments.result(_settings(), experiment))
    if found is None:
        raise typer.Exit(1)
    print(json.dumps(found))


@app.command(cls=OnService)
def export(
    experiment: Annotated[str, typer.Argument(help="the experiment: exp_..., or its name")],
    file: Annotated[
        Path, typer.Argument(help="the file to write; its ending (.csv, .json or .parquet) determines the format")
    ],
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="the format: csv, json or parquet; default: by the ending of the file",
        ),
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="write a row for each report instead of each trial")
    ] = False,
) -> None:
    """Write the trials of an experiment to a file, with one row for each trial."""
    from tuner.cli import experiments

    experiments.export(experiments.result(_settings(), experiment), file, form, history)


@app.command("export-model", cls=OnService)
def export_model(
    experiment: Annotated[str, typer.Argument(help="the experiment: exp_..., or its name")],
    folder: Annotated[Path, typer.Argument(help="the folder to create")],
    model: Annotated[
        str | None,
        typer.Option(
            help="a function that makes the model from the configuration, or a LightningModule, as FILE.py:NAME or module:name"
        ),
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format", help="a format: safetensors (default), torch_export or onnx; repeat for several formats"
        ),
    ] = None,
    example_input: Annotated[
        str | None,
        typer.Option(
            help="an example input of the model, or a function that returns one, as FILE.py:NAME or module:name"
        ),
    ] = None,
) -> None:
    """Write the best model of an experiment, with a model card, into a new folder, and print the path of the folder."""
    from tuner.cli import experiments, serving

    result = experiments.result(_settings(), experiment)
    print(serving.export_model(result, folder, model, formats or ["safetensors"], example_input))


@app.command("serve-model", cls=OnService)
def serve_model(
    experiment: Annotated[str, typer.Argument(help="the experiment: exp_..., or its name")],
    predictor: Annotated[
        str,
        typer.Argument(
            help="a class with __init__(self, checkpoint, config) and predict(self, inputs), as FILE.py:CLASS or module:Class"
        ),
    ],
    host: Annotated[
        str, typer.Option(help="address to listen on; addresses other than loopback require --token-file")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0 picks a free one")] = 0,
    token_file: Annotated[
        Path | None, typer.Option(help="a file that contains the token that callers must send")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="name of the Ray Serve application; default: the name of the experiment")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="number of processes that serve the model")] = 1,
    num_cpus: Annotated[float, typer.Option(min=0, help="number of CPUs of each process")] = 1.0,
    num_gpus: Annotated[float, typer.Option(min=0, help="number of GPUs of each process")] = 0.0,
    ray_address: Annotated[
        str | None, typer.Option(help="address of a Ray cluster to use instead of a local one")
    ] = None,
    without_ray: Annotated[
        bool, typer.Option("--without-ray", help="serve the model from this process, without Ray Serve")
    ] = False,
) -> None:
    """Serve the best model of an experiment over HTTP until Ctrl-C.

    The routes are POST /predict, GET /info, GET /healthz and POST /rollout, which loads a better model if the experiment has
    found one meanwhile.
    """
    from tuner.cli import serving

    token = None if token_file is None else token_file.read_text().strip()
    if without_ray:
        serving.serve_in_process(_settings(), experiment, predictor, host, port, token)
    else:
        cluster = {"ray_address": ray_address, "num_replicas": replicas, "num_cpus": num_cpus, "num_gpus": num_gpus}
        serving.serve_on_ray(_settings(), experiment, predictor, name, host=host, port=port, token=token, **cluster)


imports = typer.Typer(help="Import searches of other tools into the database of this home.", no_args_is_help=True)
app.add_typer(imports, name="import")


@imports.command("optuna", cls=OnThisMachine)
def import_optuna(
    storage: Annotated[
        str, typer.Argument(help="Optuna's storage: a URL, such as sqlite:///optuna.db, or the path of a journal file")
    ],
    study: Annotated[
        str | None, typer.Option("--study", help="name of the study; required if the storage has several")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="name of the experiment; default: the name of the study")
    ] = None,
) -> None:
    """Import an Optuna study as an experiment that has ended."""
    from tuner.sdk.imports import import_optuna as read

    found = read(storage, study, name=name)
    print(f"{printable(found.name)} {found.experiment_id}: {len(found.trials)} trials")


@imports.command("ray", cls=OnThisMachine)
def import_ray(
    folder: Annotated[Path, typer.Argument(help="the folder with the results, such as ~/ray_results/NAME")],
    metric: Annotated[str, typer.Option("--metric", help="the reported metric to compare trials by")],
    mode: Annotated[str, typer.Option("--mode", help="min or max")],
    name: Annotated[
        str | None, typer.Option("--name", help="name of the experiment; default: the name of the folder")
    ] = None,
) -> None:
    """Import a folder with Ray Tune results as an experiment that has ended."""
    from tuner.sdk.imports import import_ray as read

    found = read(folder, metric=metric, mode=mode, name=name)  # type: ignore[arg-type]  # import_ray checks the mode
    print(f"{printable(found.name)} {found.experiment_id}: {len(found.trials)} trials")


@app.command(cls=OnThisMachine)
def doctor(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="skip the checks that take several seconds: torch, training on two ranks, Ray"),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
) -> None:
    """Check this machine and this installation, and print what to do about each problem.

    Exit status 1: there is a problem that would make a search fail.
    """
    from tuner.cli.doctor import examine, report

    if not report(examine(_settings(), quick), lambda line: print(printable(line), flush=True), as_json):
        raise typer.Exit(1)


tokens = typer.Typer(help="Create, list and revoke the tokens that give access to the service.", no_args_is_help=True)
app.add_typer(tokens, name="token")


@tokens.command(name="create", cls=OnService)
def create_token(
    name: Annotated[str, typer.Argument(help="the person or program that will use the token")],
    role: Annotated[
        str, typer.Option(help="the role: viewer, editor, admin, or agent, which may only run trials")
    ] = "editor",
    project: Annotated[str | None, typer.Option(help="limit the token to this project; default: all projects")] = None,
    expires_days: Annotated[
        float | None, typer.Option(help="days until the token expires; default: it never expires", min=0.0)
    ] = None,
) -> None:
    """Create a token, and print it. It cannot be printed again later."""
    from tuner.cli import access, remote

    settings = _settings()
    if settings.address is None:
        print(access.created(settings, name, role, expires_days, project))
    else:
        print(remote.create_token(settings, name, role, expires_days, project)["secret"])


@tokens.command(name="list", cls=OnService)
def list_tokens(
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
) -> None:
    """List all tokens with their ids, roles and names, newest first. The tokens' secrets are not shown."""
    from tuner.cli import access, remote

    settings = _settings()
    found = access.rows(settings) if settings.address is None else remote.tokens(settings)
    for line in map(json.dumps, found) if as_json else access.lines(found):
        print(printable(line))


@tokens.command(name="revoke", cls=OnService)
def revoke_token(
    token: Annotated[str, typer.Argument(help="the id of the token, tok_..., as `tuner token list` shows it")],
) -> None:
    """Revoke a token. Running services notice within 5 seconds."""
    from tuner.cli import access, remote

    settings = _settings()
    revoked = access.revoked if settings.address is None else remote.revoke_token
    print(printable(revoked(settings, token)))


webhooks = typer.Typer(
    help="Add, list, remove and test webhooks, by which a service sends events to other systems.", no_args_is_help=True
)
app.add_typer(webhooks, name="webhook")
WebhookId = Annotated[str, typer.Argument(help="the id of the webhook, whk_..., as `tuner webhook list` shows it")]


@webhooks.command(name="add", cls=OnService)
def add_webhook(
    url: Annotated[str, typer.Argument(help="the URL to which deliveries are sent by POST")],
    events: Annotated[
        list[str],
        typer.Argument(help="the events to send, such as: experiment.completed trial.failed"),
    ],
    project: Annotated[str | None, typer.Option(help="send only events of this project")] = None,
    experiment: Annotated[str | None, typer.Option(help="send only events of this experiment, exp_...")] = None,
    slack: Annotated[
        bool, typer.Option("--slack", help="send messages in the format of Slack's incoming webhooks")
    ] = False,
    threshold: Annotated[
        float | None, typer.Option(help="the value of the first objective at which objective.reached is sent")
    ] = None,
) -> None:
    """Add a webhook, and print its id and the secret that signs its deliveries. The secret cannot be printed again later."""
    from tuner.cli import webhooks as module

    for line in module.added(_settings(), url, events, project, experiment, slack, threshold):
        print(printable(line))


@webhooks.command(name="list", cls=OnService)
def list_webhooks() -> None:
    """List all webhooks, newest first. Their secrets are not shown."""
    from tuner.cli import webhooks as module

    for line in module.listed(_settings()):
        print(printable(line))


@webhooks.command(name="rm", cls=OnService)
def remove_webhook(webhook: WebhookId) -> None:
    """Remove a webhook and the deliveries that it has not sent yet."""
    from tuner.cli import webhooks as module

    module.removed(_settings(), webhook)
    print(printable(f"removed {webhook}"))


@webhooks.command(name="test", cls=OnService)
def test_webhook(webhook: WebhookId) -> None:
    """Send a test delivery to a webhook, and print whether it has arrived.

    Exit status 1: the delivery has not arrived.
    """
    from tuner.cli import webhooks as module

    arrived, line = module.tested(_settings(), webhook)
    print(printable(line))
    if not arrived:
        raise typer.Exit(1)


def _command(verb: Verb, about: str) -> Callable[[str], None]:
    def command(name: str) -> None:
        from tuner.cli import experiments, verbs

        settings = _settings()
        remote = settings.address is not None
        print(printable(experiments.ask(settings, verb.name, name) if remote else verbs.ask(settings, verb, name)))

    command.__annotations__["name"] = Annotated[str, typer.Argument(metavar=about.upper(), help=_HELP[about])]
    return command


_HELP = {
    "experiment": "the experiment: exp_..., or its name",
    "trial": "the trial: trl_...",
    "experiment or trial": "an experiment, exp_... or its name; or a trial, trl_...",
}

for _verb in {**TRIAL_VERBS, **VERBS}.values():
    if _verb.name != "resume":  # has a command of its own above, which also waits for the end
        _both = _verb.name in TRIAL_VERBS and _verb.name in VERBS
        _about = "experiment or trial" if _both else "trial" if _verb.name in TRIAL_VERBS else "experiment"
        _help = _verb.summary.replace("the experiment", "the experiment or trial") if _both else _verb.summary
        app.command(name=_verb.name, help=_help, cls=OnService)(_command(_verb, _about))


def _settings(**changes: Any) -> Any:
    from tuner.settings import Settings

    given = {name: value for name, value in {**_chosen, **changes}.items() if value is not None}
    return dataclasses.replace(Settings.from_env(), **given)


EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (SpecError, 2),
    (NotFound, 3),
    (NotAllowed, 4),
    (Conflict, 5),
    (Retryable, 6),
    (ClusterUnreachable, 6),
)
"""(class of errors, exit status). The first class that fits counts. All other errors have the status 1; see docs/cli.md."""


def exit_code(error: TunerError) -> int:
    """Return the exit status of a command that has raised this error."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)


def main() -> None:
    """Run the `tuner` command. An expected error is printed as one line without a traceback."""
    try:
        app()
    except TunerError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(exit_code(error))
