"""The wheel, made from the sdist, works in an environment that has nothing else.

The long form installs it. The short forms are `tests/web/test_build.py::test_the_wheel_carries_the_pages`, and here a search
without PyTorch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
WITHOUT_TORCH = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "lightning", "pytorch_lightning"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
if __name__ == "__main__" and "block" in sys.argv:
    sys.meta_path.insert(0, Missing())
"""
SEARCH = """
import sys
import tuner

def train(config):
    from sklearn.datasets import load_digits
    from sklearn.linear_model import SGDClassifier
    x, y = load_digits(return_X_y=True)
    model = SGDClassifier(alpha=config["alpha"], random_state=0)
    for epoch in range(3):
        model.partial_fit(x[:1000], y[:1000], classes=range(10))
        tuner.report({"accuracy": model.score(x[1000:], y[1000:])})

if __name__ == "__main__":
    result = tuner.run(
        train, {"alpha": tuner.loguniform(1e-6, 1e-1)}, metric="accuracy", mode="max", max_t=3, num_samples=6, verbose=0,
        executor="ray" if "ray" in sys.argv else "auto",
    )
    assert result.state == "completed", result.error
    assert result.best_value > 0.8
    for module, extra in (("torch", "torch"), ("lightning", "lightning"), ("examples.digits", "torch")):
        try:
            __import__(f"tuner.{module}")
        except ImportError as error:
            assert f"pip install 'tuner-hpo[{extra}]'" in str(error), error
        else:
            raise AssertionError(f"tuner.{module} was imported without PyTorch")
    print("fine")
"""
RANKS = """
import sys
import tuner

def train(config):
    import torch
    x = torch.tensor([config["x"]])
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(x)
    tuner.report({"loss": float(x)})

if __name__ == "__main__":
    ranks = 2 if "ray" in sys.argv else 1
    result = tuner.run(
        train, {"x": tuner.uniform(0, 1)}, metric="loss", mode="min", max_t=1, num_samples=2, num_workers=ranks, verbose=0,
        executor=sys.argv[1],
    )
    assert result.state == "completed", result.error
    print("fine")
"""


@pytest.mark.slow
def test_a_search_needs_no_torch(tmp_path: Path) -> None:
    """Run a search where torch cannot be imported; the errors of what needs it name the extra."""
    script = tmp_path / "search.py"
    script.write_text(WITHOUT_TORCH + SEARCH)
    done = _run([sys.executable, str(script), "block"], tmp_path, PYTHONPATH=str(ROOT))
    assert done.stdout.splitlines()[-1] == "fine"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_it_works_in_an_empty_environment(tmp_path: Path) -> None:
    made = tmp_path / "dist"
    _run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(made)], ROOT, TUNER_HOME=str(tmp_path))
    [sdist] = made.glob("*.tar.gz")
    pack = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(made)]
    _run([*pack, str(sdist)], tmp_path)
    [wheel] = made.glob("*.whl")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tuner/_web/index.html", "migrations/env.py", "constraints.txt"} <= names
    venv.create(tmp_path / "empty", with_pip=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt")]
    _run([*pip, str(wheel)], tmp_path)
    (tmp_path / "search.py").write_text(SEARCH)
    for executor in ("local", "ray"):
        assert _run([python, "search.py", executor], tmp_path).stdout.splitlines()[-1] == "fine"
    _run([*pip, "torch"], tmp_path)
    _run([*pip, f"{wheel}[torch]"], tmp_path)
    _run([str(tmp_path / "empty" / "bin" / "tuner"), "doctor", "--quick"], tmp_path)
    done = _run([str(tmp_path / "empty" / "bin" / "tuner"), "demo"], tmp_path)
    assert "completed" in done.stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the oldest numpy that is allowed has no wheel for this Python")
def test_it_works_with_the_oldest_versions_that_are_allowed(tmp_path: Path) -> None:
    """The versions that pyproject.toml names as lower bounds. Its short form is in `tests/test_package.py`."""
    uv, python = [sys.executable, "-m", "uv", "-q"], str(tmp_path / "oldest" / "bin" / "python")
    _run([*uv, "venv", "--python", sys.executable, "oldest"], tmp_path)
    # tuner itself runs from its source tree, since only the dependencies matter here.
    options = ["--resolution", "lowest-direct", "--extra", "torch", "-r", str(ROOT / "pyproject.toml")]
    _run([*uv, "pip", "install", "--python", python, *options], tmp_path)
    (tmp_path / "ranks.py").write_text(RANKS)
    for executor in ("local", "ray"):
        ended = _run([python, "ranks.py", executor], tmp_path, PYTHONPATH=str(ROOT))
        assert ended.stdout.splitlines()[-1] == "fine"
    _run([python, "-m", "tuner", "list"], tmp_path, PYTHONPATH=str(ROOT))


def _run(command: list[str], folder: Path, **environment: str) -> Any:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    home = {"TUNER_HOME": str(folder / "home"), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        command, cwd=folder, env={**env, **home, **environment}, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done
