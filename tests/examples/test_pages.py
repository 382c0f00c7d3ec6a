"""The pages "from ...": their code for before and after runs unchanged. And no link of any page is broken."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

from tests.silence import run_to_end

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("from_lightning", "from_optuna", "from_ray_train", "from_ray_tune", "from_wandb_sweeps")
BLOCK = re.compile(r"<!-- runs: ([^\n]*) -->\n```python\n(.*?)```", re.DOTALL)


def blocks(page: str) -> dict[str, str]:
    return dict(BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text()))


CASES = [(page, name) for page in PAGES for name in blocks(page) if name != "both"]
SEARCHES = [(page, name) for page, name in CASES if "tuner.run(" in blocks(page)[name]]
LONG = [case for case in SEARCHES if case[0].startswith(("from_ray", "from_lightning"))]
"""`test_foreign_forms.py`, `test_ray_examples.py` and `tests/trials/lightning` run such functions and trainers."""
OF_RAY = [("from_ray_train", "before"), ("from_ray_tune", "before")]
"""They run with Ray alone, which takes a minute each."""
OF_WANDB = [("from_wandb_sweeps", "before")]  # it needs an account
SCRIPTS = [case for case in CASES if case not in SEARCHES + OF_RAY + OF_WANDB]


def test_each_page_has_a_before_and_an_after() -> None:
    for page in PAGES:
        assert {"both", "before", "after"} <= set(blocks(page)), page
        text = (ROOT / "docs" / f"{page}.md").read_text()
        assert text.count("<!-- runs: ") == len(blocks(page)), page


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")) + [ROOT / "README.md"], ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    missing = [link for link in links if link and "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("private_ray")
@pytest.mark.parametrize(
    ("page", "name"), [case if case not in LONG else pytest.param(*case, marks=pytest.mark.long) for case in SEARCHES]
)
def test_a_search_as_it_stands_there(
    page: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Run it as in a notebook: in a module that no worker can import."""
    code = blocks(page)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.chdir(tmp_path)
    cloudpickle.register_pickle_by_value(module)
    try:
        exec(f"{code['both']}\n\n{code[name]}", module.__dict__)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    result = module.__dict__["result"]
    assert result.state == "completed", result.error
    assert "best" in "".join(capfd.readouterr())


@pytest.mark.parametrize(("page", "name"), SCRIPTS + OF_RAY + OF_WANDB + LONG)
def test_each_script_can_be_compiled(page: str, name: str) -> None:
    code = blocks(page)
    compile(f"{code['both']}\n\n{code[name]}", f"{page}: {name}", "exec")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long  # most of them are what a user has before
@pytest.mark.timeout(1800)  # `run_to_end` ends a script that hangs before
@pytest.mark.parametrize(("page", "name"), SCRIPTS + OF_RAY)
def test_a_script_as_it_stands_there(page: str, name: str, tmp_path: Path) -> None:
    code = blocks(page)
    script = tmp_path / "script.py"
    script.write_text(f"{code['both']}\n\n{code[name]}")
    home = {"HOME": str(tmp_path), "TUNER_HOME": str(tmp_path / "home")}
    done = run_to_end([sys.executable, str(script)], silence_s=380, cwd=tmp_path, env={**os.environ, **home})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
