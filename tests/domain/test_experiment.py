"""Test what a spec says about the resources of a rank."""

from __future__ import annotations

from tuner.domain.experiment import Scaling


def test_a_rank_asks_for_one_cpu_and_a_gpu_if_it_uses_one_and_never_for_nothing_of_a_resource() -> None:
    assert Scaling().bundle() == {"CPU": 1.0}
    assert Scaling(use_gpu=True).bundle() == {"CPU": 1.0, "GPU": 1.0}
    assert Scaling(use_gpu=True, resources_per_worker={"CPU": 0, "GPU": 0.5, "disk": 2}).bundle() == {
        "GPU": 0.5,
        "disk": 2,
    }
