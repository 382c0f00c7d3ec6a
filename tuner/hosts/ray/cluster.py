"""Connect to a Ray cluster, or start a private cluster that shuts down with this process."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
import ray.util
from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup

from tuner import __version__
from tuner.domain.experiment import Scaling
from tuner.errors import ClusterUnreachable
from tuner.hosts.ray import tokens
from tuner.hosts.ray.fork_server import FORKS, ForkServer
from tuner.hosts.ray.ray_start import temporary, without_helpers
from tuner.names import RAY_CLIENT, no_ray_client
from tuner.plurals import counted
from tuner.settings import Settings
from tuner.trials.compat.ray_compat import this_machine
from tuner.trials.groups.cluster.growth import NodeType, may_join
from tuner.trials.groups.cluster.ray_nodes import live_nodes
from tuner.trials.groups.pools import removal
from tuner.trials.groups.pools.placement import unmet

log = logging.getLogger(__name__)

NAMESPACE = "tuner"
_ROOM_BYTES = 64 << 20  # with less room for their temporary files, Ray's processes exit without an explanation
_CONNECT_S = 10.0  # for a connection to the port of Ray's head
HOST_PREFIX = "tuner-host-"
DEAD = (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError)
"""The errors raised by calls to a dead driver host. OutOfMemoryError means that Ray killed the host for lack of memory."""


def connect(
    address: str | None = None, *, cpus: float | None = None, fork_server: Callable[[], ForkServer] | None = None
) -> bool:
    """Connect this process to Ray. Return True if a private Ray instance was started.

    With an address, connect to the cluster at that address. Without one, start a private Ray instance, which shuts down with
    this process; an instance that already runs on this machine is not used. If the process is already connected to Ray, keep
    that connection.

    fork_server: a function that returns the server that forks the workers of a private Ray; None if Ray starts them itself.
    """
    if ray.is_initialized():
        return False
    if (address or "").startswith(RAY_CLIENT):
        raise ClusterUnreachable(no_ray_client())
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if sys.stderr is None:  # it was closed when Python started, and Ray cannot do without
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    quiet: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": False, "namespace": NAMESPACE}
    where: str | None = None
    try:
        if address:
            _check_listens(address)
            with tokens.of_cluster(address, Settings.from_env().home) as where:
                ray.init(address=address, **quiet)
            return False
        tokens.begin_private()
        # Ray logs advice about authentication, which a private instance does not need
        logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
        with without_helpers(fork_server() if fork_server is not None and FORKS else None):
            folder = None if "RAY_TMPDIR" in os.environ else f"{temporary('ray')}/ray"
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=folder, **quiet)
        return True
    except ClusterUnreachable:
        raise
    except Exception as error:  # Ray raises a bare Exception when one of its processes does not come up in time
        log.debug("Ray could not be reached or started", exc_info=True)
        with contextlib.suppress(Exception):
            disconnect()  # stops the processes that had already started
        raise ClusterUnreachable(_unreachable(address, error, where)) from None


def disconnect() -> None:
    """Disconnect this process from Ray. If `connect` has started a private Ray instance, shut that down too."""
    ray.shutdown()
    tokens.end_private()


def _check_listens(address: str) -> None:
    """Raise ClusterUnreachable if nothing listens at an address. Ray itself would try for four minutes."""
    found = re.fullmatch(r"\[?([^\[\]]+)\]?:(\d+)", address)
    if found is None:  # such as "auto"
        return
    try:
        socket.create_connection((found[1], int(found[2])), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterUnreachable(
            f"Ray at {address} could not be reached: {getattr(error, 'strerror', None) or error}. Check the address "
            "(ray_address or RAY_ADDRESS) and that the cluster runs (`ray status`), and try again"
        ) from None


def nearly_full() -> str:
    """Return words that name the directory of Ray's temporary files if it is nearly full, else an empty string."""
    place = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        free = shutil.disk_usage(place).free
    except OSError:
        return ""
    return f" (the temporary directory {place} has only {free >> 20} MiB free)" if free < _ROOM_BYTES else ""


_RAISED = re.compile(r"^([a-zA-Z_][\w.]*): ", re.MULTILINE)
"""Matches the type of each error in a traceback. The last one has ended the process; the others are its causes."""

_OTHER_CODE = ("AttributeError", "ImportError", "ModuleNotFoundError", "TypeError")
"""The errors of a driver host that was called as only another version of tuner can be."""


OF_A_SCRIPT = (
    "Restart Ray with this version, by `tuner serve --stop` if a service of another home has started it, or leave ray_address "
    "and RAY_ADDRESS out"
)
OF_A_SERVICE = "End this Ray with `tuner serve --stop`; the next `tuner serve` starts it with this version"
GIVEN_TO_A_SERVICE = (
    "Restart Ray with this version, or start the service without --ray-address and RAY_ADDRESS, "
    "so that it has a Ray of its own"
)
"""The advice about a Ray with another version of tuner: for a script, a service with its own Ray, and one that got an address."""


