"""Support Ray Data in trials: split data sets among a trial's ranks, and show how far they have been read."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tuner.errors import TunerError
from tuner.trials.training import session


def pack(datasets: Mapping[str, Any]) -> dict[str, Any]:
    """Return data sets in a form that can be sent to other processes.

    If Ray can describe how a data set is made (its lineage), the description is sent; otherwise, references to the data
    set's blocks are sent. Blocks exist only until the process that made them exits, so another process cannot resume an
    experiment with such references.
    """
    packed: dict[str, Any] = {}
    for name, dataset in datasets.items():
        if not hasattr(dataset, "has_serializable_lineage"):  # a function that creates the data set
            packed[name] = dataset
        elif dataset.has_serializable_lineage():
            packed[name] = _Lineage(dataset.serialize_lineage())
        else:
            import ray.cloudpickle

            packed[name] = _Blocks(ray.cloudpickle.dumps(dataset))
    return packed


def unpack(packed: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each.dataset if isinstance(each, _Lineage | _Blocks) else each for name, each in packed.items()}


@dataclass(frozen=True)
class _Lineage:
    content: bytes

    def dataset(self) -> Any:
        from ray.data import Dataset

        return Dataset.deserialize_lineage(self.content)


@dataclass(frozen=True)
class _Blocks:
    content: bytes

    def dataset(self) -> Any:
        import ray.cloudpickle

        return ray.cloudpickle.loads(self.content)


class Shards:
    """A trial's data sets. All of them are split among the ranks when a rank first requests one of them.

    `config` is a `ray.train.DataConfig`. Every rank must request the same data sets. Rank 0 splits them, and sends each
    other rank its parts.
    """

    _here: ClassVar[Shards | None] = None

    def __init__(self, datasets: Mapping[str, Any], config: Any = None) -> None:
        self._datasets = datasets
        self._config = config
        self._parts: dict[str, Any] | None = None

    @classmethod
    def of_this_trial(cls) -> Shards:
        return cls._here if cls._here is not None else cls({})

    def __enter__(self) -> Shards:
        Shards._here = self
        return self

    def __exit__(self, *exc: object) -> None:
        Shards._here = None

    def get(self, name: str | None) -> Any:
        """Return this rank's part of a data set, or None if the trial has no data sets.

        name: the name of the data set; it may be None if there is only one.
        """
        if not self._datasets:
            return None
        if name is None:
            if len(self._datasets) > 1:
                raise TunerError(f"get_dataset_shard() needs a name: there are {', '.join(sorted(self._datasets))}")
            (name,) = self._datasets
        if name not in self._datasets:
            raise KeyError(
                f"no data set is named {name!r}; the trial has {', '.join(sorted(self._datasets)) or 'none'}"
            )
        if self._parts is None:
            self._parts = self._split()
        return self._parts[name]

    def _split(self) -> dict[str, Any]:
        import ray
        import ray.cloudpickle
        from ray.train import DataConfig

        here = session.current()
        assert here is not None
        size, rank = here.context.world_size, here.context.world_rank
        node = ray.get_runtime_context().get_node_id()
        parts: list[Any] = [None]
        nodes: list[Any] = [node]
        if size > 1:
            import torch.distributed as dist

            if not dist.is_initialized():
                raise TunerError(
                    "splitting data sets among ranks needs torch.distributed, which backend='none' does not set up"
                )
            nodes = [None] * size
            dist.all_gather_object(nodes, node)
        if rank == 0:
            _check_room()
            made = {name: each() if callable(each) else each for name, each in self._datasets.items()}
            for name, dataset in made.items():
                dataset.set_name(_called(here.context.segment_id, name))
            config = self._config if self._config is not None else DataConfig()
            split = config.configure(made, world_size=size, worker_handles=None, worker_node_ids=nodes)
            parts = [ray.cloudpickle.dumps(split)]
        if size > 1:
            dist.broadcast_object_list(parts, src=0)
        mine: dict[str, Any] = ray.cloudpickle.loads(parts[0])[rank]
        return mine

    def look(self) -> list[dict[str, Any]]:
        """Return the state of each data set that this rank reads.

        The state has the states of the operators, as Ray Data's own actor has them, and the statistics that `stats()`
        returns. Each epoch is one execution of the data set; the state is that of the newest. Ray Data updates the state
        every 5 s.
        """
        here = session.current()
        parts = self._parts
        if here is None or parts is None:
            return []
        executions = _executions()
        found = []
        for name, part in sorted(parts.items()):
            tags = _tags(_called(here.context.segment_id, name))
            mine = [one for tag, one in executions.items() if tags.fullmatch(tag)]
            text = None
            with contextlib.suppress(Exception):  # the data set is being executed, or its coordinator does not respond
                text = str(part.stats())[:MOST_STATS]
            newest = max(mine, key=lambda one: one["start_time"], default=None)
            found.append({"name": name, "executions": len(mine), "stats": text, **_state(newest, time.time())})
        return found


MOST_STATS = 20_000
"""The maximum number of characters of Ray Data's statistics to pass on."""
LOOK_S = 2.0
"""The timeout, in seconds, of requests to the actor in which Ray Data keeps the states of data sets."""


