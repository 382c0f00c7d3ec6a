"""A service of a new version meets the driver host of the version before, on real Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.services import SLOW, until
from tuner.errors import NewerHost
from tuner.experiment.specs.spec import parse_spec
from tuner.hosts.on_ray import shared
from tuner.hosts.on_ray.link import Link
from tuner.hosts.on_ray.start import start_host
from tuner.hosts.ray.cluster import connect
from tuner.settings import Settings
from tuner.store import Store

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def _ray(without_ray: None) -> Iterator[None]:
    connect(cpus=2)
    yield
    ray.shutdown()


@pytest.mark.long  # tests/hosts/ray/test_head.py replaces the head of an earlier version
@pytest.mark.usefixtures("_ray")
def test_the_host_of_the_new_version_goes_on_from_the_checkpoints_of_the_old_one(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With this value, the lease does not expire during the test.
    settings = Settings(home=tmp_path, database_url=sqlite_url, lease_s=3600.0)
    spec = parse_spec({**SLOW, "num_samples": 1})
    made = sqlite_store.experiments.create(spec, source="api").public_id
    with monkeypatch.context() as before:
        before.setattr(shared, "__version__", "0.0.9")
        old = start_host(settings, shared=True)
    owner = ray.get(old.start.remote(serve=True), timeout=60)
    until(
        "a checkpoint",
        lambda: any(t.checkpoint for t in sqlite_store.trials.page(sqlite_store.experiments.get(made).id).items),
    )

    told: list[dict[str, Any]] = []
    link = Link(settings, False, lambda **what: told.append(what))
    ray.get(old.news.remote())  # its service is there
    with monkeypatch.context() as older:
        older.setattr(shared, "__version__", "0.0.8")
        with pytest.raises(NewerHost, match=r"version 0\.0\.9 drives the experiments"):
            link._start_host()
    new = link._start_host()
    try:
        assert link._gone == [owner]
        assert "stopped the driver host of 0.0.9" in told[0]["log"]
        assert ray.get(new.start.remote(serve=True, gone=link._gone), timeout=60) != owner
        ended = until("the end", lambda: (e := sqlite_store.experiments.get(made)).state.ended and e)
        assert (ended.state, ended.driver_epoch) == ("completed", 2), (ended.reason, ended.error)
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(old.status.remote(), timeout=10)
        [segments] = sqlite_store.trials.segments(ended.id).values()
        assert segments[0].start_iteration == 0
        assert all(segment.start_iteration > 0 for segment in segments[1:])
        [trial] = sqlite_store.trials.page(ended.id).items
        assert trial.iteration == 40
    finally:
        ray.kill(new)
