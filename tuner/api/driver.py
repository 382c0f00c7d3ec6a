"""The driver host, as the routes reach it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from tuner.errors import DriverSilent


class Driver:
    """The answers of a service without a driver, as for the page of a script's searches. A subclass passes requests on to a host.

    If no host answers, each method but `poke`, `problem` and `metrics` raises DriverSilent, or returns a future that does.
    """

    def poke(self) -> None:
        """Wake the driver, after a command or an experiment was written. Return at once."""

    def problem(self) -> str | None:
        """Return why the driver is not ready, or None if it is ready."""
        return None

    def metrics(self) -> Mapping[str, Any] | None:
        """Return the host's own metrics (see `Host.metrics`), or None if there is no host."""
        return None

    def look(self, segment_id: str) -> Mapping[str, Mapping[str, Any]]:
        """Return rank -> {"stack": ..., resource usage} of a segment, or an empty dict if it does not run; see `Host.look`."""
        raise DriverSilent(
            "a script drives this experiment; stacks are available only for experiments that `tuner serve` drives"
        )

    def cluster(self) -> Mapping[str, Any]:
        """Return the state of the cluster; see `Host.cluster`."""
        raise DriverSilent("this service has no driver; only `tuner serve` shows the cluster")

    def driver_log(self, experiment: str, tail: int, search: str | None) -> Mapping[str, Any]:
        """Return the host's own log of an experiment; see `Host.driver_log`."""
        raise DriverSilent("this service has no driver")

    def agents(self, question: str, experiment: str, said: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Pass an agent's request on to the host, and return a future for the answer; see `Host.agent`."""
        raise DriverSilent("this service has no driver; agents need `tuner serve`")

    def profile(self, segment_id: str, arguments: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Let the host profile a rank; see `Host.profile`."""
        raise DriverSilent(
            "a script drives this experiment; ranks can be profiled only in experiments that `tuner serve` drives"
        )
