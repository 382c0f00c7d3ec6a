"""The fragments of code on the pages: each Python block is run, after the few lines that it takes for granted.

Blocks that are whole scripts have the comment `runs: ...` and are run by the other tests of this folder.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest
import torch

import tuner
from tuner.cli.run import run_target
from tuner.hosts.scripts import local_host

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(<!-- runs: [^\n]* -->\n)?```python\n(.*?)```", re.DOTALL)

SEARCH = """
import time
import tuner

space = {"lr": tuner.loguniform(1e-4, 1e-1), "width": tuner.choice([16, 32, 64])}

def train(config):
    for epoch in range(50):
        loss = abs(config["lr"] - 0.01) + 1 / (epoch + 1)
        tuner.report({"loss": loss, "accuracy": 1 - loss, "latency_ms": config.get("width", 0)})
"""
BEFORE = {
    "README": """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def make_loader():
    x = torch.randn(64, 4)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)

def Net(width):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))

def train_one_epoch(model, loader, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return 1 / (1 + loss.item())

def save(model, folder):
    torch.save(model.state_dict(), f"{folder}/model.pt")
""",
    "ask_and_tell": "def train_one_epoch(config, epoch): return abs(config['lr'] - 0.01) + 1 / (epoch + 1)",
    "cleaning_up": SEARCH,
    "freeze_thaw": SEARCH,
    "from_optuna": SEARCH
    + """
import optuna

SPACE = {"lr": tuner.loguniform(1e-5, 1e-1)}
optuna.logging.set_verbosity(optuna.logging.WARNING)

def objective(trial):
    lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
    for step in range(6):
        trial.report(lr, step)
    return lr

study = optuna.create_study(direction="maximize")
study.optimize(objective, n_trials=5)
""",
    "local": SEARCH + "objective = train\n",
    "schedulers": SEARCH
    + "tuner.run(train, space, metric='loss', mode='min', max_t=27, num_samples=8, name='digits')\n",
    "search": SEARCH
    + """
for name in ("digits-large", "other"):
    tuner.run(train, space, metric="accuracy", mode="max", max_t=50, num_samples=8, name=name)
""",
}
ELSEWHERE = {
    "agents": "tests/agents/test_workers.py",
    "from_lightning": "a class for LightningCLI, which needs jsonargparse; the tests do not install it",
    "operations": "tests/api/webhooks/test_webhooks.py",
    "own_scheduler": "tests/driver/test_restarts.py",
    "scripts": "the middle of a script, which the last test of this file runs",
    "trials": "the middle of a script, and a service; tests/trials, tests/serving and tests/test_profiles.py have whole ones",
}
OF_A_SERVICE = {"search": ["client.change_project"]}  # tests/client/test_client.py


def fragments(page: Path) -> list[str]:
    return [block for marked, block in BLOCK.findall(page.read_text()) if not marked]


PAGES = {page.stem: fragments(page) for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))}


def test_every_page_with_fragments_is_run() -> None:
    assert {name for name, found in PAGES.items() if found} == BEFORE.keys() | ELSEWHERE.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BEFORE if name != "README"])
def test_the_fragments_of_a_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the searches in local processes, as for a reader without a cluster."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    try:
        run_fragments(name, tmp_path, monkeypatch, executor="local")
    finally:
        local_host.shutdown()  # `tuner.shutdown` would also end the Ray that other tests share


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("private_ray")
def test_the_fragments_of_the_readme_which_train_on_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_fragments("README", tmp_path, monkeypatch)


def run_fragments(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
    """Run the fragments of a page one after the other in a module that no worker can import."""
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.chdir(folder)
    cloudpickle.register_pickle_by_value(module)
    try:
        exec(smaller(BEFORE[name], options), module.__dict__)
        for block in PAGES[name]:
            lines = [
                line for line in block.splitlines() if not any(call in line for call in OF_A_SERVICE.get(name, ()))
            ]
            exec(smaller("\n".join(lines), options), module.__dict__)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


SCRIPT = """
import sys
import torch

model, start, epochs, loss = torch.nn.Linear(2, 1), 0, 6, float(sys.argv[1])
"""


@pytest.mark.slow
def test_the_script_of_the_page_about_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    [block] = PAGES["scripts"]
    assert block.count("    ...\n") == 1
    script = tmp_path / "train.py"
    script.write_text(SCRIPT + block)
    options = {"metric": "loss", "mode": "min", "max_t": 6, "num_samples": 1, "executor": "local", "verbose": 0}
    try:
        result = run_target(str(script), ["{lr}"], ["lr=uniform(0,1)"], None, options)
    finally:
        local_host.shutdown()  # `tuner.shutdown` would also end the Ray that other tests share
    assert [trial.error for trial in result.trials] == [None]
    assert result.best_checkpoint is not None
    tuner.torch.load_model(result.best_checkpoint, torch.nn.Linear(2, 1))


def smaller(block: str, options: Mapping[str, str]) -> str:
    """Return the code with fewer samples, with options for its searches, and with the reader's own names replaced."""
    tree = ast.parse(block.replace("tuner.run(...,", "tuner.run(train, space, metric='loss', mode='min',"))
    for call in [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "tuner.run"
    ]:
        ours = {"num_samples": 8, **options}
        call.keywords = [each for each in call.keywords if each.arg not in ours]
        call.keywords += [ast.keyword(key, ast.Constant(value)) for key, value in ours.items()]
    code = ast.unparse(tree)
    return code.replace("time_budget_s=3600", "time_budget_s=0.5").replace("'exp_...'", "'other'")
