"""The Ray that everything runs on: connect to a given one, start a private one, or start one that outlives this process."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import ray
import ray.util
from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup, remove_placement_group

from tuner.domain.experiment import Scaling
from tuner.domain.keys import keyed_seed
from tuner.errors import ClusterUnreachable
from tuner.trials.compat.ray_compat import this_machine
from tuner.trials.groups.placement import unmet

log = logging.getLogger(__name__)

NAMESPACE = "tuner"
HOST_PREFIX = "tuner-host-"
DEAD = (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError)
"""What a call of the driver host raises once it is dead; the second where Ray killed it for memory, as it may beside a rank."""


def connect(address: str | None = None, *, cpus: float | None = None) -> bool:
    """Make sure that this process is connected to Ray; True when a private local Ray was started for it.

    With an address, to that cluster. Without one, a private Ray that ends with this process; never one that happens to run
    here. A Ray that this process is connected to already is used as it is.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": False, "namespace": NAMESPACE}
    try:
        if address:
            ray.init(address=address, **quiet)
            return False
        logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # a private Ray needs no advice on it
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
        return True
    except Exception as error:  # Ray raises a bare Exception when one of its processes does not come up in time
        log.debug("Ray could not be reached or started", exc_info=True)
        with contextlib.suppress(Exception):
            ray.shutdown()  # of what had come up already
        raise ClusterUnreachable(_unreachable(address, error)) from None


def _unreachable(address: str | None, error: Exception) -> str:
    """Say in one line what went wrong and what to do about it."""
    lines = str(error).strip().splitlines()
    what = lines[0].strip().rstrip(".")[:300] if lines else type(error).__name__
    if address:
        return (
            f"Ray at {address} could not be reached: {what}. Check the address (ray_address or RAY_ADDRESS) and that the "
            "cluster runs (`ray status`), and run this again"
        )
    return (
        f"Ray could not be started on this machine: {what}. Check that memory, /dev/shm and the temporary directory have room "
        "and that the machine is not overloaded, and run this again; Ray's own logs are in /tmp/ray/session_latest/logs"
    )


def start_head(home: Path) -> str:
    """Start Ray in processes of its own by `ray start --head`, or find the one that was started so; its address."""
    home.mkdir(parents=True, exist_ok=True)
    marker = home / "ray_address"
    if marker.exists() and _answers(address := marker.read_text().strip()):
        return address
    _ray_command("get-auth-token", "--generate")
    done = _ray_command(
        "start",
        "--head",
        "--port=0",
        "--disable-usage-stats",
        "--include-dashboard=false",
        f"--temp-dir={_scratch(home)}",
    )
    found = re.search(r"--address='?([\w.:-]+:\d+)", done.stdout)
    if done.returncode or not found:
        raise ClusterUnreachable(f"`ray start --head` failed: {(done.stdout + done.stderr).strip()[-1000:]}")
    marker.write_text(found[1])
    return found[1]


def stop_head(home: Path) -> bool:
    """End the Ray that `start_head` started for this home, with all that runs on it; whether there was one."""
    (home / "ray_address").unlink(missing_ok=True)
    scratch = str(_scratch(home))
    processes = [p for p in psutil.process_iter(["cmdline"]) if scratch in " ".join(p.info["cmdline"] or ())]
    for process in processes:
        with contextlib.suppress(psutil.Error):
            processes.extend(child for child in process.children(recursive=True) if child not in processes)
            process.terminate()
    _, stubborn = psutil.wait_procs(processes, timeout=10)
    for process in stubborn:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return bool(processes)


def _scratch(home: Path) -> Path:
    """Ray's own files for this home. Not under the home itself: paths of Unix sockets must be short."""
    return Path(tempfile.gettempdir()) / f"tuner-ray-{os.getuid()}-{keyed_seed(0, str(home)):016x}"


def remove_orphans() -> int:
    """Remove the placement groups of driver hosts that are no more; how many there were.

    Ray keeps an actor's placement groups until the whole job ends, so that those of a killed host would hold their resources.
    """
    living = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
    removed = 0
    for key, group in ray.util.placement_group_table().items():
        owner = group["name"].rpartition("/")[0]
        if owner.startswith(HOST_PREFIX) and owner not in living and group["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(key))))
            removed += 1
    return removed


def living_nodes() -> set[str]:
    """Return Ray's ids of the nodes that are alive."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def capacity(scaling: Scaling) -> int | None:
    """How many worker groups of this kind the present cluster holds at once, at least one; None where it cannot be told."""
    bundle = scaling.bundle()
    if not bundle:
        return None
    ranks = 0
    for node in ray.nodes():
        if node["Alive"]:
            ranks += int(min(_times(node["Resources"], name, amount) for name, amount in bundle.items()))
    return max(1, ranks // scaling.num_workers)


def too_large(scaling: Scaling) -> str | None:
    """Why a private Ray on this machine, before it is started, could never hold such a worker group; None where it could, or
    where that cannot be told."""
    there = this_machine()
    if there is None:
        return None
    without_end = dict.fromkeys(scaling.bundle(), 1e30)  # of what only a started Ray knows
    reason = unmet(scaling, [{**without_end, "CPU": there["CPU"], "GPU": there["GPU"]}])
    if reason is None:
        return None
    here = " and ".join(f"{there[name]:g} {name}{'s' if there[name] != 1 else ''}" for name in ("CPU", "GPU"))
    return f"{reason}; without a ray_address that is this machine alone, with {here}"


def _times(resources: Mapping[str, float], name: str, amount: float) -> float:
    return (resources.get(name, 0.0) + 1e-9) // amount


def _answers(address: str) -> bool:
    """Whether a Ray head listens there; a port that something else has taken since does not count as one."""
    return _ray_command("health-check", f"--address={address}").returncode == 0


def _ray_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Ray's own command line, in a session of its own, so that a Ctrl-C here does not reach what it starts."""
    command = [sys.executable, "-m", "ray.scripts.scripts", *arguments]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, start_new_session=True)
