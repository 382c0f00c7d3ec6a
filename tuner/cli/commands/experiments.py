"""Commands that create, list, change and export experiments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.command_classes import OnService
from tuner.cli.commands.global_options import command_settings
from tuner.cli.commands.parameters import (
    ExperimentName,
    ExperimentNames,
    IdempotencyKey,
    JsonLines,
    JsonObject,
    TrialNumber,
)
from tuner.cli.commands.several import for_each_experiment
from tuner.cli.json_text import dumps
from tuner.domain.states import ExperimentState
from tuner.errors import SpecError
from tuner.names import printable

group = typer.Typer()

SHOWN = 20
"""The number of experiments that `tuner ls` lists by default."""


@group.command(cls=OnService)
def submit(
    spec: Annotated[
        Path, typer.Argument(help="a YAML or JSON file with the spec of an experiment, or - for standard input")
    ],
    key: IdempotencyKey = None,
    code: Annotated[
        Path | None,
        typer.Option(help="a folder of Python code to upload; the entrypoint is first looked up in this folder"),
    ] = None,
) -> None:
    """Create an experiment on the service at TUNER_ADDRESS (default: the service on this machine), and print its id."""
    from tuner.cli.service.experiments import submit as create

    print(create(command_settings(), spec, key, code))


@group.command(cls=OnService)
def fork(
    experiment: Annotated[
        str,
        typer.Argument(metavar="EXPERIMENT|TRIAL", help="the experiment: exp_..., or its name; or a trial, trl_..."),
    ],
    number: TrialNumber = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="a change of the spec, such as space.lr.upper=0.5, or of a parameter of the trial, such as lr=0.01; the value "
            "is JSON or text; repeat for several changes",
        ),
    ] = None,
    learn: Annotated[
        bool, typer.Option("--learn", help="let the new search learn from the trials of the existing experiment")
    ] = False,
    checkpoint: Annotated[
        str | None, typer.Option(help="the checkpoint from which the new trial starts, ckp_...; default: the newest")
    ] = None,
    key: IdempotencyKey = None,
) -> None:
    """Create an experiment from the spec of an existing one, with changes, and print its id.

    With the number or the id of a trial, start a new trial from a checkpoint of that one instead, and print the new trial's id.

    Like `submit`, the command uses the service at TUNER_ADDRESS, or the service on this machine.
    """
    from tuner.cli.service import experiments

    if number is None and not experiment.startswith("trl_"):
        if checkpoint is not None:
            raise SpecError("--checkpoint is for the fork of a trial: also give the number of one")
        print(experiments.fork(command_settings(), experiment, changes or [], learn, key))
        return
    if learn:
        raise SpecError("--learn is for the fork of an experiment, not of a trial")
    made = experiments.fork_trial(command_settings(), experiment, number, changes or [], checkpoint, key)
    if made is None:
        print("the new trial has not started yet, because all slots are taken or the search is paused", file=sys.stderr)
    else:
        print(made)


@group.command(cls=OnService)
def enqueue(
    experiment: ExperimentName,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="the value of a parameter, such as lr=0.01 or opt/lr=0.01; the value is JSON or text; repeat for several "
            "parameters; those that are left out are drawn at random",
        ),
    ] = None,
) -> None:
    """Start a trial with a configuration of yours next, in addition to num_samples. An experiment that has ended runs again."""
    from tuner.cli.service import experiments

    outcome = experiments.enqueue(command_settings(), experiment, values or [])
    print(printable(str(outcome)))
    if not isinstance(outcome, str):  # the search was run here, to its end
        from tuner.cli.run import run_status

        if status := run_status(outcome):
            raise typer.Exit(status)


@group.command(cls=OnService)
def change(
    experiment: ExperimentName,
    changes: Annotated[
        list[str],
        typer.Option(
            "--set",
            help="a change, such as num_samples=40, space.lr.upper=0.5, space.momentum=null or assume.dropout=0; the value is "
            "JSON or text; repeat for several changes",
        ),
    ],
) -> None:
    """Change the name, notes, tags, num_samples, limits or search space of an experiment, even while it runs."""
    from tuner.cli.service import experiments

    print(printable(experiments.change(command_settings(), experiment, changes)))


@group.command(cls=OnService)
def delete(
    names: ExperimentNames,
    force: Annotated[bool, typer.Option("--force", help="kill those that have not ended first")] = False,
) -> None:
    """Delete experiments with their trials, checkpoints and logs. This cannot be undone."""
    from tuner.cli.service import experiments

    settings = command_settings()
    for_each_experiment(names, lambda name: experiments.delete(settings, name, force))


@group.command(cls=OnService)
def archive(names: ExperimentNames) -> None:
    """Archive experiments that have ended: lists leave them out, but no data is deleted."""
    from tuner.cli.service import experiments

    settings = command_settings()
    for_each_experiment(names, lambda name: experiments.archive(settings, name, True))


@group.command(cls=OnService)
def unarchive(names: ExperimentNames) -> None:
    """Unarchive experiments, so that lists show them again."""
    from tuner.cli.service import experiments

    settings = command_settings()
    for_each_experiment(names, lambda name: experiments.archive(settings, name, False))


@group.command(name="ls", cls=OnService, help="Do the same as `tuner list`.")
@group.command(name="list", cls=OnService)
def list_experiments(
    state: Annotated[ExperimentState | None, typer.Option(help="only experiments in this state")] = None,
    name: Annotated[str | None, typer.Option(help="only experiments with this text in their name")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            help="only experiments with this tag, as key or key=value; repeat the option to require several tags"
        ),
    ] = None,
    project: Annotated[str | None, typer.Option(help="only experiments of this project")] = None,
    archived: Annotated[
        bool, typer.Option("--archived", help="list those that are archived, instead of the others")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(help="list at most this many; default: 20, or all with --ids", min=1, max=1000)
    ] = None,
    ids: Annotated[
        bool,
        typer.Option(
            "--ids", help="print only the ids, such as for `tuner ls --ids --tag team=vision | xargs -r tuner cancel`"
        ),
    ] = False,
    as_json: JsonLines = False,
) -> None:
    """List the experiments of this home, or of the service if TUNER_ADDRESS is set, newest first."""
    from tuner.cli.home import listing
    from tuner.cli.service import experiments

    if ids and as_json:
        raise SpecError("use either --ids or --json")
    settings = command_settings()
    wanted: listing.Filters = {
        "state": state,
        "name": name,
        "tags": tag or (),
        "project": project,
        "archived": "yes" if archived else "no",
    }
    if ids or as_json:
        for row in experiments.rows(settings, wanted, limit if ids else limit or SHOWN):
            print(row["id"] if ids else dumps(row))
        return
    if settings.address is None:
        lines = listing.experiments(settings, wanted, limit or SHOWN)
    else:
        with experiments.connected(settings, settings.address) as client:
            lines = listing.table(experiments.listed(client, wanted, limit or SHOWN))
    for line in lines:
        print(printable(line))


@group.command(cls=OnService)
def show(experiment: ExperimentName, as_json: JsonObject = False) -> None:
    """Show an experiment: its state, its best trial, its notes and all its trials."""
    from tuner.cli.service import experiments

    settings = command_settings()
    row = experiments.shown(experiments.result(settings, experiment), experiments.abandoned(settings, experiment))
    for line in [dumps(row)] if as_json else experiments.lines(row):
        print(printable(line))


@group.command(cls=OnService)
def best(experiment: ExperimentName) -> None:
    """Print the best trial of an experiment as JSON, with its configuration and its checkpoint.

    Exit status 1: there is no best trial.
    """
    from tuner.cli.service import experiments

    result = experiments.result(command_settings(), experiment)
    found = experiments.best(result)
    if found is None:
        print(printable(f"no best trial: {result.error or 'no trial has reported yet'}"), file=sys.stderr)
        raise typer.Exit(1)
    print(dumps(found))


@group.command(cls=OnService)
def export(
    experiment: ExperimentName,
    file: Annotated[
        Path,
        typer.Argument(
            help="the file to write, or - for standard output; the ending (.csv, .json or .parquet) determines the format"
        ),
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
    from tuner.cli.service import experiments

    experiments.export(experiments.result(command_settings(), experiment, log=history), file, form, history)
