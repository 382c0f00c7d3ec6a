"""A service on a cluster of several nodes whose head dies."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.nodes.cluster import Cluster
from tests.nodes.conftest import NewCluster
from tests.nodes.watching import Search, training, until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(500)]

STEPS = 60
SPEC = {
    "name": "nodes",
    "entrypoint": "tests.nodes.searches:trains",
    "space": {"lr": {"type": "const", "value": 0.01}, "steps": {"type": "const", "value": STEPS}},
    "metric": "loss",
    "mode": "min",
    "num_samples": 1,
    "search": {"type": "random"},
    "scheduler": {"type": "fifo"},
    "scaling": {"num_workers": 2, "resources_per_worker": {"CPU": 1}, "placement_strategy": "STRICT_SPREAD"},
    "checkpoint": {"frequency": 1},
}
POSTS = """
import json, sys, time, httpx
for _ in range(600):
    try:
        answer = httpx.post("http://127.0.0.1:8000/api/v1/experiments", json=json.loads(sys.argv[1]))
        if answer.status_code == 201:
            break
        print(answer.status_code, answer.text, flush=True)
    except httpx.HTTPError:
        pass
    time.sleep(0.2)
"""
RAY = r"raylet/raylet|gcs_server|fork_server|default_worker|late_agent|no_dashboard_agent|^ray::"


def end_ray(cluster: Cluster, number: int) -> None:
    """End Ray on a node, as it ends by itself a minute after the death of the head. The service on the node goes on."""
    for pid in cluster.network.processes(number, RAY):
        os.kill(pid, signal.SIGKILL)


def test_a_service_goes_on_when_the_head_of_its_cluster_is_back(new_cluster: NewCluster) -> None:
    cluster = new_cluster((1, 1))
    serve = "from tuner.cli import main; main()"
    service = cluster.script("-c", serve, "serve", "--port", "8000", "--ray-address", cluster.address, number=1)
    assert cluster.script("-c", POSTS, json.dumps(SPEC), number=1).wait(timeout=150) == 0
    search = Search(cluster)
    training(search, trials=1)
    reached, begun = search.iterations()[0], time.time()
    cluster.network.kill(0)
    for number in (1, 2):
        end_ray(cluster, number)
    assert service.poll() is None, search.output()
    cluster.start_head()
    for number in (1, 2):
        cluster.start_node(number, 1)
    back = time.time()
    until("the next segment", lambda: len(search.trained_on(0)) > 1 and search.trained_on(0)[-1], 150)
    print(f"head back after {back - begun:.1f} s; the trial trains again {time.time() - back:.1f} s later")
    until("the end", lambda: search.read(lambda _, experiment: str(experiment.state)) == "completed", 150)
    assert search.iterations() == [STEPS]
    assert search.segments()[0][-1].start_iteration >= reached - 1
    assert search.reports_once(STEPS) == STEPS
    service.terminate()
    assert service.wait(timeout=30) in (0, -signal.SIGTERM)
