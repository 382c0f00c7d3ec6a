"""`tuner project`: the projects, and their settings."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from tuner.cli.command_classes import OnService
from tuner.cli.commands.global_options import command_settings
from tuner.cli.commands.parameters import JsonLines
from tuner.names import printable

group = typer.Typer(help="List projects, and change their settings.", no_args_is_help=True)


@group.command(name="list", cls=OnService)
def list_projects(as_json: JsonLines = False) -> None:
    """List the projects that have experiments, settings or a quota, with the hours that their experiments have used."""
    from tuner.cli.home import projects
    from tuner.cli.service import remote

    settings = command_settings()
    found = projects.listed(settings) if settings.address is None else remote.projects(settings)
    for line in (json.dumps(one.model_dump(mode="json")) for one in found) if as_json else projects.lines(found):
        print(printable(line))


@group.command(name="change", cls=OnService)
def change_project(
    project: Annotated[str, typer.Argument(help="the project, which need not have experiments yet")],
    warm_start: Annotated[
        Literal["auto", "none"],
        typer.Option(help="auto: new experiments learn from earlier ones of the project; none: they do not"),
    ],
) -> None:
    """Change the settings of a project. Existing experiments do not change."""
    from tuner.cli.home import projects
    from tuner.cli.service import remote

    settings = command_settings()
    changed = projects.changed if settings.address is None else remote.change_project
    for line in projects.lines([changed(settings, project, "auto" if warm_start == "auto" else None)]):
        print(printable(line))
