"""Each script of the recipes, and of pages like it, runs as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

import tuner
from tuner.settings import Settings
from tuner.store import Store

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = ("recipes.md", "notebooks.md", "callbacks.md", "budgets.md", "pbt.md", "several_objectives.md")
PAGES = [(DOCS / name).read_text() for name in NAMES]
SCRIPTS = {
    name: script
    for page in PAGES
    for name, script in re.findall(r"<!-- runs: ([^\n]*) -->\n```python\n(.*?)```", page, re.DOTALL)
}
SHORT = ("accelerate", "budgets", "callbacks", "constraints", "front", "pbt")
"""The others are compiled below, and run by `make test-long`."""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("private_ray")
@pytest.mark.parametrize("name", [n if n in SHORT else pytest.param(n, marks=pytest.mark.long) for n in SCRIPTS])
def test_a_recipe_as_it_stands_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the function as a notebook would: from a module that no worker can import."""
    module = ModuleType("recipe")
    monkeypatch.setitem(sys.modules, "recipe", module)
    monkeypatch.chdir(tmp_path)
    cloudpickle.register_pickle_by_value(module)
    try:
        exec(SCRIPTS[name], module.__dict__)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    result = module.__dict__["result"]
    assert result.state == "completed", result.error
    assert {str(trial.state) for trial in result.trials} <= {"completed", "stopped"}
    bounds = {"accuracy": (0.85, 1.0), "error": (0.0, 0.2), "loss": (0.0, 0.6)}[result.metric]
    assert bounds[0] <= result.best_value <= bounds[1]
    with Store.open(Settings.from_env().database_url) as store:
        told = [decision.reason for decision in store.log.warnings(store.experiments.get(result.experiment_id).id)]
    assert not any("separate models" in warning for warning in told)
    if name == "callbacks":
        assert len(list(tmp_path.glob("logs/trial_*/progress.csv"))) == len(result.trials)
    if name == "plots":
        assert len(module.__dict__["figure"].data) == len(result.trials)
    if name == "tensorboard":
        assert len(list(tmp_path.glob("runs/trial-*/events.*"))) == len(result.trials)


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_recipe_can_be_compiled_and_uses_names_that_exist(name: str) -> None:
    compile(SCRIPTS[name], name, "exec")
    used = set(re.findall(r"\btuner\.(\w+)", SCRIPTS[name]))
    assert used
    assert used <= {*tuner.__all__, "torch", "lightning"}


def test_each_python_block_of_the_pages_is_run() -> None:
    assert len(SCRIPTS) == sum(page.count("```python") for page in PAGES) == 12