def not_started(error: Exception, advice: str = OF_A_SCRIPT) -> str:
    """Return why a driver host could not be started on Ray, and what to do if that Ray has loaded other code."""
    raised = _RAISED.findall(str(error))
    if not raised or raised[-1] not in _OTHER_CODE:
        return f"the driver host could not be started on Ray{nearly_full()}: {error}"
    return (
        "the driver host could not be started, most likely because the processes of this Ray have another version of tuner than "
        f"this one ({__version__}). {advice}: {error}"
    )


def _unreachable(address: str | None, error: Exception, where: str | None = None) -> str:
    """Return one line that says why Ray could not be reached or started, and what the user can do about it.

    where: the place of the token that was used, as a phrase; None if none was used.
    """
    if isinstance(error, UnicodeEncodeError):
        return (
            f"Ray can neither be used in a folder whose path is not UTF-8 nor by a script in one; this is {os.getcwd()!r}. "
            "Rename it, or use another one. If the path is UTF-8, Python uses another encoding: set PYTHONUTF8=1"
        )
    lines = str(error).strip().splitlines()
    said = "" if not lines else " ".join(map(str.strip, lines)) if lines[0].endswith(":") else lines[0]
    what = said.strip().rstrip(".")[:300] or type(error).__name__
    if address and what.startswith("Version mismatch"):
        return (
            f"Ray at {address} cannot be used from this environment: {what}. Run this with the versions of Python and Ray that "
            "the cluster has"
        )
    if address:
        return (
            f"Ray at {address} could not be reached: {what}. Check the address (ray_address or RAY_ADDRESS) and that the "
            f"cluster runs (`ray status`), and try again. {tokens.advice(where)}"
        )
    return (
        f"Ray could not be started on this machine{nearly_full()}: {what}. Check that memory, /dev/shm and the temporary "
        "directory have room and that the machine is not overloaded, and try again; Ray's own logs are in "
        "/tmp/ray/session_latest/logs"
    )


def remove_orphans() -> int:
    """Remove the placement groups of driver hosts that have died. Return the number of groups removed.

    Ray keeps an actor's placement groups until the whole job ends, so the groups of a killed host would still hold resources.
    """
    groups = ray.util.placement_group_table()  # before the hosts, or a host that has just started would seem to be dead
    living = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
    orphans = []
    for key, group in groups.items():
        owner = group["name"].rpartition("/")[0]
        if owner.startswith(HOST_PREFIX) and owner not in living and group["state"] != "REMOVED":
            orphans.append(PlacementGroup(PlacementGroupID(bytes.fromhex(key))))
    removal.remove(*orphans)
    return len(orphans)


def living_nodes() -> set[str]:
    """Return Ray's ids of the live nodes."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def capacity(scaling: Scaling, types: Sequence[NodeType] = ()) -> int | None:
    """Return how many worker groups of this kind the cluster holds at once, at least one; None if they need no resources.

    types: the types of nodes that an autoscaler may add. Nodes that may still join are counted too.
    """
    ranks = workers(scaling, types)
    return None if ranks is None else max(1, ranks // scaling.num_workers)


def workers(scaling: Scaling, types: Sequence[NodeType] = ()) -> int | None:
    """Return how many ranks the cluster holds at once, on whichever nodes; None if they need no resources.

    types: the types of nodes that an autoscaler may add. Nodes that may still join are counted too.
    """
    bundle = scaling.bundle()
    if not bundle:
        return None
    nodes = live_nodes()
    return sum(
        int(min(_times(resources, name, amount) for name, amount in bundle.items()))
        for resources in (nodes | may_join(types, nodes)).values()
    )


def too_large(scaling: Scaling) -> str | None:
    """Return why this machine alone could never hold such a worker group; None if it could, or if that is unknown.

    The check does not start Ray.
    """
    there = this_machine()
    if there is None:
        return None
    # assume enough of every resource that is known only when Ray runs
    without_end = dict.fromkeys(scaling.bundle(), 1e30)
    reason = unmet(scaling, [{**without_end, "CPU": there["CPU"], "GPU": there["GPU"]}])
    if reason is None:
        return None
    here = " and ".join(counted(there[name], name, "g") for name in ("CPU", "GPU"))
    return f"{reason}; without a ray_address, only this machine is used, which has {here}"


def _times(resources: Mapping[str, float], name: str, amount: float) -> float:
    return (resources.get(name, 0.0) + 1e-9) // amount
