"""`tuner webhook`: the webhooks of the service."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner.cli.command_classes import OnService
from tuner.cli.commands.global_options import command_settings
from tuner.names import printable

group = typer.Typer(
    help="Add, list, remove and test webhooks, by which a service sends events to other systems.", no_args_is_help=True
)
WebhookId = Annotated[str, typer.Argument(help="the id of the webhook, whk_..., as `tuner webhook list` shows it")]


@group.command(name="add", cls=OnService)
def add_webhook(
    url: Annotated[str, typer.Argument(help="the URL to which deliveries are sent by POST")],
    events: Annotated[
        list[str],
        typer.Argument(help="the events to send, such as: experiment.completed trial.failed"),
    ],
    project: Annotated[str | None, typer.Option(help="send only events of this project")] = None,
    experiment: Annotated[
        str | None, typer.Option(help="send only events of this experiment: exp_..., or its name")
    ] = None,
    slack: Annotated[
        bool, typer.Option("--slack", help="send messages in the format of Slack's incoming webhooks")
    ] = False,
    threshold: Annotated[
        float | None, typer.Option(help="the value of the first objective at which objective.reached is sent")
    ] = None,
) -> None:
    """Add a webhook, and print its id and the secret that signs its deliveries. The secret cannot be printed again later."""
    from tuner.cli.service import webhooks as module

    for line in module.added(command_settings(), url, events, project, experiment, slack, threshold):
        print(printable(line))


@group.command(name="list", cls=OnService)
def list_webhooks() -> None:
    """List all webhooks, newest first. Their secrets are not shown."""
    from tuner.cli.service import webhooks as module

    for line in module.listed(command_settings()):
        print(printable(line))


@group.command(name="rm", cls=OnService)
def remove_webhook(webhook: WebhookId) -> None:
    """Remove a webhook and the deliveries that it has not sent yet."""
    from tuner.cli.service import webhooks as module

    module.removed(command_settings(), webhook)
    print(printable(f"removed {webhook}"))


@group.command(name="test", cls=OnService)
def test_webhook(webhook: WebhookId) -> None:
    """Send a test delivery to a webhook, and print whether it arrived.

    Exit status 1: the delivery did not arrive.
    """
    from tuner.cli.service import webhooks as module

    arrived, line = module.tested(command_settings(), webhook)
    print(printable(line))
    if not arrived:
        raise typer.Exit(1)
