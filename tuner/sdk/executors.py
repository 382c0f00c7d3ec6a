"""Choose where the trials of a script run, and end what was kept for later calls."""

from __future__ import annotations

import sys
from typing import NamedTuple

from tuner.domain.experiment import Spec
from tuner.errors import SpecError


class Choice(NamedTuple):
    """The place where trials run."""

    local: bool
    why: str  # for the first line of the log


def choose(spec: Spec) -> Choice:
    """Return where the trials of this experiment run.

    Raises:
        SpecError: the local executor was asked for and cannot run them.
    """
    if spec.executor == "local":
        if reason := unfit(spec):
            raise SpecError(f"the local executor cannot run this: {reason}", "/executor")
        return Choice(True, "trials run in processes of this machine, without Ray: executor is 'local'")
    return Choice(False, "trials run on Ray: executor is 'ray'")


def unfit(spec: Spec) -> str | None:
    """Return why the local executor can never run such trials; None if it can."""
    from tuner.driver.hosts.local_executor import cpus_here
    from tuner.trials.groups import local_pool

    if spec.runtime_env:
        return "it has no runtime_env"
    return local_pool.unfit(spec.scaling, cpus_here())


def shutdown() -> None:
    """End what was kept for later calls: the driver host, idle workers, and the Ray that was started for them."""
    for name in ("tuner.driver.hosts.local_host", "tuner.driver.hosts.kept"):
        if (module := sys.modules.get(name)) is not None:
            module.shutdown()
