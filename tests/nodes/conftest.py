"""Clusters of several nodes, where this machine allows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.nodes.cluster import Cluster
from tests.nodes.network import why_not

NewCluster = Callable[[tuple[float | None, ...]], Cluster]


@pytest.fixture
def new_cluster() -> Iterator[NewCluster]:
    """Return a function that starts a head and a node for each given number of CPUs, and skip if there can be no nodes.

    Nodes whose number of CPUs is None are left for the test to start.
    """
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as stack:

        def start(cpus: tuple[float | None, ...]) -> Cluster:
            cluster = stack.enter_context(Cluster(1 + len(cpus)))
            cluster.start_head()
            for number, count in enumerate(cpus, 1):
                if count is not None:
                    cluster.start_node(number, count, {"TEST_DISK": str(cluster.disk(number))})
            return cluster

        yield start
