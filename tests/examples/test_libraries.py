"""The examples with other libraries, whose trials run for real. Every example is run by a test."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

import tuner
from tuner.settings import Settings
from tuner.store import Store

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Load the example that the test names, as a script, which no worker can import."""
    spec = importlib.util.spec_from_file_location(f"example_{request.param}", EXAMPLES / f"{request.param}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)
    del sys.modules[module.__name__]


def exploits(result: tuner.Result) -> list[Any]:
    with Store.open(Settings.from_env().database_url) as store:
        trials = [store.trials.get(trial.id) for trial in result.trials]
    return [segment for trial in trials for segment in trial.segments if segment.cause == "exploit"]


def test_every_example_is_run_by_a_test() -> None:
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    examples = {file.name for file in EXAMPLES.iterdir() if file.suffix in (".py", ".sh", ".ipynb")}
    assert [name for name in sorted(examples) if f'"{name.removesuffix(".py")}' not in tests] == []


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long  # test_manager_nodes.py splits a data set among the ranks of one trial
@pytest.mark.usefixtures("private_ray")
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


@pytest.mark.long  # test_foreign_forms.py has a class of this form under PBT
@pytest.mark.slow
@pytest.mark.ray
def test_exploits_help_a_gan() -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "pbt_gan.py"], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    print(done.stdout)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long  # test_arguments.py asks such a class for its resources; test_foreign_forms.py runs a Trainable
@pytest.mark.skipif(importlib.util.find_spec("gymnasium") is None, reason="needs `pip install 'ray[rllib]'`")
@pytest.mark.usefixtures("private_ray")
def test_an_algorithm_of_rllib_goes_on_from_its_own_checkpoint() -> None: ...


def test_nothing() -> None:
    assert Counter
