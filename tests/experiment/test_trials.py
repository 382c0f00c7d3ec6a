"""What users do with checkpoints, on a real database."""

from __future__ import annotations

import pytest

from tests.store.examples import T0, begin
from tuner.domain.batch import Batch
from tuner.domain.events import CheckpointInfo, CheckpointSaved
from tuner.errors import StoreError
from tuner.experiment.trials import pin
from tuner.store import Store


def test_a_pin_is_stored_only_together_with_its_command(sqlite_store: Store) -> None:
    made, epoch, _ = begin(sqlite_store)
    info = CheckpointInfo(id="ckp_1", uri="/c/1", step=1, ready=True)
    saved = CheckpointSaved(time=T0, trial=0, segment=1, checkpoint=info)
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(4, saved)]), T0)
    with sqlite_store._database.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER full BEFORE INSERT ON command BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
    with pytest.raises(StoreError):
        pin(sqlite_store, "ckp_1", True)
    assert not sqlite_store.trials.checkpoint("ckp_1").pinned, "its driver was not told"
    with sqlite_store._database.engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER full")
    for _ in range(2):
        assert pin(sqlite_store, "ckp_1", True).pinned
    [command] = sqlite_store.commands.pending([made.id])
    assert (command.command, command.payload) == ("pin", {"checkpoint": "ckp_1", "pinned": True})
