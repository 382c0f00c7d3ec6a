"""Choose where a script's trials run, and shut down the processes that are kept for later calls."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tuner.domain.experiment import Spec
from tuner.errors import SpecError
from tuner.store import CodeRecord
from tuner.trials.groups.pools.cpus import cpus_here
from tuner.trials.messages.forks import ON_USE

_NAMES_RAY = re.compile(rb"\x8c.ray[.\x94]|\x8c\x03ray")
"""Matches the name of the module `ray`, or of a module below it, in a pickled function."""


class Choice(NamedTuple):
    """The place where trials run."""

    local: bool
    why: str  # for the first line of the log


def choose(spec: Spec, code: CodeRecord | None, ray_address: str | None) -> Choice:
    """Return where the trials of this experiment run.

    Args:
        spec: the spec of the experiment.
        code: the training function, pickled by value; None if it is imported by name.
        ray_address: the Ray address that the script or its environment gives.

    Raises:
        SpecError: the spec asks for the local executor, which cannot run these trials.
    """
    if spec.executor == "agents":
        raise SpecError(
            "agents ask a service for trials: create the experiment on a service (`tuner docs agents`)", "/executor"
        )
    if spec.executor == "ray":
        return Choice(False, "trials run on Ray, because executor is 'ray'")
    reason = unfit(spec)
    if spec.executor == "local":
        if reason is not None:
            raise SpecError(f"the local executor cannot run this: {reason}", "/executor")
        return Choice(True, "trials run in processes on this machine, without Ray, because executor is 'local'")
    reason = reason or _uses_ray(ray_address) or _may_use_ray(spec, code)
    if reason is not None:
        return Choice(False, f"trials run on Ray: {reason}")
    why = "each trial is one process that needs only CPUs, and the script does not use Ray"
    return Choice(True, f"trials run in processes on this machine, without Ray: {why}")


def unfit(spec: Spec) -> str | None:
    """Return why the local executor cannot run these trials; None if it can."""
    from tuner.trials.groups.pools import local_pool

    return local_pool.unfit(spec, cpus_here())


def is_connected() -> bool:
    """Return True if this process is connected to Ray, without importing Ray. Another thread may be importing it."""
    ray = sys.modules.get("ray")
    return ray is not None and hasattr(ray, "is_initialized") and ray.is_initialized()


def _uses_ray(ray_address: str | None) -> str | None:
    """Return how this script uses Ray, or None if it does not."""
    if ray_address:
        return f"Ray's address is {ray_address}"
    if "ray" not in sys.modules:
        return None
    if is_connected():
        return "this process is connected to Ray"
    return None if _imported_by_tuner else "the script has imported Ray"


def _may_use_ray(spec: Spec, code: CodeRecord | None) -> str | None:
    """Return why the training function may need Ray, or None if it does not."""
    if spec.entrypoint is not None or code is None or code.blob is None:
        return "the training function is given by name, so it is not known whether it uses Ray"
    return "the training function uses Ray" if _NAMES_RAY.search(code.blob) else None


_imported_by_tuner = False  # True once one of tuner's checks, rather than the script, has imported Ray


@contextlib.contextmanager
def noting_imports() -> Iterator[None]:
    """Record whether Ray is first imported within this `with` block, that is, by tuner and not by the script."""
    global _imported_by_tuner
    before = "ray" in sys.modules
    try:
        yield
    finally:
        _imported_by_tuner = _imported_by_tuner or (not before and "ray" in sys.modules)


def may_be_local(given: Mapping[str, Any]) -> bool:
    """Return True if, judging by the arguments of `tuner.run`, the local executor will run the trials."""
    if given["executor"] == "local":
        return given["address"] is None
    asks = any(given[name] for name in ("address", "ray_address", "use_gpu", "runtime_env"))
    named = isinstance(given["trainable"], str) or given["num_workers"] != 1
    return not (given["executor"] == "ray" or asks or named or _uses_ray(given["ray_address"]))


def start_ahead(given: Mapping[str, Any]) -> None:
    """Start processes for the first trials, unless some are kept from an earlier call."""
    from tuner.hosts.scripts import prestart
    from tuner.hosts.scripts.needs import of_workers

    local_host = sys.modules.get("tuner.hosts.scripts.local_host")
    if local_host is None or not local_host.has(of_workers()):
        most = [given[name] for name in ("num_samples", "max_concurrent_trials") if isinstance(given[name], int)]
        prestart.start(max(1, min(most, default=cpus_here())))


def starts_ray(given: Mapping[str, Any]) -> bool:
    """Return True if, judging by the arguments of `tuner.run`, a private Ray instance will run the trials."""
    elsewhere = given["executor"] == "agents" or any(given[name] for name in ("address", "ray_address"))
    return not (elsewhere or may_be_local(given))


def start_forks(given: Mapping[str, Any]) -> None:
    """Start the server that forks Ray's workers, so that it imports what they need while Ray starts."""
    from tuner.hosts.scripts import prestart

    if not is_connected():
        several = given["num_workers"] != 1 or given["max_workers"] is not None
        torch = given["backend"] != "none" and (several or bool(given["use_gpu"]))
        # If a script or a notebook has created an optimizer itself, its trials will create some, too.
        prestart.start_forks(torch, [name for name in ON_USE if torch and name in sys.modules])


def drop_ahead(local: bool) -> None:
    """Stop the processes that `start_ahead` or `start_forks` started but that are not needed. local: trials run without Ray."""
    if (prestart := sys.modules.get("tuner.hosts.scripts.prestart")) is not None:
        (prestart.drop_forks if local else prestart.drop)()


def shutdown() -> None:
    """Shut down what is kept for later calls: the driver host, idle workers, and the Ray instance that was started for them."""
    for name in ("tuner.hosts.scripts.local_host", "tuner.hosts.scripts.kept"):
        if (module := sys.modules.get(name)) is not None:
            module.shutdown()
    drop_ahead(local=True)
    drop_ahead(local=False)
