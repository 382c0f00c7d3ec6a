"""The examples with other libraries, whose trials run for real. Every example is run by a test."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

import tuner
from tests.examples import scripts
from tests.silence import run_to_end
from tuner.settings import Settings
from tuner.store import Store

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Load the example that the test names, as a script, which no worker can import."""
    module = scripts.example(request.param)
    yield module
    cloudpickle.unregister_pickle_by_value(module)
    del sys.modules[module.__name__]


def exploits(result: tuner.Result) -> list[tuple[Any, Any]]:
    """Return each trial that has copied another one, with the segment that begins there."""
    with Store.open(Settings.from_env().database_url) as store:
        segments = [(trial, store.trials.get(trial.id).segments) for trial in result.trials]
    return [(trial, segment) for trial, each in segments for segment in each if segment.cause == "exploit"]


def test_every_example_is_run_by_a_test() -> None:
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("*.py"))  # fixtures run examples, too
    examples = [file for file in scripts.EXAMPLES.iterdir() if file.suffix in (".py", ".sh", ".ipynb")]
    assert [file.name for file in examples if not re.search(rf'"{file.stem}(\{file.suffix})?"', tests)] == []


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long  # test_manager_nodes.py splits a data set among the ranks of one trial
@pytest.mark.usefixtures("connected_ray")
@pytest.mark.parametrize("example", ["ray_data"], indirect=True)
def test_trials_share_what_a_pipeline_has_made(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled, log = example.scaled, tmp_path / "rows"

    def counted(batch: dict[str, Any]) -> dict[str, Any]:
        with log.open("a") as file:
            file.write(f"{len(batch['label'])}\n")
        return scaled(batch)

    monkeypatch.setattr(example, "scaled", counted)
    result = example.main(num_samples=3, verbose=0)
    assert result.state == "completed", result.error
    assert [trial.error for trial in result.trials] == [None] * 3
    assert all(row["rows"] == 1437 // 2 for trial in result.trials for row in trial.history)
    assert sum(int(line) for line in log.read_text().splitlines()) == 1797
    assert result.best_value > 0.8


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long  # test_ray_compat.py: a class that pickles itself; test_arguments.py: one that asks for resources
@pytest.mark.skipif(importlib.util.find_spec("gymnasium") is None, reason="needs `pip install 'ray[rllib]'`")
@pytest.mark.usefixtures("private_ray")
@pytest.mark.parametrize("example", ["rllib_ppo"], indirect=True)
def test_an_algorithm_of_rllib_continues_from_the_checkpoint_of_another_trial(example: ModuleType) -> None:
    bad, good = {"lr": 1e-5, "clip_param": 0.05}, {"lr": 2e-3, "clip_param": 0.2}
    result = example.main(num_samples=2, max_t=6, points_to_evaluate=[bad, good], max_concurrent_trials=1, verbose=0)
    assert result.state == "completed", result.error
    assert [trial.error for trial in result.trials] == [None] * 2
    [(worse, exploit)] = exploits(result)
    assert (worse.number, exploit.start_iteration) == (0, 3)
    sampled = [row["num_env_steps_sampled_lifetime"] for row in worse.history]
    assert sampled == pytest.approx([1000.0 * n for n in range(1, 7)], rel=0.05)
    rates = [row["learners/default_policy/default_optimizer_learning_rate"] for row in worse.history]
    assert rates[-1] == pytest.approx(exploit.params["lr"])
    # the checkpoint is RLlib's own, which loads without tuner
    assert result.best_checkpoint is not None
    with result.best_checkpoint.as_directory() as folder:
        loaded = example.PPO.from_checkpoint(folder)
    try:
        assert loaded.config.lr == pytest.approx(result.best_config["lr"])
    finally:
        loaded.stop()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long  # test_arguments.py: what becomes of such a configuration
@pytest.mark.skipif(importlib.util.find_spec("gymnasium") is None, reason="needs `pip install 'ray[rllib]'`")
@pytest.mark.usefixtures("private_ray")
def test_a_configuration_of_rllib_is_a_space() -> None:
    from ray.rllib.algorithms.ppo import PPO, PPOConfig

    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0)
    config.training(lr=tuner.loguniform(1e-4, 1e-2), train_batch_size_per_learner=500, num_epochs=2)
    objective: dict[str, Any] = {"metric": "env_runners/episode_return_mean", "mode": "max"}
    result = tuner.run(PPO, config, num_samples=1, max_t=1, verbose=0, **objective)
    assert result.state == "completed", result.error
    assert result.best_config["num_epochs"] == 2
    metrics = result.trials[0].metrics
    assert metrics["num_env_steps_sampled_lifetime"] == pytest.approx(500, rel=0.05)
    assert metrics["learners/default_policy/default_optimizer_learning_rate"] == pytest.approx(result.best_config["lr"])


@pytest.mark.slow
@pytest.mark.long  # test_foreign_forms.py has such a class under PBT
@pytest.mark.timeout(1800)  # `run_to_end` ends a script that hangs before
def test_exploits_help_a_population_of_gans(tmp_path: Path) -> None:
    """Members wait for each other, so that the numbers do not depend on the load of the machine.

    They depend on the seed: with `seed=0`, the best member is one without exploits. With the seed of the example, the best
    members differ by a factor of eight.
    """
    command = [sys.executable, str(scripts.EXAMPLES / "pbt_gan.py")]
    done = run_to_end(command, silence_s=380, env={**os.environ, "TUNER_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    found = re.findall(
        r"^(with exploits|without): best ([\d.]+), median ([\d.]+) at the end$", done.stdout, re.MULTILINE
    )
    assert [what for what, *_ in found] == ["with exploits", "without"], done.stdout
    best, median = ([float(values[i]) for _, *values in found] for i in range(2))
    assert best[0] < best[1]
    assert median[0] < median[1]
