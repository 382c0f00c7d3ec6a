"""The options of `tuner` itself: --address and --token, which choose a service for all commands, and --version."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from typing import Annotated, Any

import typer

import tuner

_chosen: dict[str, str | None] = {}


def _print_version(wanted: bool) -> None:
    if wanted:
        print(tuner.__version__)
        raise typer.Exit


def read_global_options(
    address: Annotated[
        str | None,
        typer.Option(help="use the service at this URL instead of the local database; default: TUNER_ADDRESS"),
    ] = None,
    token: Annotated[str | None, typer.Option(help="token for the service; default: TUNER_TOKEN")] = None,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version of tuner and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Distributed hyperparameter tuning."""
    _chosen.update(address=address, token=token)
    _warn_of_misspelled_settings()


def _warn_of_misspelled_settings() -> None:
    from tuner.settings import MisspelledSetting, misspelled

    warnings.simplefilter("ignore", MisspelledSetting)  # each would be printed again, with a line of tuner's own code
    for message in misspelled(os.environ):
        print(f"warning: {message}", file=sys.stderr)


def command_settings(**changes: Any) -> Any:
    """Return the settings of this process, with the chosen service. Each change that is not None replaces a setting."""
    from tuner.settings import Settings

    given = {name: value for name, value in {**_chosen, **changes}.items() if value is not None}
    return dataclasses.replace(Settings.from_env(), **given)
