"""Kill Ray's raylet, its GCS or the driver host under a running service, and measure when experiments continue.

Prints one JSON line for each.

    python -m benchmarks.head_loss [--victims host raylet gcs_server]

`go_on_s` is the time from the kill to the first report that a new driver has committed, of a search of two trials of two ranks.
`twice` counts the reports that had to be made again, those after the newest checkpoint; `lost` those that are missing at the end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.serving import SLOW, Service, host_of, until
from tuner.domain.events import DriverStarted, Reported
from tuner.driver.hosts.head import find_head
from tuner.store import Store

STEPS = 100
SCALING = {"num_workers": 2, "resources_per_worker": {"CPU": 0.5}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--victims", nargs="+", default=["host", "raylet", "gcs_server"])
    victims = parser.parse_args().victims
    with tempfile.TemporaryDirectory(prefix="tuner-head-") as folder:
        service = Service(Path(folder), f"sqlite:///{folder}/tuner.db")
        try:
            service.start()
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
    killed = time.time()
    process.kill()
    with Store.open(service.database_url) as store:
        record = store.experiments.get(created["id"])

        def again() -> float | None:
            return first_report(store, record.id)

        at = until("reports", again)
        ended = service.ended(created["id"])
        reports = sum(isinstance(entry, Reported) for _, entry in store.drivers.load(record.id))
    trials = service.get(path)["items"]
    return {
        "benchmark": "head_loss",
        "victim": victim,
        "go_on_s": round(at - killed, 1),
        "state": ended["state"],
        "twice": reports - STEPS * len(trials),
        "lost": STEPS * len(trials) - sum(trial["iteration"] for trial in trials),
        "api_lives": service.process.poll() is None,
        "load": psutil.getloadavg()[0],
    }


def the_process(service: Service, victim: str) -> psutil.Process:
    if victim == "host":
        return host_of(service.home)
    head = find_head(service.home)
    assert head is not None
    return {process.name(): process for process in head.parts}[victim]


def first_report(store: Store, experiment: int) -> float | None:
    """Return when the first report under a second driver was made, if there is one."""
    drivers = 0
    for _, entry in store.drivers.load(experiment):
        drivers += isinstance(entry, DriverStarted)
        if drivers > 1 and isinstance(entry, Reported):
            return entry.time
    return None


if __name__ == "__main__":
    main()
