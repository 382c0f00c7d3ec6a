"""`tuner token`: the tokens of the service."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tuner.cli.command_classes import OnService
from tuner.cli.commands.global_options import command_settings
from tuner.cli.commands.parameters import JsonLines
from tuner.names import printable

group = typer.Typer(help="Create, list and revoke the tokens that give access to the service.", no_args_is_help=True)


@group.command(name="create", cls=OnService)
def create_token(
    name: Annotated[str, typer.Argument(help="the person or program that will use the token")],
    role: Annotated[
        str, typer.Option(help="the role: viewer, editor, admin, or agent, which may only run trials")
    ] = "editor",
    project: Annotated[str | None, typer.Option(help="limit the token to this project; default: all projects")] = None,
    expires_days: Annotated[
        float | None, typer.Option(help="days until the token expires; default: it never expires", min=0.0)
    ] = None,
) -> None:
    """Create a token, and print it. It cannot be printed again later."""
    from tuner.cli.home import access
    from tuner.cli.service import remote

    settings = command_settings()
    created = access.created if settings.address is None else remote.create_token
    print(created(settings, name, role, expires_days, project))


@group.command(name="list", cls=OnService)
def list_tokens(as_json: JsonLines = False) -> None:
    """List all tokens with their ids, roles and names, newest first. The tokens' secrets are not shown."""
    from tuner.cli.home import access
    from tuner.cli.service import remote

    settings = command_settings()
    found = access.rows(settings) if settings.address is None else remote.tokens(settings)
    for line in map(json.dumps, found) if as_json else access.lines(found):
        print(printable(line))


@group.command(name="revoke", cls=OnService)
def revoke_token(
    token: Annotated[str, typer.Argument(help="the id of the token, tok_..., as `tuner token list` shows it")],
) -> None:
    """Revoke a token. Running services notice within 5 seconds."""
    from tuner.cli.home import access
    from tuner.cli.service import remote

    settings = command_settings()
    revoked = access.revoked if settings.address is None else remote.revoke_token
    print(printable(revoked(settings, token)))
