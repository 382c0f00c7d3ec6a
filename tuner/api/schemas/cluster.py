"""The cluster: its nodes, the worker groups on them, and the worker groups that wait for resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field

from tuner.api.schemas.forms import Model, Timestamp, rfc3339


class ClusterNode(Model):
    id: Annotated[str, Field(description="Ray's id of the node")]
    name: Annotated[str, Field(description="its host name")]
    address: Annotated[str, Field(description="its IP address")]
    cpus: Annotated[float, Field(description="CPUs that Ray may use there")]
    cpus_in_use: Annotated[float, Field(description="CPUs that worker groups of this service hold there")]
    gpus: Annotated[float, Field(description="GPUs that Ray may use there")]
    gpus_in_use: Annotated[float, Field(description="GPUs that worker groups of this service hold there")]


class ClusterRank(Model):
    rank: Annotated[int, Field(description="the rank, from 0")]
    node: Annotated[str, Field(description="Ray's id of its node")]
    host: Annotated[str, Field(description="the host name of its node")]
    pid: Annotated[int, Field(description="its process id on that node")]
    gpus: Annotated[list[str], Field(description="the GPUs that it may use, as CUDA_VISIBLE_DEVICES names them")]


class ClusterGroup(Model):
    """A worker group that has resources."""

    experiment_id: Annotated[str, Field(description="exp_...")]
    trial_id: Annotated[str, Field(description="trl_...")]
    trial_number: Annotated[int | None, Field(description="its number; null if the trial is not known here")]
    segment_id: Annotated[str, Field(description="seg_...")]
    resources: Annotated[dict[str, float], Field(description="resources of each rank")]
    since: Annotated[Timestamp, Field(description="when it got its resources")]
    ranks: Annotated[list[ClusterRank], Field(description="one item for each rank")]


class ClusterWait(Model):
    """A worker group that waits for resources."""

    position: Annotated[int, Field(description="its position in the queue, from 1")]
    experiment_id: Annotated[str, Field(description="exp_...")]
    trial_id: Annotated[str, Field(description="trl_...")]
    trial_number: Annotated[int | None, Field(description="its number; null if the trial is not known here")]
    segment_id: Annotated[str, Field(description="seg_...")]
    workers: Annotated[int, Field(description="ranks of the group")]
    resources: Annotated[dict[str, float], Field(description="resources of each rank")]
    since: Annotated[Timestamp, Field(description="when it began to wait")]
    priority: Annotated[int, Field(description="the priority of its experiment")]
    reserved: Annotated[
        bool, Field(description="true if it has waited so long that free resources are reserved for it")
    ]
    reason: Annotated[str, Field(description="what it waits for, in words")]


class ClusterShare(Model):
    """A running experiment's priority, weight and share of the cluster."""

    experiment_id: Annotated[str, Field(description="exp_...")]
    priority: Annotated[int, Field(description="experiments of a higher priority come first")]
    weight: Annotated[float, Field(description="its share relative to experiments of the same priority")]
    share: Annotated[
        float,
        Field(
            description=(
                "its dominant share, from 0 to 1: the largest of its shares of the cluster's resources, such as CPUs and GPUs"
            )
        ),
    ]
    groups: Annotated[int, Field(description="number of its worker groups that have resources")]
    waiting: Annotated[int, Field(description="number of its worker groups that wait")]


class Cluster(Model):
    cpus: Annotated[float, Field(description="CPUs of the whole cluster")]
    cpus_in_use: Annotated[float, Field(description="CPUs in use, including those that other programs use")]
    gpus: Annotated[float, Field(description="GPUs of the whole cluster")]
    gpus_in_use: Annotated[float, Field(description="GPUs in use, including those that other programs use")]
    nodes: Annotated[list[ClusterNode], Field(description="the nodes that are alive")]
    groups: Annotated[list[ClusterGroup], Field(description="worker groups that have resources, oldest first")]
    waiting: Annotated[list[ClusterWait], Field(description="worker groups that wait, in the order of the queue")]
    experiments: Annotated[list[ClusterShare], Field(description="the experiments that this service drives now")]

    @classmethod
    def of(cls, found: Mapping[str, Any], numbers: Mapping[str, int]) -> Self:
        """Return the driver's answer in the form of the API. `numbers`: id of a trial -> its number."""
        completed = {
            part: [
                {**item, "since": rfc3339(item["since"]), "trial_number": numbers.get(item["trial_id"])}
                for item in found[part]
            ]
            for part in ("groups", "waiting")
        }
        return cls.model_validate({**found, **completed})
