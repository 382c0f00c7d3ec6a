"""`tuner import`: searches from other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.command_classes import OnThisMachine
from tuner.names import printable
from tuner.plurals import counted

group = typer.Typer(help="Import searches from other tools into the database of this home.", no_args_is_help=True)


@group.command("optuna", cls=OnThisMachine)
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
    print(f"{printable(found.name)} {found.experiment_id}: {counted(len(found.trials), 'trial')}")


@group.command("ray", cls=OnThisMachine)
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
    print(f"{printable(found.name)} {found.experiment_id}: {counted(len(found.trials), 'trial')}")
