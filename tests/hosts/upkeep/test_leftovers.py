"""Test that the data of deleted experiments is found and removed."""

from __future__ import annotations

import os
from pathlib import Path

from tests.store.examples import T0, a_spec
from tuner.domain.batch import Batch
from tuner.domain.states import ExperimentState
from tuner.hosts.upkeep.leftovers import sweep_objects
from tuner.store import CodeRecord, Store
from tuner.trials.checkpoints import objects
from tuner.usercode.pickling import dumps


def train(config: dict[str, float], data: int) -> None: ...


async def test_the_objects_of_an_ended_experiment_are_kept_until_it_is_deleted(store: Store, tmp_path: Path) -> None:
    """A user who continued, retried or forked it later got only trials that failed, because its objects were gone."""
    storage, url = str(tmp_path), "sqlite:///mine"
    stored = objects.store("data", 1, storage, url)
    os.utime(stored.uri, (T0, T0))
    blob = dumps(objects.Parameterized(train, {"data": stored}))
    made = store.experiments.create(a_spec(), code=CodeRecord(hash="with data", blob=blob))
    store.experiments.create(a_spec("other"), code=CodeRecord(hash="without", blob=dumps(train)))
    epoch = store.drivers.claim(made.id, "driver", 60.0, T0)
    store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.COMPLETED), T0)
    await sweep_objects(store, storage, url)
    assert stored.load() == 1
    store.experiments.remove(made.id)
    await sweep_objects(store, storage, url)
    assert not Path(stored.uri).exists()
