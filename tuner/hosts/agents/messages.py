"""The requests of agents and the answers to them, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from tuner.domain.keys import checkpoint_id
from tuner.domain.segments import CAUSES, CheckpointInfo, Failure, FailureKind, Verdict
from tuner.errors import SpecError
from tuner.hosts.agents.leases import Lease
from tuner.trials.runtime.function.code import resolve


def assignment(lease: Lease) -> dict[str, Any]:
    """Return the answer to an agent that gets a segment."""
    launch = lease.launch
    source = launch.checkpoint
    first = launch.first_milestone
    return {
        "lease": lease.name,
        "lease_s": lease.lease_s,
        "experiment_id": launch.experiment_id,
        "trial_id": launch.trial_id,
        "segment_id": launch.segment_id,
        "trial": launch.trial_number,
        "segment": launch.segment,
        "config": resolve(launch),
        "params": dict(launch.params),
        "iteration": launch.start_iteration,
        "checkpoint": None if source is None else {"id": source.id, "uri": source.uri, "iteration": source.step},
        "next_milestone": None if first is None else launch.start_iteration + first,
        "seed": launch.seed,
        "metric": launch.metric,
        "entrypoint": launch.code.entrypoint,
        "storage": lease.storage,
        "space": None if launch.space is None else dict(launch.space),
        "stop_grace_s": launch.limits.stop_grace_s,
        "hang_timeout_s": launch.limits.hang_timeout_s,
        "checkpoint_every": launch.checkpoint_every,
        "checkpoint_at_milestones": launch.milestone_checkpoints,
        "checkpoint_at_end": launch.checkpoint_policy.at_end,
    }


def verdict_under(lease: Lease, verdict: Verdict) -> dict[str, Any]:
    """Return the answer to an agent's report."""
    following = verdict.next_milestone
    return {
        "verdict": verdict.action,
        "reason": verdict.reason,
        "completed": verdict.completed,
        "save_checkpoint": verdict.save_checkpoint,
        "next_milestone": None if following is None else lease.launch.start_iteration + following,
        "wanted": lease.wanted,
    }


def next_iteration(lease: Lease) -> int:
    """Return the iteration of the report that is expected next."""
    return lease.launch.start_iteration + lease.report_no + 1


def last_report(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a report that an agent sent together with the end of its trial."""
    named = {name: given[name] for name in ("metrics", "checkpoint", "step") if given.get(name) is not None}
    return {**named, **({"iteration": given["iteration"]} if given.get("iteration") is not None else {})}


def checkpoint_of(lease: Lease, iteration: int, given: str | Mapping[str, Any] | None) -> CheckpointInfo | None:
    """Return the checkpoint that an agent sent for an iteration; None if it sent none.

    The iteration determines the id of the checkpoint, so that a checkpoint that is sent twice is stored once.
    """
    if given is None:
        return None
    parts: Mapping[str, Any] = {"uri": given} if isinstance(given, str) else given
    number = iteration - lease.launch.start_iteration
    if not 0 <= number <= lease.report_no + 1_000_000:
        raise SpecError(f"expected an iteration after {lease.launch.start_iteration}, got {iteration}", "/iteration")
    return CheckpointInfo(
        id=checkpoint_id(lease.launch.segment_id, number),
        uri=parts["uri"],
        step=iteration,
        bytes=parts.get("bytes", 0),
        ready=parts.get("ready", True),
    )


def failure_of(lease: Lease, given: Mapping[str, Any]) -> Failure:
    """Return the failure that an agent sent. Replace unknown kinds and causes with those of an exception in the user's code."""
    kind: FailureKind = given["kind"] if given.get("kind") in get_args(FailureKind) else "user"
    cause = given.get("cause")
    return Failure(
        kind="system" if kind == "placement" else kind,
        message=given["message"],
        cause=cause if cause in CAUSES else "exception",
        rank=0,
        node=lease.agent,
        traceback=given.get("traceback", ""),
        log_tail=given.get("log_tail", ""),
    )
