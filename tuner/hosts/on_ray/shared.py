"""Name the shared driver hosts of a database, find the one that runs, and stop those of other versions of tuner.

This module does not import `Host`, because that takes a second.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import ray
from packaging.version import Version

from tuner import __version__
from tuner.domain.keys import keyed_seed
from tuner.errors import NewerHost
from tuner.hosts.owners import ATTENDED_S
from tuner.hosts.ray.cluster import HOST_PREFIX, NAMESPACE
from tuner.hosts.ray.head import sources
from tuner.settings import Settings

ANSWER_S = 10.0
"""Timeout in seconds for a host of another version to return its owner name, and for it to exit after it was killed."""
LOOK_S = 0.5
"""Seconds between two looks at a host that a service may still use."""
_VERSION = "-v"
"""The text before the version in the name of a shared host. The names of other hosts have a random number instead."""


def base_name(settings: Settings) -> str:
    """Return the prefix that the names of all driver hosts of the same database have."""
    return f"{HOST_PREFIX}{keyed_seed(0, settings.database_url):016x}"


def shared_name(settings: Settings) -> str:
    """Return the name of the driver host that all services of this version with the same database share on a cluster."""
    return f"{base_name(settings)}{_VERSION}{__version__}"


def find_host(settings: Settings) -> Any:
    """Return the actor handle of the shared driver host; None if no such host runs."""
    try:
        return ray.get_actor(shared_name(settings), namespace=NAMESPACE)
    except ValueError:
        return None


def end_other_versions(settings: Settings) -> list[tuple[str, str | None]]:
    """Stop the shared hosts of this database that another version of tuner has started.

    On a Ray cluster that the user has named, also stop a host of this version if the code of tuner has changed since it was
    started, unless another service uses it. (A Ray of our own has been started again in this case.)

    Return the version and the owner name of each host that was stopped; the owner is None if the host did not answer. The
    next host claims the experiments of those hosts.

    Raises:
        NewerHost: a running service of a newer version uses such a host, which is not stopped. If two services stopped
            each other's hosts, no experiment would make progress.
    """
    base, ended = base_name(settings), []
    for name in sorted(_names_of_hosts()):
        version = name.removeprefix(base)
        shared = name.startswith(base) and (not version or version.startswith(_VERSION))
        ours = name == shared_name(settings)
        if not shared or (ours and not settings.ray_address):
            continue
        try:
            host = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:  # the host has just exited
            continue
        status: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # the host is stopped even if it does not answer
            status = ray.get(host.status.remote(), timeout=ANSWER_S)
        if ours and (status.get("sources") in (None, "", sources()) or _stays_attended(host)):
            continue
        number = version.removeprefix(_VERSION)
        if number and not ours and status.get("attended") and Version(number) > Version(__version__):
            raise NewerHost(
                f"a service of version {number} drives the experiments of this database. This service has version "
                f"{__version__} and drives no experiments while the other one runs. Update this service, or stop the other one"
            )
        owner = status.get("owner")
        ray.kill(host)
        until = time.monotonic() + ANSWER_S
        # `remove_orphans` finds the placement groups of a host only when the host is gone.
        while name in _names_of_hosts() and time.monotonic() < until:
            time.sleep(0.05)
        ended.append((f"an earlier state of {number}" if ours else number or "an earlier version", owner))
    return ended


def _stays_attended(host: Any) -> bool:
    """Return whether a service uses a host. Wait until it is clear that the service has not just ended."""
    until = time.monotonic() + ATTENDED_S + 1.0
    while time.monotonic() < until:
        try:
            if not ray.get(host.status.remote(), timeout=ANSWER_S)["attended"]:
                return False
        except Exception:  # the host does not answer, so no service gets answers either
            return False
        time.sleep(LOOK_S)
    return True


def _names_of_hosts() -> set[str]:
    actors = ray.util.list_named_actors(all_namespaces=True)
    return {
        actor["name"] for actor in actors if actor["namespace"] == NAMESPACE and actor["name"].startswith(HOST_PREFIX)
    }
