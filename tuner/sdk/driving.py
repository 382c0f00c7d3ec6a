"""Have a driver run an experiment to its end while a script waits.

The driver runs in a thread of the script, in a host on Ray, or in a service.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from concurrent.futures import wait
from importlib.util import find_spec
from typing import Any

from tuner.domain.experiment import Spec
from tuner.domain.states import ExperimentState
from tuner.errors import ClusterUnreachable, Conflict, LostLease, SpecError, TunerError
from tuner.names import RAY_CLIENT, gp_needs_torch, no_ray_client
from tuner.sdk.executors import choose, is_connected
from tuner.sdk.live.interrupts import CTRL_C, Interrupts
from tuner.sdk.live.progress import Progress
from tuner.settings import Settings
from tuner.store import CodeRecord, ExperimentRecord, Store

POLL_S = 0.25
"""Seconds between two updates of the displayed progress."""
FOLLOWED = "another driver, such as `tuner serve`, is running this experiment; following it"
DEATHS = 3
"""The number of drivers on Ray that may die before a search is given up."""
SLOW_START_S = 60.0
"""Seconds without a driver on Ray after which a script says where Ray's logs are. It waits on, since nodes may still join."""
UNREACHABLE_S = 30.0
"""Seconds for which a call to a driver on Ray is repeated, if its process lives but cannot be reached."""
UNDRIVEN_S = 10.0
"""Seconds after which a script that follows an experiment stops waiting for a new driver."""
UNSERVED_S = 120.0
"""Takes the place of `UNDRIVEN_S` if a service drives the experiment, since the service may only be restarting."""


def drive_here(
    store: Store,
    settings: Settings,
    experiment_id: str,
    progress: Progress,
    interrupts: Interrupts,
    why: str,
    keep: bool,
) -> None:
    """Drive the experiment in a thread of this process, and run its trials in processes on this machine."""
    from tuner.hosts.scripts import local_host

    with progress, interrupts:
        while True:
            try:
                with local_host.borrow(settings, keep=keep) as host, interrupts.heard():
                    done = host.drive(experiment_id, why)
                    while not wait([done], POLL_S).done:
                        _tell(progress, interrupts, host.poke)
                    done.result()
                return
            except (Conflict, LostLease):
                if _is_over_elsewhere(store, experiment_id, progress, interrupts):
                    return


def _tell(progress: Progress, interrupts: Interrupts, poke: Callable[[], Any]) -> None:
    """Update the displayed progress. After the first signal, say that the search is pausing, and wake the driver.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed twice.
    """
    if interrupts.count > 1:
        raise KeyboardInterrupt
    if interrupts.news:
        progress.say(_pausing(interrupts.news))
        interrupts.news = ""
        poke()
    progress.update()


def _pausing(name: str) -> str:
    if name == CTRL_C:
        return "pausing: every trial stops at its next report; press Ctrl-C again to stop at once"
    return (
        f"pausing because of {name}: every trial stops at its next report, then the script exits; Ctrl-C exits at once"
    )


def only_followed(record: ExperimentRecord) -> bool:
    """Return True if a service drives the experiment and its trials run on agents, so that a script can only follow it.

    Raises:
        SpecError: its trials run on agents, but no service drives it now.
    """
    if record.spec.executor != "agents":
        return False
    if (record.lease_until or 0.0) <= time.time():
        raise SpecError(
            f"the trials of {record.public_id} run on agents, which ask a service for them: continue the experiment on that "
            "service, for example with TUNER_ADDRESS set (`tuner docs agents`)",
            "/executor",
        )
    return True


def follow(store: Store, experiment_id: str, progress: Progress, interrupts: Interrupts) -> None:
    """Show the progress of an experiment that a running service drives, until it has ended or is paused."""
    with progress, interrupts, interrupts.heard():
        progress.say(FOLLOWED)
        told = False
        while not _follow(store, experiment_id, progress, interrupts, UNDRIVEN_S):
            if not told:
                told = True
                progress.say("no service drives this experiment any more; waiting until `tuner serve` runs again")


