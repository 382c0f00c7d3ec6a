"""Kill Ray's raylet, its GCS or the driver host under a running service, and measure when experiments continue.

Prints one JSON line for each.

    python -m benchmarks.head_loss [--victims host raylet gcs_server]

The search has two trials of two ranks. `go_on_s` is the time from the kill to the first report that a new driver commits.
`twice` counts the reports that had to be made again, which are those after the newest checkpoint; `lost` counts those that are
missing at the end. `cpu_s` is the CPU time that the whole machine used from the kill to the first report; the machine could
have used `cores` times `go_on_s`. `after` has the seconds from the kill to the end of each step of the recovery:

    noticed  the service has noticed the loss
    cleared  the dead head's processes are gone
    gcs      a new GCS has started
    head     the new head is up
    host     the process of the new driver host has started
    up       the host answers the service
    driven   the host has folded the experiment's log
    rank     the first and the last rank have started
    group    training can begin in the first and the last group
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.services import SLOW, Service, host_of, until
from tuner.domain.events import DriverStarted, Reported, SegmentStarted
from tuner.hosts.ray.head import find_head
from tuner.store import Store

STEPS = 100
SETTLE_S = 30.0
"""Seconds that the service has run before the first kill. By then it has a process in reserve."""
SAID = {
    "noticed": " is gone",
    "cleared": "what was left of it has ended",
    "head": "Ray's head is up",
    "up": "the driver is up",
}
"""The line that the service logs at the end of each step."""
PROCESSES = {"gcs": "gcs_server", "host": "ray::Host", "rank": "ray::RayRank"}
"""A part of the name or of the command line of the process that each step starts."""
SCALING = {"num_workers": 2, "resources_per_worker": {"CPU": 0.5}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--victims", nargs="+", default=["host", "raylet", "gcs_server"])
    victims = parser.parse_args().victims
    with tempfile.TemporaryDirectory(prefix="tuner-head-") as folder:
        service = Service(Path(folder), f"sqlite:///{folder}/tuner.db", TUNER_LOG_LEVEL="DEBUG")
        try:
            service.start()
            time.sleep(SETTLE_S)
            for victim in victims:
                print(json.dumps(measure(service, victim)), flush=True)
        finally:
            service.clean_up()


def measure(service: Service, victim: str) -> dict[str, Any]:
    spec = {**SLOW, "space": {**SLOW["space"], "steps": {"type": "const", "value": STEPS}}, "scaling": SCALING}
    created = service.post(spec)
    path = f"/experiments/{created['id']}/trials"
    until("checkpoints", lambda: [t for t in service.get(path)["items"] if t["checkpoint"]][1:])
    process = the_process(service, victim)
    said = len(service.lines)
    killed, cpu = time.time(), busy_s()
    process.kill()
    with Store.open(service.database_url) as store:
        record = store.experiments.get(created["id"])

        def again() -> float | None:
            return first_report(store, record.id)

        at = until("reports", again)
        cpu = busy_s() - cpu
        after = steps_after(service, store, record.id, killed, said)
        ended = service.ended(created["id"])
        reports = sum(isinstance(entry, Reported) for _, entry in store.drivers.load(record.id))
    trials = service.get(path)["items"]
    return {
        "benchmark": "head_loss",
        "victim": victim,
        "go_on_s": round(at - killed, 1),
        "after": after,
        "cpu_s": round(cpu, 1),
        "cores": psutil.cpu_count(),
        "state": ended["state"],
        "twice": reports - STEPS * len(trials),
        "lost": STEPS * len(trials) - sum(trial["iteration"] for trial in trials),
        "api_lives": service.process.poll() is None,
        "load": psutil.getloadavg()[0],
    }


def busy_s() -> float:
    """Return the CPU time that this machine has used since its boot."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def steps_after(service: Service, store: Store, experiment: int, killed: float, said: int) -> dict[str, float]:
    """Return the end of each step, in seconds after the kill."""
    found: dict[str, float] = {}
    for at, line in service.lines[said:]:
        for step, words in SAID.items():
            if words in line:
                found.setdefault(step, at)
    created: dict[str, list[float]] = {}
    for process in service.processes():
        with contextlib.suppress(psutil.Error):
            name = process.name() if process.name() == "gcs_server" else " ".join(process.cmdline())
            for step, words in PROCESSES.items():
                if words in name and process.create_time() > killed - 1:
                    created.setdefault(step, []).append(process.create_time())
    for step, times in created.items():
        found[step] = min(times)
        if step == "rank":
            found["last_rank"] = max(times)
    drivers = 0
    for _, entry in store.drivers.load(experiment):
        drivers += isinstance(entry, DriverStarted)
        if drivers > 1 and isinstance(entry, DriverStarted):
            found["driven"] = entry.time
        if drivers > 1 and isinstance(entry, SegmentStarted):
            found.setdefault("group", entry.time)
            found["last_group"] = entry.time
    return {step: round(at - killed, 2) for step, at in sorted(found.items(), key=lambda one: one[1])}


def the_process(service: Service, victim: str) -> psutil.Process:
    if victim == "host":
        return host_of(service.home)
    head = find_head(service.home)
    assert head is not None
    return {process.name(): process for process in head.parts}[victim]


def first_report(store: Store, experiment: int) -> float | None:
    """Return the time of the first report under a second driver, or None if there is no such report."""
    drivers = 0
    for _, entry in store.drivers.load(experiment):
        drivers += isinstance(entry, DriverStarted)
        if drivers > 1 and isinstance(entry, Reported):
            return entry.time
    return None


if __name__ == "__main__":
    main()
