"""The connection by which the driver notices that a rank's machine can no longer be reached.

Ray notices a lost machine by its missing heartbeats, after more than a minute. The kernel notices a lost connection sooner;
see `tuner.trials.messages.keepalive`. A rank's other connections to the driver do not suffice: they are opened when they
are first needed, and most ranks have nothing to send.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import socket
import struct
import threading
import time

from tuner.trials.messages.keepalive import keep_alive
from tuner.trials.messages.report_socket import LIFELINE, Address

log = logging.getLogger(__name__)

_HEADER = struct.Struct("!I")
_CONNECT_S = 5.0
_PAUSE_S = 2.0
_PATIENCE_S = 120.0


class Lifeline:
    """A rank's end of the connection. A thread opens the connection, and reopens it if it breaks.

    Args:
        address: the address at which the driver listens.
        token: the secret of this rank's process, by which the driver identifies the rank.
    """

    def __init__(self, address: Address, token: bytes) -> None:
        self._address, self._token = address, token
        self._connection: socket.socket | None = None
        threading.Thread(target=self._hold, name="tuner-lifeline", daemon=True).start()

    def tell(self, trouble: str) -> None:
        """Tell the driver that this rank cannot reach another rank's machine. If there is no connection, do nothing."""
        body = pickle.dumps(trouble)
        with contextlib.suppress(AttributeError, OSError):
            self._connection.sendall(_HEADER.pack(len(body)) + body)  # type: ignore[union-attr]

    def _hold(self) -> None:
        last = time.monotonic()
        while time.monotonic() - last < _PATIENCE_S:  # after that, the driver counts as gone, and its ranks exit
            try:
                with socket.create_connection((self._address.host, self._address.port), timeout=_CONNECT_S) as found:
                    keep_alive(found)
                    found.sendall(self._address.token + LIFELINE + self._token)
                    found.settimeout(None)
                    self._connection = found
                    found.recv(1)  # the driver sends nothing: this returns when the connection ends
            except OSError as error:
                log.info("the connection to the driver is broken: %s", error)
            if self._connection is not None:
                self._connection, last = None, time.monotonic()
            time.sleep(_PAUSE_S)
