"""`tuner checkpoints`, `pin` and `unpin`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tuner.cli.command_classes import OnService
from tuner.cli.commands.global_options import command_settings
from tuner.cli.commands.parameters import ExperimentName, JsonLines, TrialNumber
from tuner.cli.commands.several import for_each_experiment
from tuner.names import printable

group = typer.Typer()

CheckpointIds = Annotated[
    list[str],
    typer.Argument(metavar="CHECKPOINT...", help="the checkpoints: ckp_..., which `tuner checkpoints` lists"),
]

SHOWN = 100
"""The number of checkpoints that `tuner checkpoints` lists by default."""


@group.command(name="checkpoints", cls=OnService)
def list_checkpoints(
    experiment: ExperimentName,
    number: TrialNumber = None,
    state: Annotated[
        Literal["uploading", "ready", "deleted", "all"],
        typer.Option(help="only checkpoints in this state; the files of a ready one can be used"),
    ] = "ready",
    limit: Annotated[int, typer.Option(min=1, help="list at most this many")] = SHOWN,
    as_json: JsonLines = False,
) -> None:
    """List the checkpoints of an experiment, or of one trial, newest first."""
    from tuner.cli.service import checkpoints

    for line in checkpoints.lines(command_settings(), experiment, number, state, limit, as_json):
        print(printable(line))


@group.command(cls=OnService)
def pin(checkpoints: CheckpointIds) -> None:
    """Pin checkpoints, so that the experiment's checkpoint policy does not delete them."""
    _pin(checkpoints, True)


@group.command(cls=OnService)
def unpin(checkpoints: CheckpointIds) -> None:
    """Unpin checkpoints, so that the experiment's checkpoint policy may delete them again."""
    _pin(checkpoints, False)


def _pin(ids: list[str], pinned: bool) -> None:
    from tuner.cli.service import checkpoints

    settings = command_settings()
    for_each_experiment(ids, lambda checkpoint: checkpoints.pin(settings, checkpoint, pinned))
