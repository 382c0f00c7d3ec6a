"""Test what a driver host finds of earlier hosts and of deleted experiments."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.driver.bench import Bench
from tests.store.examples import T0, a_spec
from tuner.domain import events as e
from tuner.domain.batch import Batch
from tuner.domain.segments import CheckpointInfo, Failure
from tuner.domain.states import ExperimentState
from tuner.hosts.upkeep.leftovers import ended_uploads, sweep_after, sweep_objects
from tuner.store import CodeRecord, Store
from tuner.trials.checkpoints import checkpoints, objects
from tuner.usercode.pickling import dumps


def test_only_uploads_that_were_complete_are_found(tmp_path: Path) -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    infos = []
    for step in (1, 2):
        folder = tmp_path / str(step)
        folder.mkdir()
        (folder / "model").write_text("weights")
        infos.append(CheckpointInfo(id=f"ckpt_{step}", uri=str(folder), step=step, ready=False))
        bench.reported(0)
        bench.feed(e.CheckpointSaved(time=bench.tick(), trial=0, segment=1, checkpoint=infos[-1]))
    checkpoints.commit(infos[0].uri, checkpoints.digest(infos[0].uri), {})
    driven: Any = SimpleNamespace(core=bench.successor().core)
    assert ended_uploads(driven) == [replace(infos[0], ready=True)]


@pytest.mark.parametrize(
    ("outcome", "executor", "folder", "left"),
    [
        ("failed", "ray", "{}", ["known"]),
        ("returned", "ray", "{}", ["deleted", "half", "known"]),
        ("failed", "agents", "{}", ["deleted", "half", "known"]),
        ("failed", "ray", "$SET_ON_NODES_ONLY/{}", ["deleted", "half", "known"]),
    ],
)
def test_what_failed_segments_have_not_saved_is_deleted_when_the_experiment_ends(
    outcome: str, executor: str, folder: str, left: list[str], tmp_path: Path
) -> None:
    """Not if an agent may be writing it now, or if only the nodes know where it is."""
    bench = Bench(num_samples=1, executor=executor)
    bench.started(0)
    bench.ended(0, outcome, Failure(kind="user", message="a bug") if outcome == "failed" else None)
    trial = tmp_path / "trial_00000"
    for name in ("known", "deleted", "half"):
        (trial / name).mkdir(parents=True)
        (trial / name / "model").write_text("weights")
        if name != "half":
            checkpoints.commit(str(trial / name), checkpoints.digest(str(trial / name)), {})
    rows = [
        SimpleNamespace(uri=str(trial / name), state=state)
        for name, state in (("known", "ready"), ("deleted", "deleted"))
    ]
    store: Any = SimpleNamespace(trials=SimpleNamespace(checkpoints=lambda experiment: rows))
    record, groups = SimpleNamespace(id=1, spec=bench.spec), SimpleNamespace(storage=folder.format(tmp_path))
    driven: Any = SimpleNamespace(core=bench.core, record=record, groups=groups)
    sweep_after(store, driven)
    assert sorted(one.name for one in trial.iterdir() if one.is_dir()) == left


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
    await sweep_objects(store, "$SET_ON_NODES_ONLY", url)
    assert stored.load() == 1, "where it is was not known"
    await sweep_objects(store, storage, url)
    assert not Path(stored.uri).exists()
