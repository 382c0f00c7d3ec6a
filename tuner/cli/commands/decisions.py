"""Commands that show what happened in an experiment, and why."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tuner.cli.command_classes import OnService
from tuner.cli.commands.global_options import command_settings
from tuner.cli.commands.parameters import JsonLines, JsonObject, TrialNumber
from tuner.names import printable, without_colors

group = typer.Typer()


@group.command(cls=OnService)
def explain(
    trial: Annotated[
        str, typer.Argument(help="a trial, trl_...; or an experiment's id or name, for all its decisions")
    ],
    number: TrialNumber = None,
    as_json: JsonLines = False,
) -> None:
    """Show every decision about a trial and its reason: why the trial was started, paused or stopped."""
    from tuner.cli.home import explain as here
    from tuner.cli.service import remote

    settings = command_settings()
    about = here.decisions_about if settings.address is None else remote.decisions_about
    for line in about(settings, trial, as_json, number):
        print(printable(line))


@group.command(cls=OnService)
def logs(
    trial: Annotated[str, typer.Argument(help="a trial, trl_...; or an experiment's id or name")],
    number: TrialNumber = None,
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
    from tuner.cli.home import logs as here
    from tuner.cli.service import remote
    from tuner.store import LogQuery

    settings = command_settings()
    logs_of = here.logs_of if settings.address is None else remote.logs_of
    query = LogQuery(rank=rank, segment=segment, tail=tail, search=search)
    printed = False
    for text in logs_of(settings, trial, number, query, follow=follow):
        print(printable(without_colors(text)), end="", flush=True)
        printed = printed or bool(text)
    if not printed:
        part = search or tail == 0 or rank is not None or segment is not None
        print("no output to show" if part else "this trial has printed nothing", file=sys.stderr)


@group.command(cls=OnService)
def schedule(
    experiment: Annotated[str, typer.Argument(help="the id or name of an experiment, or the id of a trial (trl_...)")],
    trial: Annotated[
        int | None, typer.Argument(help="number of a trial of the experiment; default: the best trial")
    ] = None,
) -> None:
    """Print, as JSON, the configurations that led to a trial's weights, each with the iteration after which it applies."""
    from tuner.cli.home import explain as here
    from tuner.cli.service import remote

    settings = command_settings()
    schedule_of = here.schedule_of if settings.address is None else remote.schedule_of
    print(schedule_of(settings, experiment, trial))


@group.command(cls=OnService)
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
    as_json: JsonObject = False,
) -> None:
    """Show what a search would have cost and found under another scheduler, and when each of its trials would have stopped."""
    from tuner.cli.home import replay as here
    from tuner.cli.service import remote

    settings = command_settings()
    replayed = here.replayed if settings.address is None else remote.replayed
    for line in replayed(settings, experiment, scheduler, options or [], search, concurrent, as_json):
        print(printable(line))
