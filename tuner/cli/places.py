"""Classes that say where a command works. Every command has one of them as its `cls`, which a test checks."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from tuner.errors import SpecError
from tuner.settings import Settings


class OnService(TyperCommand):
    """A command that works on the service at the address if one is given, else on this home."""


class OnThisMachine(TyperCommand):
    """A command that works only on this machine: its home, its database, its Ray. It refuses an address.

    Otherwise, `tuner --address URL restore FILE` would replace the database of this home and not that of the service.
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
    """A command that uses neither this home nor the service of the option. An address makes no difference to it."""
