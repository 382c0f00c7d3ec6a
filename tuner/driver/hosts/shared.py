"""Name the shared driver hosts of a database, find the host that runs, and end those of another version.

This module does not import the host itself, because that takes a second.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import ray
from packaging.version import Version

from tuner import __version__
from tuner.domain.keys import keyed_seed
from tuner.driver.hosts.cluster import HOST_PREFIX, NAMESPACE
from tuner.errors import NewerHost
from tuner.settings import Settings

ANSWER_S = 10.0
"""The host of another version has this many seconds to return its owner name, and then as many again to end."""
_VERSION = "-v"
"""The text before the version in the name of a shared host. Other hosts have hexadecimal digits in that place."""


def base_name(settings: Settings) -> str:
    """Return the prefix of the names of all hosts of a database."""
    return f"{HOST_PREFIX}{keyed_seed(0, settings.database_url):016x}"


def shared_name(settings: Settings) -> str:
    """Return the name of the host that all services of this version and database share on a cluster."""
    return f"{base_name(settings)}{_VERSION}{__version__}"


def find_host(settings: Settings) -> Any:
    """Return the handle of the shared host; None if no such host runs."""
    try:
        return ray.get_actor(shared_name(settings), namespace=NAMESPACE)
    except ValueError:
        return None


def end_other_versions(settings: Settings) -> list[tuple[str, str | None]]:
    """End the shared hosts of this database that another version of tuner has started.

    Return (version, owner) of each host; the owner is None if the host did not answer. The next host claims their
    experiments.

    Raises:
        NewerHost: a running service of a newer version uses such a host, which is not ended. If two services ended each
            other's hosts, no experiment would make progress.
    """
    base, ended = base_name(settings), []
    for name in sorted(_names_of_hosts()):
        version = name.removeprefix(base)
        shared = name.startswith(base) and (not version or version.startswith(_VERSION))
        if not shared or name == shared_name(settings):
            continue
        try:
            host = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:  # it has just ended
            continue
        status: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # it is ended even if it does not answer
            status = ray.get(host.status.remote(), timeout=ANSWER_S)
        number = version.removeprefix(_VERSION)
        if number and status.get("attended") and Version(number) > Version(__version__):
            raise NewerHost(
                f"a service of version {number} drives the experiments of this database. This service has version "
                f"{__version__} and drives none while the other one runs. Update this service, or end the other one"
            )
        owner = status.get("owner")
        ray.kill(host)
        until = time.monotonic() + ANSWER_S
        while (
            name in _names_of_hosts() and time.monotonic() < until
        ):  # its placement groups are orphans once it is gone
            time.sleep(0.05)
        ended.append((version.removeprefix(_VERSION) or "an earlier version", owner))
    return ended


def _names_of_hosts() -> set[str]:
    actors = ray.util.list_named_actors(all_namespaces=True)
    return {
        actor["name"] for actor in actors if actor["namespace"] == NAMESPACE and actor["name"].startswith(HOST_PREFIX)
    }
