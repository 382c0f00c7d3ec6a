"""Rays for tests that are as cheap as the one that tuner starts: their workers are forked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import ray
from ray.cluster_utils import Cluster

from tuner.hosts.ray.fork_server import FORKS, ForkServer
from tuner.hosts.ray.ray_start import without_helpers
from tuner.trials.messages.forks import ON_USE


def _forking(torch: bool = False, ignored: Iterable[str] = ()) -> contextlib.AbstractContextManager[None]:
    """Let this process start one node of Ray whose workers are forked, within a `with` block."""
    return without_helpers(ForkServer(torch, ignored, used=ON_USE if torch else ()) if FORKS else None)


def start_ray(cpus: int, *, torch: bool = False) -> None:
    """Start a Ray on this machine, and connect this process to it.

    Args:
        cpus: the number of CPUs that it has.
        torch: True if most ranks of the tests need PyTorch.
    """
    with _forking(torch):
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="warning")


class ForkingCluster(Cluster):  # type: ignore[misc]
    """A cluster of nodes on this machine. Each forks its workers."""

    def add_node(self, wait: bool = True, **options: Any) -> Any:
        """Start a node and add it to the cluster. options: those of Ray's own method."""
        with _forking(ignored=options.get("env_vars", ())):
            return super().add_node(wait, **options)
