"""The pool's reservations, on a real Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.util.placement_group import placement_group_table

from tuner.domain.experiment import Scaling
from tuner.trials.launch import CodeRef, Launch
from tuner.trials.pool import Pool

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def small_ray() -> Iterator[None]:
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="warning")
    yield
    ray.shutdown()


def test_a_group_whose_forming_is_cancelled_while_it_is_asked_for_is_given_back(
    small_ray: None, tmp_path: Path
) -> None:
    launch = Launch(
        experiment_id="exp",
        trial_id="trl",
        segment_id="seg",
        trial_number=1,
        code=CodeRef(hash="h", entrypoint="none:none"),
        scaling=Scaling(resources_per_worker={"CPU": 1}),
        storage=str(tmp_path),
        log_dir=str(tmp_path),
    )

    async def scenario() -> None:
        pool = Pool(None, name="exp_1", autoscaling=True, idle_timeout_s=60.0)
        acquiring = asyncio.create_task(pool.acquire(launch, lambda reason: None))
        for _ in range(3):  # up to the request, which a thread has in hand by then
            await asyncio.sleep(0)
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        await pool.close()

    asyncio.run(scenario())
    groups = list(placement_group_table().values())
    assert [(group["name"], group["state"]) for group in groups] == [("exp_1/1", "REMOVED")]
