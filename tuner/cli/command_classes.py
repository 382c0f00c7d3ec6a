"""Command classes, which say where a command works. A test checks that every command has one of them as its `cls`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from tuner.errors import SpecError
from tuner.settings import Settings


class OnService(TyperCommand):
    """A command that works on a service if an address is given, and otherwise on the database of this home."""


class OnThisMachine(TyperCommand):
    """A command that works only with the home, the database and Ray of this machine. It refuses to run if an address is given.

    Otherwise `tuner --address URL restore FILE`, which looks as if it changed the service, would replace this home's database.
    """

    def invoke(self, ctx: Any) -> Any:
        given = ctx.find_root().params.get("address")
        if (address := given or Settings.from_env().address) is not None:
            remedy = "leave --address out" if given else "unset TUNER_ADDRESS"
            raise SpecError(
                f"`tuner {self.name}` works only on this machine, not on the service at {address}; nothing was done: {remedy}",
                "/address",
            )
        return super().invoke(ctx)


class OnNeither(TyperCommand):
    """A command that uses neither this home nor the service that --address names, so that the option has no effect."""