def drive_on_ray(
    store: Store,
    settings: Settings,
    experiment_id: str,
    ray_address: str | None,
    progress: Progress,
    interrupts: Interrupts,
    why: str,
    keep: bool,
) -> None:
    """Drive the experiment in a driver host on Ray, and run its trials in worker groups on Ray."""
    if progress.show and not connected():
        where = ray_address or settings.ray_address
        progress.say(f"connecting to Ray at {where}" if where else "starting a private Ray instance on this machine")
    if (idle := sys.modules.get("tuner.trials.lightning.workers")) is not None:
        idle.release()  # the processes that a `RayStrategy` of this script keeps would hold CPUs for which the trials wait
    # These imports load Ray, which takes a second or two. The message above tells the user why.
    from tuner.hosts.ray.cluster import DEAD
    from tuner.hosts.scripts import kept

    with progress, interrupts:
        deaths = 0
        while True:
            started = functools.partial(_wait_for_start, progress=progress, interrupts=interrupts)
            try:
                with (
                    kept.borrow(settings, ray_address or settings.ray_address, started, keep=keep) as host,
                    interrupts.heard(),
                ):
                    _wait(host, experiment_id, progress, interrupts, why)
                return
            except (Conflict, LostLease):
                # If a driver has died on another machine, its lease has to expire first.
                if _is_over_elsewhere(store, experiment_id, progress, interrupts):
                    return
            except DEAD:
                deaths += 1
                if deaths == DEATHS or interrupts.count > 1:
                    kept.shutdown()
                    raise
                progress.say("the driver was killed; a new one continues from the last commit")


def check_spec(spec: Spec, code: CodeRecord, ray_address: str | None, settings: Settings, alone: bool) -> None:
    """Raise SpecError if trials can never run, or if the search lacks a package that its driver needs in this process.

    alone: True if Ray would be a private instance on this machine. Then also check that a trial fits on the machine, without
        starting Ray, which would take seconds.
    """
    if spec.search.get("type") == "gp" and not spec.search.get("tpe_if_short") and find_spec("torch") is None:
        raise SpecError(gp_needs_torch(), "/search")
    if not choose(spec, code, ray_address or settings.ray_address).local and alone:
        _check_size(spec)


def _check_size(spec: Spec) -> None:
    from tuner.hosts.ray.cluster import too_large  # loads Ray

    if (reason := too_large(spec.scaling)) is not None:
        raise SpecError(reason, "/scaling")


def refuse_ray_client(executor: str | None, address: str | None) -> None:
    """Raise SpecError if Ray would be reached through Ray Client, before anything is stored."""
    if executor == "local":
        return
    client = sys.modules.get("ray.util.client")
    through_client = connected() and client is not None and client.ray.is_connected()
    if through_client or (not connected() and (address or "").startswith(RAY_CLIENT)):
        raise SpecError(no_ray_client(), "/ray_address")


def connected() -> bool:
    """Return True if this process is connected to Ray, without importing Ray."""
    return is_connected()


def on_own_ray() -> bool:
    """Return True if this process is connected to a Ray instance that an earlier search started."""
    kept = sys.modules.get("tuner.hosts.scripts.kept")
    return kept is not None and kept.on_own_ray()


