"""Functions that run on a given node, as Ray tasks that need no resources."""

from __future__ import annotations

import functools
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_RETRIES = 3  # retries of a task that Ray has lost, or whose process was killed, for example for lack of memory


def on_node(node: str, function: Any, *args: Any) -> Any:
    """Run a function as a Ray task on this node, which must be able to import it. Return a reference to the result.

    The function may run more than once: Ray repeats a task that was lost while the node is alive.
    """
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return as_task(function).options(scheduling_strategy=strategy, max_retries=_RETRIES).remote(*args)


@functools.cache
def as_task(function: Any) -> Any:
    """Make a function a Ray remote function. Do so only once, because Ray keeps remote functions until the job ends."""
    return ray.remote(num_cpus=0)(function)
