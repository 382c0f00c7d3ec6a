"""Test what a driver host finds of earlier hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.driver.bench import Bench
from tuner.domain import events as e
from tuner.domain.segments import CheckpointInfo
from tuner.hosts.upkeep.leftovers import ended_uploads
from tuner.trials.checkpoints import checkpoints


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
