"""Store what a core that was fed by hand has decided, for tests that read it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

from tests.driver.bench import Bench
from tuner.domain.batch import Batch
from tuner.domain.experiment import Spec
from tuner.driver.virtual import Simulation
from tuner.search.constraints import as_option
from tuner.store import ExperimentRecord, Store


def stored(bench: Bench, store: Store) -> ExperimentRecord:
    """Commit everything that the bench has logged as one experiment."""
    core = bench.core
    constraints = core.searcher.metric_constraints()
    resolved = {"scheduler": core.scheduler.resolved(), "search": core.searcher.to_json()}
    spec = replace(bench.spec, resolved={**resolved, "constraints": as_option(constraints)})
    made = store.experiments.create(spec)
    epoch = store.drivers.claim(made.id, "test", 60.0, time.time())
    batch = Batch(
        log=bench.log,
        trials=list(core.trials),
        state=core.state,
        summary=core.summary(),
        best=bench.best if core.experiment.leaderboard.tells_best else None,
    )
    store.drivers.commit(made.id, epoch, batch, time.time())
    return store.experiments.get(made.public_id)


def stored_simulation(found: Simulation, spec: Spec, store: Store) -> ExperimentRecord:
    """Commit everything that a search in virtual time has logged as one experiment."""
    made = store.experiments.create(spec)
    epoch = store.drivers.claim(made.id, "test", 60.0, time.time())
    counts = Counter(str(trial.state) for trial in found.trials)
    best = found.best_trial
    leads = (
        {"trial_number": best.number, "value": found.best_value, "params": best.params} if best is not None else None
    )
    batch = Batch(
        log=found.log, trials=found.trials, state=found.state, summary={"counts": dict(counts), "best": leads}
    )
    store.drivers.commit(made.id, epoch, batch, time.time())
    return store.experiments.get(made.public_id)
