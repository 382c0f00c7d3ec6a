"""The cluster: its nodes and agents, the worker groups on them, and the worker groups that wait for resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field

from tuner.api.schemas.forms import Model, Timestamp
from tuner.domain.timestamps import rfc3339


class ClusterNode(Model):
    id: Annotated[str, Field(description="Ray's id of the node")]
    name: Annotated[str, Field(description="the host name of the node")]
    address: Annotated[str, Field(description="the IP address of the node")]
    cpus: Annotated[float, Field(description="the number of CPUs that Ray may use on the node")]
    cpus_in_use: Annotated[
        float,
        Field(
            description="the number of CPUs that worker groups of this service hold on the node, even while they are starting"
        ),
    ]
    gpus: Annotated[float, Field(description="the number of GPUs that Ray may use on the node")]
    gpus_in_use: Annotated[
        float,
        Field(
            description="the number of GPUs that worker groups of this service hold on the node, even while they are starting"
        ),
    ]


class ClusterJoining(Model):
    """Nodes of one type that an autoscaler may still add."""

    count: Annotated[int, Field(description="how many such nodes may still join")]
    cpus: Annotated[float, Field(description="the number of CPUs of each of them")]
    gpus: Annotated[float, Field(description="the number of GPUs of each of them")]


class ClusterAgent(Model):
    """An agent that trains or asks for trials of an experiment."""

    name: Annotated[str, Field(description="the agent's name")]
    experiment_id: Annotated[str, Field(description="the experiment whose trials the agent trains")]
    running: Annotated[int, Field(description="the number of trials that the agent trains")]
    asking: Annotated[int, Field(description="the number of further trials that the agent asks for at the moment")]


class ClusterRank(Model):
    rank: int
    node: Annotated[
        str, Field(description="Ray's id of the node on which the rank runs; on an agent, the agent's name")
    ]
    host: Annotated[str, Field(description="the host name of that node; on an agent, the agent's name")]
    pid: Annotated[int, Field(description="the process id of the rank on its node; 0 on an agent")]
    gpus: Annotated[list[str], Field(description="the GPUs that the rank may use, named as in CUDA_VISIBLE_DEVICES")]


class _Group(Model):
    """A worker group, whether it has resources or waits for them."""

    experiment_id: str
    trial_id: str
    trial_number: Annotated[
        int | None, Field(description="the trial's number; null if this service's database does not have the trial")
    ]
    segment_id: str
    resources: Annotated[
        dict[str, float],
        Field(
            description='the resources of each rank; {"agent": 1} for a trial of agents, which hold none of the cluster'
        ),
    ]


class ClusterGroup(_Group):
    """A worker group that has resources, or a trial that runs on an agent."""

    since: Annotated[Timestamp, Field(description="when the group got its resources, or the agent its trial")]
    ranks: Annotated[list[ClusterRank], Field(description="one item for each rank")]


class ClusterWait(_Group):
    """A worker group that waits for resources, or a trial that waits for an agent."""

    position: Annotated[int, Field(description="the group's position in the list, from 1")]
    workers: Annotated[int, Field(description="the number of ranks of the group")]
    since: Annotated[Timestamp, Field(description="when the group began to wait")]
    priority: Annotated[int, Field(description="the priority of the group's experiment")]
    reserved: Annotated[
        bool,
        Field(description="true if the group has waited so long that freed resources are reserved for it"),
    ]
    reason: Annotated[str, Field(description="what the group waits for, in words")]
    nodes: Annotated[
        list[str],
        Field(
            description="Ray's ids of the nodes on which the group's processes start, one for each rank; empty if the group "
            "does not have its resources yet",
        ),
    ]


class ClusterShare(Model):
    """A running experiment's priority, weight and share of the cluster."""

    experiment_id: str
    priority: Annotated[
        int, Field(description="the experiment's priority; experiments with a higher priority get resources first")
    ]
    weight: Annotated[
        float,
        Field(description="the experiment's share of the cluster relative to other experiments of the same priority"),
    ]
    share: Annotated[
        float,
        Field(
            description=(
                "the experiment's dominant share, from 0 to 1: the largest of its shares of the cluster's resources, such as CPUs"
                " and GPUs"
            )
        ),
    ]
    groups: Annotated[int, Field(description="the number of the experiment's worker groups that have resources")]
    waiting: Annotated[int, Field(description="the number of the experiment's worker groups that wait for resources")]


class Cluster(Model):
    cpus: Annotated[float, Field(description="the number of CPUs of all nodes that are alive")]
    cpus_in_use: Annotated[
        float, Field(description="the number of CPUs that are in use, including by other programs on the cluster")
    ]
    gpus: Annotated[float, Field(description="the number of GPUs of all nodes that are alive")]
    gpus_in_use: Annotated[
        float, Field(description="the number of GPUs that are in use, including by other programs on the cluster")
    ]
    nodes: Annotated[list[ClusterNode], Field(description="the nodes that are alive")]
    may_join: Annotated[
        list[ClusterJoining],
        Field(
            description="the nodes that an autoscaler may still add, by type; empty without one, and if its types are unknown"
        ),
    ] = []  # noqa: RUF012 - pydantic copies it
    agents: Annotated[
        list[ClusterAgent], Field(description="the agents that train or ask for trials, by experiment")
    ] = []  # noqa: RUF012 - pydantic copies it
    groups: Annotated[
        list[ClusterGroup], Field(description="worker groups that have resources or run on agents, oldest first")
    ]
    waiting: Annotated[
        list[ClusterWait],
        Field(
            description="worker groups that wait for resources, in the order of the queue, and then those that wait for an agent"
        ),
    ]
    experiments: Annotated[list[ClusterShare], Field(description="the experiments that this service drives now")]

    @classmethod
    def of(cls, found: Mapping[str, Any], numbers: Mapping[str, int]) -> Self:
        """Return the driver's answer as this model. `numbers` maps the ids of trials to their numbers."""
        completed = {
            part: [
                {**item, "since": rfc3339(item["since"]), "trial_number": numbers.get(item["trial_id"])}
                for item in found[part]
            ]
            for part in ("groups", "waiting")
        }
        return cls.model_validate({**found, **completed})
