"""The processes of a `RayStrategy` on a Ray that loses messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import ray

from tuner.domain.experiment import Scaling
from tuner.errors import TrialError
from tuner.trials.lightning import workers
from tuner.trials.lightning.workers import Workers

pytestmark = pytest.mark.ray

SCALING = Scaling(num_workers=2, resources_per_worker={"CPU": 0.5}, backend="gloo")
ABOUT: dict[str, Any] = {"environment": {}, "sys_path": [], "directory": "", "tty": False}


class Losing:
    """The handle of a process. Ray loses the first `count` answers of its method `run`."""

    def __init__(self, actor: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actor, self.run, self._count = actor, self, count
        self._lost: list[Any] = []
        self._get = ray.get
        monkeypatch.setattr(ray, "get", self._found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.actor, name)

    def remote(self, *arguments: Any) -> Any:
        ref = self.actor.run.remote(*arguments)
        if self._count:
            self._count -= 1
            self._lost.append(ref)
        return ref

    def _found(self, refs: Any, **options: Any) -> Any:
        if not isinstance(refs, list) and refs in self._lost:
            raise ray.exceptions.ActorUnavailableError("a connection broke", None)
        return self._get(refs, **options)


def _counting(folder: Path) -> Callable[[Any], int]:
    """Return a function that each rank calls. It counts its calls, in a file for each rank."""
    there = str(folder)

    def function(assignment: Any) -> int:
        with open(os.path.join(there, str(assignment.rank)), "a", encoding="utf-8") as file:
            file.write("x")
        return int(assignment.rank)

    return function


def test_a_run_whose_answer_ray_loses_is_asked_for_again_and_not_repeated(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole training was lost, and the error said that the process was gone."""
    group = Workers(SCALING)
    try:
        group._actors[1] = Losing(group._actors[1], 2, monkeypatch)
        payload = cloudpickle.dumps(_counting(tmp_path))
        assert group.run(payload, ABOUT) == [0, 1]
        assert [(tmp_path / name).read_text() for name in "01"] == ["x", "x"]
        assert group.run(payload, ABOUT) == [0, 1]
        assert [(tmp_path / name).read_text() for name in "01"] == ["xx", "xx"]
        monkeypatch.setattr(workers, "_REPEATS", 1)
        group._actors[1] = Losing(group._actors[1].actor, 9, monkeypatch)
        with pytest.raises(TrialError, match=r"rank 1 on .* cannot be reached"):
            group.run(payload, ABOUT)
    finally:
        group.close()


def test_idle_processes_do_not_keep_what_the_last_run_returned(local_ray: None, tmp_path: Path) -> None:
    """Rank 0 kept the weights of the model, beside the copy that it had sent, until the next run."""
    group = Workers(replace(SCALING, num_workers=1))
    try:
        assert group.run(cloudpickle.dumps(_counting(tmp_path)), ABOUT) == [0]
        assert ray.get(group._actors[0].__ray_call__.remote(lambda worker: worker._value)) is None
    finally:
        group.close()


SCRIPT = """
from tuner.domain.experiment import Scaling
from tuner.hosts.ray.cluster import connect
from tuner.trials.lightning.workers import Workers

connect(cpus=1)
group = Workers(Scaling(num_workers=1, resources_per_worker={"CPU": 0.5}, backend="gloo"))
print(group.fresh(), len(group.workers))
group.close()
"""


@pytest.mark.long  # tests/hosts/ray/test_lost_messages.py has a search that loses the same messages
def test_the_processes_start_although_ray_loses_the_first_calls_to_them(tmp_path: Path) -> None:
    """`Trainer.fit` failed with "The actor is temporarily unavailable"."""
    (tmp_path / "script.py").write_text(SCRIPT)
    lost = {"CoreWorkerService.grpc_client.PushTask": {"num_failures": 2, "req_failure_prob": 100}}
    environment = {**os.environ, "RAY_testing_rpc_failure": json.dumps(lost)}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, env=environment, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True 1"
