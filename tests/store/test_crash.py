"""Kill -9 of a writer at any moment leaves whole batches without a gap, and each one that it said was written."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.services import until
from tests.store.examples import begin
from tuner.domain.events import Reported
from tuner.domain.keys import trial_id
from tuner.store import Store

PER_BATCH = 7
WRITER = f"""
import itertools, sys
sys.path.insert(0, sys.argv[1])
from tests.store.examples import T0, a_report, a_trial
from tuner.domain.batch import Batch
from tuner.store import Store

store = Store.open(sys.argv[2])
trial = a_trial()
for batch in itertools.count():
    log = [(4 + batch * {PER_BATCH} + n, a_report(0, 1 + batch * {PER_BATCH} + n)) for n in range({PER_BATCH})]
    trial.iteration = 1 + log[-1][1].report_no
    store.drivers.commit(int(sys.argv[3]), int(sys.argv[4]), Batch(log=log, trials=[trial]), T0)
    print(batch, flush=True)
"""


def backends(store: Store) -> set[int]:
    """Return PostgreSQL's sessions. The one of a client that was killed may still commit what the client has sent."""
    if store._database.backend == "sqlite":
        return set()
    query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = current_database()"
    return {pid for (pid,) in store._database.rows(query)}


@pytest.mark.parametrize("round_", range(5))
def test_kill_nine_leaves_whole_batches(store: Store, database_url: str, round_: int) -> None:
    made, epoch, _ = begin(store)
    others = backends(store)
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", WRITER, root, database_url, str(made.id), str(epoch)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    writer.stdout.readline()  # it writes
    time.sleep(random.Random(round_).uniform(0, 0.05))  # not to wait for something: any moment will do
    writer.send_signal(signal.SIGKILL)
    said = writer.stdout.read().splitlines()
    writer.stdout.close()
    writer.wait()
    until("the server ends the writer's session", lambda: backends(store) <= others)
    acknowledged = int(said[-1]) if said and said[-1].isdigit() else 0

    entries = list(store.drivers.load(made.id, after=3))
    reports = [entry for _, entry in entries if isinstance(entry, Reported)]
    assert len(reports) == len(entries)
    assert len(reports) % PER_BATCH == 0
    assert len(reports) >= (acknowledged + 1) * PER_BATCH
    assert [report.report_no for report in reports] == list(range(1, len(reports) + 1))
    assert all(len(report.metrics) == 2 for report in reports)
    assert store.experiments.get(made.public_id).last_event_seq == 3 + len(reports)
    assert store.trials.get(trial_id(made.public_id, 0)).iteration == reports[-1].report_no + 1

    taken = store.drivers.claim(made.id, "driver", 60, 2e9)  # the database is not stuck either
    store.drivers.renew(made.id, taken, 60, 2e9)