def look() -> list[dict[str, Any]]:
    """Return the state of the data sets that the trial in this process reads; see `Shards.look`."""
    return Shards.of_this_trial().look()


def _called(segment_id: str, name: str) -> str:
    """Return the name to give a data set in Ray Data, whose dashboard and metrics show the name."""
    return f"{segment_id}.{name}"


def _tags(called: str) -> re.Pattern[str]:
    """Return a pattern for the tags of a data set's executions: the data set's name, its id in Ray Data, and a number."""
    return re.compile(re.escape(called) + r"_[0-9A-Za-z]+_[0-9]+")


def _executions() -> dict[str, dict[str, Any]]:
    """Return what Ray Data's actor knows of all executions, by tag; an empty dict if it does not respond."""
    try:
        import ray
        from ray.data._internal.stats import STATS_ACTOR_NAME, STATS_ACTOR_NAMESPACE

        actor = ray.get_actor(STATS_ACTOR_NAME, namespace=STATS_ACTOR_NAMESPACE)
        found: dict[str, dict[str, Any]] = ray.get(actor.get_datasets.remote(), timeout=LOOK_S)
    except Exception:  # nothing has been executed yet, the actor is busy, or this version of Ray uses other names
        return {}
    return found


def _state(execution: Mapping[str, Any] | None, now: float) -> dict[str, Any]:
    """Return the state of an execution in this module's form, with its mean throughput so far."""
    if execution is None:
        return {"state": None, "operators": [], "seconds": None, "blocks_per_s": None, "rows_per_s": None}
    seconds = max((execution["end_time"] or now) - execution["start_time"], 1e-3)
    blocks, rows = execution["progress"], execution.get("total_rows") or 0
    total = execution["total"] or 0
    return {
        "state": execution["state"].lower(),
        "seconds": seconds,
        "blocks_per_s": blocks / seconds,
        "rows_per_s": rows * min(1.0, blocks / total) / seconds if total else None,
        "operators": [
            {
                "name": operator.get("name", tag),
                "state": operator["state"].lower(),
                "blocks": operator["progress"],
                "total_blocks": operator["total"],
                "total_rows": operator.get("total_rows"),
                "queued_blocks": operator["queued_blocks"],
            }
            for tag, operator in execution["operators"].items()
        ],
    }


def _check_room() -> None:
    """Raise TunerError if no node has a free CPU for Ray Data's tasks.

    Ray Data runs its tasks outside the worker groups, and waits forever if there is no CPU for them.
    """
    import ray
    from ray.util import placement_group_table

    free = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]}
    there = sum(free.values())
    for group in placement_group_table().values():
        if group["state"] == "CREATED":
            for index, bundle in group["bundles"].items():
                node = group["bundles_to_node_id"][index]
                free[node] = free.get(node, 0.0) - bundle.get("CPU", 0.0)
    if max(free.values(), default=0.0) < 1:
        left = sum(free.values())
        spread = ", and no node has a whole CPU left" if left >= 1 else ""
        raise TunerError(
            f"Ray Data needs a CPU outside the worker groups, which hold {there - left:g} of the cluster's {there:g}{spread}: "
            'lower max_concurrent_trials or resources_per_worker={"CPU": ...}'
        )
