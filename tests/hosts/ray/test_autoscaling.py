"""Run searches on a cluster whose nodes come and go, with a real autoscaler.

`tests/trials/groups/cluster/test_growth.py` and `tests/trials/groups/pools/test_leaving.py` are the short forms.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import tuner
from tests.autoscaling import autoscaled, nodes, until
from tuner.settings import Settings
from tuner.store import Store

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long]

TYPES: dict[str, tuple[int, dict[str, float]]] = {"small": (3, {"CPU": 1.0}), "large": (2, {"CPU": 2.0, "fast": 1.0})}


@pytest.fixture
def cluster(without_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("TUNER_NODE_TYPES", "3xCPU:1,2xCPU:2+fast:1")
    with autoscaled(TYPES, head={"CPU": 0}) as address:
        yield address
        tuner.shutdown()


class Search:
    """A search in a thread, and the node on which its only running rank is."""

    def __init__(self, function: Any, config: dict[str, Any], address: str, **options: Any) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._arguments = (function, config)
        self._options = {"metric": "loss", "mode": "min", "scheduler": "fifo", "search_alg": "random", "verbose": 0}
        self._options |= {"ray_address": address, **options}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = tuner.run(*self._arguments, **self._options)
        except BaseException as error:
            self.error = error

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> Any:
        self._thread.join(180)
        assert self.error is None, self.error
        assert self.result is not None, "the search has not ended"
        assert self.result.state == "completed", self.result.error
        return self.result


def trains(config: dict[str, Any]) -> None:
    """Train for some reports, and go on until the file `go` is there. Rank 0 writes down where each segment began."""
    import ray

    context = tuner.get_context()
    folder, done = Path(config["go"]).parent, 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as files:
            done = json.loads(Path(files, "state.json").read_text())
    if context.world_rank == 0:
        segment = 1 + len([*folder.glob(f"trial_{context.trial_number}_segment_*")])
        begun = {"node": ray.get_runtime_context().get_node_id(), "from": done}
        (folder / f"trial_{context.trial_number}_segment_{segment}.json").write_text(json.dumps(begun))

    def save(into: str) -> None:
        if context.world_rank == 0:
            Path(into, "state.json").write_text(json.dumps(done))

    while done < config["reports"] or (config["waits"] and not Path(config["go"]).exists()):
        done += 1
        time.sleep(0.1)
        tuner.report({"loss": 1.0 / done}, checkpoint=save)


def started(path: Path, trial: int, segment: int) -> dict[str, Any] | None:
    file = path / f"trial_{trial}_segment_{segment}.json"
    text = file.read_text() if file.exists() else ""
    return json.loads(text) if text else None


def test_what_waits_asks_for_nodes_of_its_shape_and_idle_nodes_are_let_go(cluster: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    search = Search(trains, {"reports": 3, "go": str(go), "waits": True}, cluster, num_samples=2)
    until(lambda: started(tmp_path, 0, 1) and started(tmp_path, 1, 1))
    assert [node["Resources"]["CPU"] for node in nodes()] == [1.0, 1.0], (
        "one small node for each trial, and no large one"
    )
    go.touch()
    search.wait()
    until(lambda: not nodes(), timeout=120.0)  # the warm groups are kept for a minute


def test_groups_of_several_ranks_ask_for_as_many_nodes_as_may_join(cluster: str, tmp_path: Path) -> None:
    config = {"reports": 3, "go": str(tmp_path / "go"), "waits": False}
    rank = {"CPU": 1, "fast": 1}
    search = Search(trains, config, cluster, num_samples=3, num_workers=2, resources_per_worker=rank)
    most = 0
    while not search.over:
        if ray.is_initialized():
            most = max(most, len(nodes()))
        time.sleep(0.2)
    search.wait()
    assert most == 2, "a group has 2 ranks, each on a large node, and 2 of those may join"
    tuner.shutdown()
    ray.init(address=cluster, log_to_driver=False, logging_level="error", ignore_reinit_error=True)
    until(lambda: not nodes())


def test_a_trial_leaves_a_node_that_will_be_taken_away_and_loses_nothing(cluster: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    search = Search(trains, {"reports": 10, "go": str(go), "waits": True}, cluster, num_samples=1)
    first = until(lambda: started(tmp_path, 0, 1))
    time.sleep(1.0)
    announce_end(cluster, first["node"])
    second = until(lambda: started(tmp_path, 0, 2))
    assert second["node"] != first["node"]
    assert second["from"] > 5, "it continues where it was paused"
    go.touch()
    search.wait()
    with Store.open(Settings.from_env().database_url) as store:
        [record] = store.experiments.page().items
        trial = store.trials.newest(record.id, 1)[0]
        reasons = [entry.reason for entry in store.log.decisions(record.id, page_size=100).items]
    assert (trial.failures, trial.system_failures) == (0, 0)
    assert any("is about to be taken away, in" in reason for reason in reasons), reasons


def test_a_trial_whose_node_vanishes_goes_on_elsewhere(cluster: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    options = {"checkpoint": {"frequency": 2}, "max_failures": 0}
    search = Search(trains, {"reports": 10, "go": str(go), "waits": True}, cluster, num_samples=1, **options)
    first = until(lambda: started(tmp_path, 0, 1))
    time.sleep(1.0)
    kill_raylet(first["node"])
    second = until(lambda: started(tmp_path, 0, 2), timeout=120.0)
    assert second["node"] != first["node"]
    assert second["from"] > 3
    go.touch()
    trial = search.wait().trials[0]
    assert trial.state == "completed"


def announce_end(address: str, node: str, seconds: float = 60.0) -> None:
    """Tell Ray that a node will be taken away, as a provider of spot instances does."""
    from ray.core.generated import autoscaler_pb2

    client = ray._raylet.GcsClient(address=address)
    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, why = client.drain_node(node, reason, "a test", int((time.time() + seconds) * 1000))
    assert accepted, why


def kill_raylet(node: str) -> None:
    """Kill the raylet of a node, as if its machine were gone."""
    import psutil

    for process in psutil.process_iter(["cmdline", "name"]):
        if process.info["name"] == "raylet" and any(node in part for part in process.info["cmdline"] or ()):
            process.kill()
            return
    raise AssertionError(f"no raylet of node {node}")
