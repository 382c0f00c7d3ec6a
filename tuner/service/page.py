"""Serve the API and the web UI from a thread of a script."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

from tuner.errors import SpecError
from tuner.service.early import listen
from tuner.service.tokens import check_tokens, with_auth
from tuner.service_url import announced, url_of
from tuner.settings import Settings

if TYPE_CHECKING:
    import uvicorn
    from rich.console import Console

    from tuner.store import Store


class Page:
    """Serves the API and the web UI from a thread, without a driver, so that the user of a script can watch its searches.

    Raises:
        SpecError: the port that was given cannot be used. If that of the settings cannot be used, a free one is taken instead.
    """

    def __init__(self, settings: Settings | None = None, port: int | None = None) -> None:
        self.settings = with_auth(settings or Settings.from_env())
        host = self.settings.host
        self._socket = _listen_somewhere(host, self.settings.port) if port is None else listen(host, port)
        self.url = url_of(self.settings.host, self._socket.getsockname()[1])
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._store: Store | None = None
        self._announced = contextlib.ExitStack()

    def start(self) -> None:
        from tuner.api import create_app
        from tuner.api.server import Server
        from tuner.store import Store, shown_url

        self.settings.make_home()
        self._store = Store.open(self.settings.database_url, synchronous=self.settings.durability)
        self._store.migrate()
        check_tokens(self.settings, self._store)
        created = create_app(self.settings, self._store)
        server = self._server = Server(created, log_level="warning", grace_s=2)
        self._thread = threading.Thread(target=server.run, kwargs={"sockets": [self._socket]}, name="page", daemon=True)
        self._thread.start()
        while not server.started and self._thread.is_alive():
            time.sleep(0.02)
        port, database = self._socket.getsockname()[1], shown_url(self.settings.database_url)
        self._announced.enter_context(announced(self.settings.home, self.settings.host, port, database))

    def stay(self, console: Console) -> None:
        """Serve until Ctrl-C."""
        console.print(f"\nThe page is up at [bold]{self.url}[/bold]; Ctrl-C stops it.", highlight=False)
        ended = threading.Event()
        before = signal.signal(signal.SIGINT, lambda *_: ended.set())
        try:
            ended.wait()
        finally:
            signal.signal(signal.SIGINT, before)
            self.stop()

    def stop(self) -> None:
        self._announced.close()
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(timeout=10)
        self._socket.close()
        if self._store is not None:
            self._store.close()


def _listen_somewhere(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except SpecError:
        return listen(host, 0)
