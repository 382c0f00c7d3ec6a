"""Functions that run on a given node, as Ray tasks that need no resources."""

from __future__ import annotations

import functools
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def on_node(node: str, function: Any, *args: Any, retries: int = 0) -> Any:
    """Run a function on a node that can import it. Return a Ray reference to its result."""
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return _as_task(function).options(scheduling_strategy=strategy, max_retries=retries).remote(*args)


@functools.cache
def _as_task(function: Any) -> Any:
    """Return the Ray task for a function. Each task is made only once, because Ray keeps it until the job ends."""
    return ray.remote(num_cpus=0)(function)
