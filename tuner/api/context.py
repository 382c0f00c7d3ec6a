"""What the routes share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request

from tuner.api.auth import Authenticator
from tuner.api.stream import Tail
from tuner.experiments.preview import Importances
from tuner.settings import Settings
from tuner.store import Store
from tuner.usercode.entrypoints import EntrypointChecker


@dataclass(slots=True)
class Context:
    settings: Settings
    store: Store
    poke: Callable[[], None]
    problem: Callable[[], str | None]
    look: Callable[[str], Mapping[str, Mapping[str, Any]]]
    checker: EntrypointChecker = field(default_factory=EntrypointChecker)
    ending: threading.Event = field(default_factory=threading.Event)
    tail: Tail = field(init=False)
    importances: Importances = field(init=False)
    authenticator: Authenticator = field(init=False)

    def __post_init__(self) -> None:
        self.tail = Tail(self.store, self.ending)
        self.importances = Importances(self.store)
        self.authenticator = Authenticator(self.settings, self.store)


def context(request: Request) -> Context:
    found: Context = request.app.state.context
    return found


Here = Annotated[Context, Depends(context)]
