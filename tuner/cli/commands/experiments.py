"""Commands that create, list, change and export experiments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.command_classes import OnService
from tuner.cli.commands.global_options import command_settings
from tuner.cli.commands.parameters import ExperimentName, ExperimentNames, IdempotencyKey, JsonLines, JsonObject
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
    experiment: ExperimentName,
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
    key: IdempotencyKey = None,
) -> None:
    """Create an experiment from the spec of an existing one, with changes, and print its id.

    Like `submit`, the command uses the service at TUNER_ADDRESS, or the service on this machine.
    """
    from tuner.cli.service import experiments

    print(experiments.fork(command_settings(), experiment, changes or [], learn, key))


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
    """Show an experiment: its state, its best trial and all its trials."""
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
