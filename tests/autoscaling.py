"""A Ray cluster on this machine whose nodes a real autoscaler adds and removes, through Ray's fake node provider.

`ray.cluster_utils.AutoscalingCluster` does the same, but needs a file that is missing in Ray's wheel, and runs
`ray stop --force`, which ends every Ray of the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import ray

_MARK = "TUNER_TEST_CLUSTER"


@contextlib.contextmanager
def autoscaled(
    types: Mapping[str, tuple[int, Mapping[str, float]]], *, head: Mapping[str, float], idle_s: float = 4.0
) -> Iterator[str]:
    """Start a head with an autoscaler, yield its address, and end its processes and those of its nodes, but no others.

    Args:
        types: for each type of nodes, how many there may be, and the resources of one.
        head: the resources of the head.
        idle_s: seconds after which an idle node is removed.
    """
    token, port, ip = secrets.token_hex(8), _free_port(), ray.util.get_node_ip_address()
    with tempfile.TemporaryDirectory(prefix="as-", dir="/tmp", ignore_cleanup_errors=True) as scratch:
        config = Path(scratch, "autoscaling.json")
        config.write_text(json.dumps(_config(types, head, idle_s, f"{ip}:{port}")))
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}"]
        command += [f"--autoscaling-config={config}", f"--temp-dir={scratch}/ray", "--include-dashboard=false"]
        command += [f"--num-cpus={head.get('CPU', 0):g}", "--num-gpus=0", "--object-store-memory=100000000"]
        environment = {
            **os.environ,
            _MARK: token,
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_FAKE_CLUSTER": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
        }
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stdout + done.stderr
            yield f"{ip}:{port}"
        finally:
            if ray.is_initialized():
                ray.shutdown()
            _end(token)


def _config(
    types: Mapping[str, tuple[int, Mapping[str, float]]], head: Mapping[str, float], idle_s: float, address: str
) -> dict[str, Any]:
    nodes = {
        name: {"resources": dict(resources), "node_config": {}, "min_workers": 0, "max_workers": most}
        for name, (most, resources) in types.items()
    }
    nodes["ray.head.default"] = {"resources": dict(head), "node_config": {}, "min_workers": 0, "max_workers": 0}
    return {
        "cluster_name": "fake_multinode",
        "max_workers": sum(most for most, _ in types.values()),
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": idle_s / 60,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": address,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "auth": {},
        "available_node_types": nodes,
        "head_node_type": "ray.head.default",
        "docker": {},
        **{f"{when}_commands": [] for when in ("initialization", "setup", "head_setup", "worker_setup")},
        **{f"{which}_start_ray_commands": [] for which in ("head", "worker")},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
    }


def until(what: Callable[[], Any], timeout: float = 90.0) -> Any:
    """Wait until a function returns something true, and return that."""
    deadline = time.monotonic() + timeout
    while not (found := what()):
        assert time.monotonic() < deadline, "it has not come"
        time.sleep(0.2)
    return found


def nodes() -> list[dict[str, Any]]:
    """Return the live nodes, without the head."""
    there = [node for node in ray.nodes() if node["Alive"]]
    return [node for node in there if "node:__internal_head__" not in node["Resources"]]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
    return port


def _end(token: str) -> None:
    """Kill the processes that inherited the mark, until there are none."""
    for _ in range(20):
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(_MARK) == token:
                    process.kill()
                    left.append(process)
        if not left:
            return
        psutil.wait_procs(left, timeout=5.0)
