"""Launches for tests of worker groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuner.domain.experiment import Scaling
from tuner.trials.messages.launch import CodeRef, Launch


def asking_for(cpus: float, path: Path, **more: Any) -> Launch:
    """Return a launch of one rank with this many CPUs."""
    given = {"experiment_id": "exp", "trial_id": "trl", "segment_id": "seg"} | more
    return Launch(
        trial_number=1,
        code=CodeRef(hash="h", entrypoint="none:none"),
        scaling=Scaling(resources_per_worker={"CPU": cpus}),
        storage=str(path),
        log_dir=str(path),
        **given,
    )
