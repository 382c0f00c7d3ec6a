"""Small jobs on a given node: functions that run there as Ray tasks without resources."""

from __future__ import annotations

import functools
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def on_node(node: str, function: Any, *args: Any, retries: int = 0) -> Any:
    """Run a function that can be imported there on that node: a Ray reference to its result."""
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return _as_task(function).options(scheduling_strategy=strategy, max_retries=retries).remote(*args)


@functools.cache
def _as_task(function: Any) -> Any:
    """Made once: Ray keeps each until the job ends."""
    return ray.remote(num_cpus=0)(function)
