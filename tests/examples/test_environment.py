"""Ray's runtime_env through `tuner.run`, and what a rank finds in its process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import tuner
from tuner.hosts.ray.cluster import connect

pytestmark = [pytest.mark.ray, pytest.mark.slow]

OPTIONS: dict[str, Any] = {
    "metric": "a",
    "mode": "max",
    "num_samples": 1,
    "scheduler": "fifo",
    "search_alg": "random",
    "resources_per_worker": {"CPU": 0.5},
    "verbose": 0,
}


@pytest.fixture(scope="module", autouse=True)
def _ray(without_ray: None) -> Iterator[None]:
    connect(cpus=2)
    yield
    ray.shutdown()


def test_a_rank_alone_has_no_torch_unless_its_code_imports_it() -> None:
    """Here no server forks the workers. Otherwise they would have the server's torch."""

    def train(config: dict[str, Any]) -> None:
        # With `tuner` as a global, cloudpickle would send `tuner.torch` along if another test has imported it.
        from tuner import report

        before = "torch" in sys.modules
        import torch
        import torch.distributed as dist

        one = torch.ones(1)
        dist.all_reduce(one)
        report({"a": one[0], "before": before, "world": dist.get_world_size()})

    result = tuner.run(train, reuse_workers=False, **OPTIONS)
    assert result.error is None
    assert result.trials[0].metrics == {"a": 1.0, "before": 0.0, "world": 1.0}


def test_variables_directories_and_modules_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "helper_of_this_project.py").write_text("VALUE = 42")
    (tmp_path / "here" / "numbers.txt").write_text("5")
    (tmp_path / "shared_module").mkdir()
    (tmp_path / "shared_module" / "__init__.py").write_text("THING = 7")
    kept = ray.put([1, 2, 3])

    def train(config: dict[str, Any]) -> None:
        import helper_of_this_project  # type: ignore[import-not-found]
        import shared_module  # type: ignore[import-not-found]

        read = float(Path("numbers.txt").read_text())
        variable = float(os.environ["OF_THE_USER"])
        total = sum(ray.get(kept, timeout=60))
        tuner.report(
            {"a": helper_of_this_project.VALUE, "b": shared_module.THING, "c": read, "d": variable, "e": total}
        )

    result = tuner.run(
        train,
        runtime_env={
            "env_vars": {"OF_THE_USER": "3"},
            "working_dir": str(tmp_path / "here"),
            "py_modules": [str(tmp_path / "shared_module")],
        },
        working_dir="caller",
        num_workers=2,
        backend="none",  # no rank imports torch
        **OPTIONS,
    )
    assert result.error is None
    assert result.trials[0].metrics == {"a": 42.0, "b": 7.0, "c": 5.0, "d": 3.0, "e": 6.0}


def test_a_file_of_the_caller_is_not_found_and_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text("1")

    def train(config: dict[str, Any]) -> None:
        tuner.report({"a": float(Path("data.csv").read_text())})

    failed = tuner.run(train, **OPTIONS)
    assert failed.trials[0].error is not None
    assert "data.csv" in failed.trials[0].error
    assert tuner.run(train, working_dir="caller", **OPTIONS).trials[0].metrics == {"a": 1.0}
