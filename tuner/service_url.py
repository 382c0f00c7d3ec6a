"""The URL of the service of a home. The service writes it into the home, for scripts that use the same home."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tuner.hosts.owners import owner_name

NAME = "service_url"
"""The name of the file in the home."""

EVERYWHERE = frozenset({"0.0.0.0", "::", ""})
"""The host settings that stand for all addresses of a machine. They are not valid in a browser's address."""


def url_of(host: str, port: int) -> str:
    """Return the URL at which a browser on this machine reaches a service that listens on this host and port."""
    name = "localhost" if host in EVERYWHERE else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}"


@contextlib.contextmanager
def announced(home: Path, host: str, port: int, database: str) -> Iterator[None]:
    """Store the URL of this process's service in its home during a `with` block, unless another service's URL is there.

    database: the URL of the service's database, without its password.
    """
    if service_url(home, database) is not None:
        yield
        return
    own = {
        "url": url_of(host, port),
        "database": database,
        "pid": os.getpid(),
        "owner": owner_name(),
    }
    file = home / NAME
    written = file.with_name(f"{NAME}.{os.getpid()}")
    with contextlib.suppress(OSError):  # if the database and Ray are elsewhere, the home may be read-only
        written.write_text(json.dumps(own), encoding="utf-8")
        written.replace(file)
    try:
        yield
    finally:
        if _read(file) == own:
            with contextlib.suppress(OSError):
                file.unlink()


@dataclass(frozen=True, slots=True)
class Running:
    """A service that runs on this machine."""

    url: str
    pid: int


def service_url(home: Path, database: str) -> str | None:
    """Return the URL of a service that runs on this machine with this home and this database, or None."""
    found = running_service(home, database)
    return found.url if found is not None else None


def running_service(home: Path, database: str) -> Running | None:
    """Return the service that runs on this machine with this home and this database, or None."""
    found = _read(home / NAME)
    if found.get("database") != database:
        return None
    with contextlib.suppress(psutil.Error, KeyError, TypeError, ValueError):
        if owner_name(found["pid"]) == found["owner"]:  # otherwise it has ended, or runs on another machine
            return Running(str(found["url"]), found["pid"])
    return None


def _read(file: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}
