"""Commands that run the service, or run its trials on other machines."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from tuner.cli.command_classes import OnNeither, OnService, OnThisMachine
from tuner.cli.commands.global_options import command_settings
from tuner.cli.commands.parameters import AT_ONCE, DatabaseUrl, JsonLines, RayAddress
from tuner.errors import SpecError
from tuner.names import printable

group = typer.Typer()


@group.command(cls=OnThisMachine)
def serve(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option(help="address to listen on; addresses other than loopback require tokens")
    ] = None,
    port: Annotated[int | None, typer.Option(help="port to listen on; 0 picks a free one")] = None,
    database_url: DatabaseUrl = None,
    ray_address: RayAddress = None,
    auth: Annotated[bool, typer.Option("--auth", help="require a token on loopback too")] = False,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="also continue experiments whose script has exited, without being asked to"),
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="shut down the local Ray that an earlier `tuner serve` started")
    ] = False,
) -> None:
    """Run the service: REST API, web UI and driver.

    The service runs experiments that are created through the API. It also shows experiments of scripts, and continues them on
    request if their script has exited.
    """
    settings = command_settings(
        host=host, port=port, database_url=database_url, ray_address=ray_address, auth="on" if auth else None
    )
    if stop:
        from tuner.hosts.ray.head import stop_head
        from tuner.service_url import running_service
        from tuner.store import shown_url

        print("stopped" if stop_head(settings.home) else "there was nothing to stop")
        if (left := running_service(settings.home, shown_url(settings.database_url))) is not None:
            print(
                f"the service at {left.url} is still running, but drives no experiments: stop it with Ctrl-C or kill {left.pid}",
                file=sys.stderr,
            )
        return
    from tuner.service.early import answering

    with answering(settings.host, settings.port, context.obj) as early:
        from tuner.service.serve import serve as serve_until_told

        serve_until_told(settings, early, adopt)


@group.command(cls=OnNeither)
def agent(
    address: Annotated[str, typer.Argument(metavar="URL", help="URL of the service, such as http://host:8000")],
    target: Annotated[
        str | None,
        typer.Argument(
            help="the training function: module:function or FILE.py:FUNCTION; default: the experiment's entrypoint"
        ),
    ] = None,
    experiment: Annotated[str, typer.Option(help="the experiment: exp_..., or its name")] = "",
    command: Annotated[
        str | None,
        typer.Option(help="a program to run instead of a function, with its arguments, such as 'train.py --lr {lr}'"),
    ] = None,
    metric_pattern: Annotated[
        str | None, typer.Option(help="a regular expression that finds metrics in the output of the program")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="where to store checkpoints; default: the experiment's storage")
    ] = None,
    parallel: Annotated[int, AT_ONCE] = 1,
    name: Annotated[str | None, typer.Option(help="name of this agent; default: host:pid")] = None,
    lease_s: Annotated[
        float,
        typer.Option(
            min=1.0,
            help="if this agent sends nothing for this many seconds, the service gives its trials to other agents",
        ),
    ] = 60.0,
) -> None:
    """Run trials of an experiment with the executor "agents" on this machine, until the experiment has ended.

    The machine needs neither Ray nor a database. After Ctrl-C, SIGTERM or SIGHUP, the agent gives its trials back, and exits. The
    token is read from TUNER_TOKEN.
    """
    from tuner.cli.agent import work
    from tuner.sdk.live.terminal import tell

    if not experiment:
        raise SpecError("is required: the id or the name of an experiment", "/experiment")
    settings = command_settings(address=address)
    count = work(
        settings.address or address,
        settings.token,
        experiment,
        target=target,
        command=command,
        metric_pattern=metric_pattern,
        name=name,
        storage=storage,
        parallel=parallel,
        lease_s=lease_s,
        settings=settings,
        say=lambda line: tell(printable(line)),
    )
    ran = "1 trial or part of a trial was" if count == 1 else f"{count} trials or parts of trials were"
    tell(f"{ran} run by this agent")


@group.command(cls=OnService)
def audit(
    limit: Annotated[int, typer.Option(min=1, help="show at most this many entries")] = 100,
    as_json: JsonLines = False,
) -> None:
    """Show who changed what on the service, newest first."""
    from tuner.cli.home import access
    from tuner.cli.service import remote

    settings = command_settings()
    found = access.trail(settings, limit) if settings.address is None else remote.trail(settings, limit)
    for line in (json.dumps(one.model_dump()) for one in found) if as_json else access.trail_lines(found):
        print(printable(line))
