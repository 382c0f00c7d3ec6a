"""Notice within seconds that another machine can no longer be reached, although no process on it has exited.

When a process exits, its kernel closes its connections, and the other side learns of that at once. When a cable is cut
or a machine loses power, nothing is sent. So this machine's kernel sends keepalive probes to the other kernel, which
answers even if the process there hangs, is stopped or holds the GIL. But if the receive buffer of such a process is
full, a sender with a time limit on unacknowledged data treats the link as cut. So connections for large messages have
no such limit.
"""

from __future__ import annotations

import contextlib
import errno
import socket

SILENT_S = 12
"""Seconds without data or an answer to a probe after which a connection counts as cut."""
ASK_S = 3
"""Seconds between two keepalive probes, if nothing else is sent."""

_CUT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


def keep_alive(connection: socket.socket, large_messages: bool = False) -> None:
    """Let the kernel break a TCP connection once the machine at the other end has been silent for `SILENT_S` seconds.

    On systems that lack some of these options, a cut connection is noticed later.

    Args:
        connection: the connection.
        large_messages: True if messages may fill the buffers of the other side. If data is in flight when the link is cut,
            such a connection breaks only after many minutes.
    """
    options = {
        (socket.SOL_SOCKET, "SO_KEEPALIVE"): 1,
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE"): ASK_S,
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL"): ASK_S,
        (socket.IPPROTO_TCP, "TCP_KEEPCNT"): SILENT_S // ASK_S,
    }
    if not large_messages:
        options[socket.IPPROTO_TCP, "TCP_USER_TIMEOUT"] = SILENT_S * 1000  # for data that was sent and not acknowledged
    for (level, name), value in options.items():
        with contextlib.suppress(AttributeError, OSError):
            connection.setsockopt(level, getattr(socket, name), value)


def is_cut(error: BaseException) -> bool:
    """Return whether this connection error means that the other machine cannot be reached.

    If only the process at the other end has exited, the error is a different one, because its kernel closes or resets
    the connection.
    """
    return isinstance(error, OSError) and error.errno in _CUT