def _wait_for_start(host: Any, *, progress: Progress, interrupts: Interrupts) -> None:
    """Wait until the host has started. Raise ClusterUnreachable if it cannot start."""
    import ray

    from tuner.hosts.ray.cluster import DEAD, not_started

    started = host.start.remote()
    slow_at = time.monotonic() + SLOW_START_S
    again_until = 0.0  # is set when the first call fails, since the process may start late
    with interrupts.heard():
        while True:
            while not ray.wait([started], timeout=POLL_S)[0]:
                if interrupts.count > 1:
                    raise KeyboardInterrupt
                if time.monotonic() >= slow_at:
                    slow_at = float("inf")
                    progress.say(
                        f"warning: the driver has not started on Ray in {SLOW_START_S:.0f} s. If Ray's processes fail when they "
                        "start, raylet.err in /tmp/ray/session_latest/logs says why. Press Ctrl-C twice to give up"
                    )
                progress.update()
            try:
                _got(started)
                return
            except ray.exceptions.ActorUnavailableError as error:  # the process lives, but this call has not reached it
                again_until = again_until or time.monotonic() + UNREACHABLE_S
                if time.monotonic() >= again_until:
                    raise ClusterUnreachable(not_started(error)) from error
                time.sleep(POLL_S)
                started = host.start.remote()
            except DEAD as error:
                raise ClusterUnreachable(not_started(error)) from error


def _got(answer: Any) -> Any:
    """Return the answer from a driver host on Ray. Raise the host's own error instead of Ray's wrapper."""
    import ray

    try:
        return ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TunerError):
            raise error.cause from None
        if isinstance(error.cause, Exception):
            raise error.cause from error  # the wrapper's text has the host's traceback
        raise


def _is_over_elsewhere(store: Store, experiment_id: str, progress: Progress, interrupts: Interrupts) -> bool:
    """Follow an experiment that another driver runs. Return False if that driver has died, so that this script has to drive."""
    progress.say(FOLLOWED)
    of_a_service = store.experiments.get(experiment_id).source in ("api", "adopted")
    with interrupts.heard():
        over = _follow(store, experiment_id, progress, interrupts, UNSERVED_S if of_a_service else UNDRIVEN_S)
    if not over:
        interrupts.elsewhere = False
        progress.say("no driver runs this experiment any more; continuing it here")
    return over


def _follow(store: Store, experiment_id: str, progress: Progress, interrupts: Interrupts, patience_s: float) -> bool:
    """Wait until an experiment has ended or is paused. Return False if it has had no driver for `patience_s` seconds."""
    driven_at = time.monotonic()
    interrupts.elsewhere = True
    while True:
        record = store.experiments.get(experiment_id)
        pending = {command.command for command in store.commands.pending([record.id])}
        if (record.state.ended and "continue" not in pending) or (
            record.state is ExperimentState.PAUSED and not pending
        ):
            return True
        if (record.lease_until or 0.0) > time.time():
            driven_at = time.monotonic()
        elif time.monotonic() - driven_at >= patience_s:
            return False
        if interrupts.count > 1:
            raise KeyboardInterrupt
        progress.update()
        time.sleep(POLL_S)


def _wait(host: Any, experiment_id: str, progress: Progress, interrupts: Interrupts, why: str) -> None:
    import ray

    done, begun = host.drive.remote(experiment_id, why), time.monotonic()
    unreachable_since: float | None = None
    while True:
        ready, _ = ray.wait([done], timeout=POLL_S)
        if ready:
            try:
                _got(done)
                return
            except ray.exceptions.ActorUnavailableError:
                # The driver is alive and keeps driving, but this call or its answer was lost.
                now = time.monotonic()
                if unreachable_since is None or now - begun >= UNREACHABLE_S:  # this call had reached the driver
                    unreachable_since = now
                if now - unreachable_since >= UNREACHABLE_S:
                    raise
            time.sleep(POLL_S)
            done, begun = host.drive.remote(experiment_id, why), time.monotonic()
        _tell(progress, interrupts, host.poke.remote)


def pausing_by_signal(store: Store, experiment_id: str) -> Interrupts:
    """Return an `Interrupts` with which Ctrl-C, SIGTERM and SIGHUP pause an experiment that is being driven."""

    def pause(name: str) -> None:
        record = store.experiments.get(experiment_id)
        store.commands.add(record.id, "pause", reason=f"by {name}")

    return Interrupts(pause)
