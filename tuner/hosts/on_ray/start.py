"""Start driver hosts as actors of Ray."""

from __future__ import annotations

import secrets
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner.errors import ClusterUnreachable
from tuner.hosts.actor import HostActor
from tuner.hosts.on_ray.shared import base_name, shared_name
from tuner.hosts.ray.cluster import NAMESPACE, living_nodes
from tuner.hosts.ray.head import sources
from tuner.settings import Settings


def start_host(settings: Settings, *, shared: bool = False) -> Any:
    """Start a driver host as a Ray actor and return the actor's handle. If `shared`, use a shared host that already runs.

    A shared host outlives its creator. Its name contains a hash of the database's URL and the version of tuner, so that a
    service never uses a host of another version.

    Raises:
        ClusterUnreachable: the host must run on this node, whose raylet has died. Ray would wait for the node forever.
    """
    name = shared_name(settings) if shared else f"{base_name(settings)}-{secrets.token_hex(6)}"
    options: dict[str, Any] = {
        "num_cpus": 0,
        "max_concurrency": 10_000,
        "namespace": NAMESPACE,
        "name": name,
        "enable_task_events": False,  # otherwise the Ray head keeps a record of each report
    }
    # With SQLite, the host must run on this node, where the file is. It should do so with any database: an actor on another node
    # would keep an autoscaler from removing that node, and would be lost if the node were taken away.
    here = ray.get_runtime_context().get_node_id()
    elsewhere = not settings.database_url.startswith("sqlite")
    if not elsewhere and here not in living_nodes():
        then = (
            "" if shared else ", and continue the search with `tuner resume` (in this process, after `ray.shutdown()`)"
        )
        raise ClusterUnreachable(
            "Ray's node on this machine has died, for example because the kernel has killed its raylet for lack of memory. Start "
            f"it again with `ray start`{then}"
        )
    options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=elsewhere)
    if shared:
        options |= {"lifetime": "detached", "get_if_exists": True}
    return ray.remote(HostActor).options(**options).remote(settings, name, sources() if shared else "")
