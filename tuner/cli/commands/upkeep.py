"""Commands for this installation and the database of its home."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.command_classes import OnNeither, OnThisMachine
from tuner.cli.commands.global_options import command_settings
from tuner.cli.commands.parameters import DatabaseUrl, JsonLines
from tuner.names import printable

group = typer.Typer()


@group.command(cls=OnThisMachine)
def doctor(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="skip the checks that take several seconds: torch, training on two ranks, Ray"),
    ] = False,
    as_json: JsonLines = False,
) -> None:
    """Check this machine and this installation, and print what to do about each problem.

    Exit status 1: there is a problem that would make a search fail.
    """
    from tuner.cli.doctor import examine, report

    if not report(examine(command_settings(), quick), lambda line: print(printable(line), flush=True), as_json):
        raise typer.Exit(1)


@group.command(cls=OnNeither)
def docs(
    topic: Annotated[
        str | None,
        typer.Argument(help="a page such as recipes, an error such as SpecError, or a cause of failures such as oom"),
    ] = None,
) -> None:
    """Print a page of the documentation, or what to do about an error. Without a topic, list all pages."""
    from tuner.cli.docs import text_about

    print(text_about(topic))


@group.command(cls=OnThisMachine)
def migrate(database_url: DatabaseUrl = None) -> None:
    """Create the database, or update its tables to this version."""
    from tuner.store import Store, shown_url

    settings = command_settings(database_url=database_url)
    settings.make_home()
    with Store.open(settings.database_url, synchronous=settings.durability) as store:
        store.migrate()
    print(f"{shown_url(settings.database_url)} is up to date")


@group.command(cls=OnThisMachine)
def backup(file: Annotated[str, typer.Argument(help="the file to create")]) -> None:
    """Copy the database of this home to a new SQLite file. Services and searches may keep running."""
    from tuner.store.backups.backup import backup as copy

    size = copy(command_settings().database_url, Path(file))
    print(printable(f"{file}: {size:,} bytes"))


@group.command(cls=OnThisMachine)
def restore(
    file: Annotated[str, typer.Argument(help="a file that `tuner backup` has written")],
    force: Annotated[bool, typer.Option("--force", help="replace the database even if it has experiments")] = False,
) -> None:
    """Replace the database of this home with a backup. Stop services and searches first."""
    from tuner.store import Store
    from tuner.store.backups.backup import restore as put_back

    settings = command_settings()
    put_back(settings.database_url, Path(file), force=force)
    with Store.open(settings.database_url, synchronous=settings.durability) as store:
        store.migrate()
    print(printable(f"restored the database from {file}"))
