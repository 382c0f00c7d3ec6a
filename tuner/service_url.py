"""The URL of the service that runs with a home, which the service writes into the home for scripts with the same home."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

NAME = "service_url"
"""The name of the file in the home."""

EVERYWHERE = frozenset({"0.0.0.0", "::", ""})
"""The hosts that mean all addresses of a machine, so that a browser cannot open them."""


@contextlib.contextmanager
def announced(home: Path, host: str, port: int, database: str) -> Iterator[None]:
    """Store the URL of this process's service in its home during a `with` block, unless another service's URL is there.

    database: the URL of the service's database, without its password.
    """
    if service_url(home, database) is not None:
        yield
        return
    name = "localhost" if host in EVERYWHERE else f"[{host}]" if ":" in host else host
    own = {
        "url": f"http://{name}:{port}",
        "database": database,
        "machine": socket.gethostname(),
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
    }
    file = home / NAME
    written = file.with_name(f"{NAME}.{os.getpid()}")
    with contextlib.suppress(OSError):  # with a database and a Ray elsewhere, the home may be read-only
        written.write_text(json.dumps(own))
        written.replace(file)
    try:
        yield
    finally:
        if _read(file) == own:
            with contextlib.suppress(OSError):
                file.unlink()


def service_url(home: Path, database: str) -> str | None:
    """Return the URL of a service that runs on this machine with this home and this database, or None."""
    found = _read(home / NAME)
    if (found.get("machine"), found.get("database")) != (socket.gethostname(), database):
        return None
    with contextlib.suppress(psutil.Error, KeyError, TypeError, ValueError):
        if psutil.Process(found["pid"]).create_time() == found["started"]:  # not another process with its number
            return str(found["url"])
    return None


def _read(file: Path) -> dict[str, object]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file.read_text())
        return found if isinstance(found, dict) else {}
    return {}
