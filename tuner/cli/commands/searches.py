"""Commands that run a search, on the cluster or in virtual time, and wait until it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.command_classes import OnNeither, OnService, OnThisMachine
from tuner.cli.commands.declared import with_options
from tuner.cli.commands.global_options import command_settings
from tuner.cli.commands.parameters import (
    AT_ONCE,
    PARAM,
    SEED,
    ExperimentName,
    ExperimentNames,
    Mode,
    NumSamples,
    RayAddress,
    Scheduler,
    SearchAlg,
)
from tuner.cli.commands.several import for_each_experiment
from tuner.cli.json_text import dumps
from tuner.errors import SpecError
from tuner.names import printable

if TYPE_CHECKING:
    from tuner.sdk.result import Result

group = typer.Typer()


@group.command(context_settings={"allow_interspersed_args": False}, cls=OnService)
@with_options("scaling", "limits")
def run(
    target: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="what to run: a script, FILE.py:FUNCTION, or module:function")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="arguments of the script; {lr} stands for the value of the parameter lr"),
    ] = None,
    is_module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is the name of a module, to run as `python -m` does")
    ] = False,
    param: Annotated[list[str] | None, PARAM] = None,
    metric: Annotated[str, typer.Option(help="the reported metric to minimize or maximize")] = "loss",
    mode: Mode = "min",
    metric_pattern: Annotated[
        str | None,
        typer.Option(
            help="a regular expression that finds metrics in lines of stdout, such as 'loss: (?P<loss>[0-9.]+)'"
        ),
    ] = None,
    num_samples: NumSamples = None,
    num_workers: Annotated[
        str | None,
        typer.Option(help="number of ranks of each trial; a range such as 1-8 for elastic trials of a function"),
    ] = None,
    max_t: Annotated[int | None, typer.Option(min=1, help="length of a full training, by default in reports")] = None,
    time_attr: Annotated[
        str | None, typer.Option(help="the unit of --max-t: training_iteration, time_total_s, or a metric")
    ] = None,
    scheduler: Scheduler = None,
    search_alg: SearchAlg = None,
    working_dir: Annotated[
        str | None,
        typer.Option(
            help="the working directory of the ranks: trial (a new folder for each trial) or caller (the current folder); "
            "default: caller for a script, trial for a function"
        ),
    ] = None,
    seed: Annotated[int | None, SEED] = None,
    name: Annotated[str | None, typer.Option(help="name of the experiment")] = None,
    executor: Annotated[
        str | None,
        typer.Option(help="where trials run: auto, ray, or local, which means processes on this machine without Ray"),
    ] = None,
    ray_address: RayAddress = None,
    verbose: Annotated[
        int, typer.Option(help="0: print only the result; 1: also the progress; 2: also the output of the ranks")
    ] = 1,
    **options: Any,
) -> None:
    """Search for the best configuration of a script or a function, and wait until the search has ended.

    Exit status 1: the search failed or was cancelled, or no trial has a result. 130: the search was paused by Ctrl-C.

    tuner's options come before the script, and the script's arguments after it.
    """
    from tuner.cli.run import run_target, workers_of

    settings = command_settings()
    given = {
        "metric": metric,
        "mode": mode,
        "num_samples": num_samples,
        "num_workers": workers_of(num_workers),
        "max_t": max_t,
        "time_attr": time_attr,
        "scheduler": scheduler,
        "search_alg": search_alg,
        "working_dir": working_dir,
        "seed": seed,
        "name": name,
        "executor": executor,
        "ray_address": ray_address,
        "address": settings.address,
        "verbose": verbose,
    }
    options |= {option: value for option, value in given.items() if value is not None}
    result = run_target(target, arguments or [], param or [], metric_pattern, options, is_module=is_module)
    _finish(result)


def _finish(result: Result) -> None:
    """Print the result of a search that this command has run, and exit with the status that says how the search ended."""
    from tuner.cli.run import run_status

    print(printable(str(result)))
    if status := run_status(result):
        raise typer.Exit(status)


@group.command(cls=OnService)
def resume(names: ExperimentNames, ray_address: RayAddress = None) -> None:
    """Continue an experiment that is paused, or whose driver was killed, and wait until the experiment has ended.

    If TUNER_ADDRESS is set, the service at this address continues the experiments, and the command does not wait.
    """
    settings = command_settings()
    if settings.address is not None:
        from tuner.cli.service.experiments import ask

        _refuse_for_service(ray_address)
        for_each_experiment(names, lambda name: str(ask(settings, "resume", name)))
        return
    if len(names) > 1:
        raise SpecError("without a service, resume one experiment at a time: the command waits until it has ended")
    from tuner.sdk.run import resume as take_up

    _finish(take_up(names[0], ray_address=ray_address))


@group.command(name="continue", cls=OnService)
def continue_(
    experiment: ExperimentName,
    num_samples: Annotated[
        int | None,
        typer.Option(min=1, help="number of trials to add; default: none, for use after you have raised a limit"),
    ] = None,
    ray_address: RayAddress = None,
) -> None:
    """Run an ended experiment again, if its limits allow more trials, and wait until it has ended.

    If TUNER_ADDRESS is set, the service at this address runs the experiment, and the command does not wait.
    """
    settings = command_settings()
    if settings.address is not None:
        from tuner.cli.service.experiments import connected

        _refuse_for_service(ray_address)
        with connected(settings, settings.address) as client:
            answer = client.experiment(experiment).continue_(num_samples)
        named = answer.id if experiment == answer.id else f"{experiment} ({answer.id})"
        print(printable(f"asked to continue {named}, which is {answer.state}"))
        return
    from tuner.sdk.saved import read

    _finish(read(experiment, log=False, ray_address=ray_address).add(num_samples))


def _refuse_for_service(ray_address: str | None) -> None:
    if ray_address is not None:
        raise SpecError("--ray-address is for a search that this machine drives; the service uses its own Ray")


@group.command(cls=OnNeither)
def simulate(
    target: Annotated[
        str,
        typer.Argument(
            help="the function to simulate, FILE.py:FUNCTION or module:function; it yields tuner.Step objects"
        ),
    ],
    param: Annotated[list[str], PARAM],
    metric: Annotated[str, typer.Option(help="the metric to minimize or maximize")] = "loss",
    mode: Mode = "min",
    num_samples: NumSamples = None,
    max_t: Annotated[int | None, typer.Option(min=1, help="number of reports of a full training")] = None,
    scheduler: Scheduler = None,
    search_alg: SearchAlg = None,
    max_concurrent_trials: Annotated[int, AT_ONCE] = 4,
    time_budget_s: Annotated[float | None, typer.Option(help="virtual seconds after which the search ends")] = None,
    seed: Annotated[int, SEED] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print the outcome as one JSON object")] = False,
) -> None:
    """Run a search in virtual time, with a function that yields the reports of a training run. Nothing is stored.

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
    for line in [dumps(row)] if as_json else lines:
        print(printable(line))
    if row["best"] is None:
        raise typer.Exit(1)


@group.command(cls=OnThisMachine)
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
    from tuner.cli.run import run_status

    if status := run_status(run_demo(as_json=as_json, serve_after=serve_after, trials=trials, port=port)):
        raise typer.Exit(status)
