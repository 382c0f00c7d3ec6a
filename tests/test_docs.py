"""The docs as a site: it builds without a warning, and has every page and every public name."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import json
import operator
import os
import pickle
import re
import shlex
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
from jsonschema import Draft202012Validator  # type: ignore[import-untyped, unused-ignore]

import tuner
from tuner import errors
from tuner.api.reference import document
from tuner.cli.commands import app, main
from tuner.domain.segments import CAUSES
from tuner.settings import Settings
from tuner.store.sql.connect import StoreUnavailable

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"contributing", "changelog", "python"}
    assert {path.parent.name for path in site.glob("*/index.html")} >= pages


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = (site / "python" / "index.html").read_text()
    assert [name for name in tuner.__all__ if not re.search(rf"\b{name}\b", page)] == []


@pytest.mark.slow
def test_the_first_page_is_the_readme_with_links_into_the_site(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert 'href="getting_started/' in page
    assert "docs/getting_started" not in page


def test_every_error_and_every_cause_has_its_section_in_troubleshooting() -> None:
    sections = set(re.findall(r"^### (\w+)$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE))
    kinds = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.TunerError)
    }
    page = (ROOT / "docs" / "trials.md").read_text()
    rows = re.findall(r"^\|[^|]*\|([^|]*)\| (?:yes|no|not retried) \|$", page, re.MULTILINE)
    causes = {cause for cell in rows for cause in re.findall(r"`(\w+)`", cell)} - {"traceback"}  # a field, not a cause
    assert causes == CAUSES
    assert kinds | CAUSES == sections


def test_every_failure_that_tuner_makes_has_one_of_the_causes() -> None:
    made = {
        argument.value.value
        for path in (ROOT / "tuner").rglob("*.py")
        if "cause=" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Failure")
        for argument in node.keywords
        if argument.arg == "cause" and isinstance(argument.value, ast.Constant)
    }
    assert len(made) > 10
    assert made <= CAUSES


def test_errors_of_other_modules_have_a_section_of_their_own_or_of_a_close_kind() -> None:
    """A class that is derived from TunerError itself would send its readers to the section about errors in general."""
    classes = [
        (node.name, ast.unparse(base))
        for path in (ROOT / "tuner").rglob("*.py")
        if path.name != "errors.py" and "TunerError" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    ]
    internal = {"Closed"}  # its only callers catch it
    assert {name for name, base in classes if base in ("TunerError", "errors.TunerError")} == internal


def test_a_package_that_is_missing_is_named_by_an_error_with_a_section() -> None:
    found = {
        str(path.relative_to(ROOT)): path.read_text().count("raise ImportError(")
        for path in (ROOT / "tuner").rglob("*.py")
        if "raise ImportError(" in path.read_text()
    }
    assert found == {"tuner/__init__.py": 1}, "it names the version of Python, before anything else can be imported"
    assert errors.MissingPackage("x").__notes__ == ["What to do: tuner docs MissingPackage"]
    assert issubclass(errors.MissingPackage, ImportError)


@pytest.mark.parametrize(
    "call",
    [
        lambda: tuner.report({"loss": "high"}),
        lambda: tuner.report({"loss": 0.5}, step="first"),
        lambda: tuner.run(print, {}, metrik="loss"),  # type: ignore[call-arg]
        lambda: tuner.load(3),
        lambda: tuner.torch.prepare_model(None, parallel_strategy="pp"),
    ],
    ids=["metric", "step", "keyword", "name", "option"],
)
def test_an_argument_that_cannot_be_used_is_named_by_an_error_with_a_section(call: Callable[[], object]) -> None:
    """These errors stay TypeErrors and ValueErrors for code that expects them."""
    with pytest.raises(errors.WrongArgument) as caught:
        call()
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    assert traceback.format_exception(caught.value)[-1].strip() == "What to do: tuner docs WrongArgument"


def test_the_command_line_names_the_section(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["tuner", "show", "nothing"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    assert capsys.readouterr().err.splitlines() == [
        "error: no experiment 'nothing'; the database has no experiments (see TUNER_HOME)",
        "What to do: tuner docs NotFound",
    ]


def test_a_traceback_names_the_section() -> None:
    with pytest.raises(errors.StoreError) as caught:
        raise StoreUnavailable("the database is away")
    assert traceback.format_exception(caught.value)[-1].strip() == "What to do: tuner docs StoreError"
    assert str(caught.value) == "the database is away"
    assert pickle.loads(pickle.dumps(errors.SpecError("no", "/space"))).__notes__ == [
        "What to do: tuner docs SpecError"
    ]


PAGES = {
    path.name: path.read_text()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"))
}
FENCES = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """Return the commands of a page that begin with `tuner`: in code blocks, in indented lines, and within a line."""
    joined = text.replace("\\\n", " ")
    blocks = [block for language, block in FENCES.findall(joined) if language in ("", "bash", "sh")]
    found = [line.strip() for block in blocks for line in block.splitlines()]
    found += re.findall(r"^    (tuner [a-z].*)$", joined, re.MULTILINE)
    found += [line.replace("\n", " ") for line in re.findall(r"`(tuner [a-z][^`]*)`", joined)]
    piped = [part for line in found if line.startswith("tuner ") for part in line.split(" | ")]
    return [line for part in piped if (line := part.removeprefix("xargs -r ")).startswith("tuner ")]


@functools.cache
def root() -> Any:
    """Return the command `tuner`, which takes a while to build."""
    return typer.main.get_command(app)


def mistake(command: str) -> str | None:
    """Return what is wrong with a command line, as far as its words tell."""
    at: Any = root()
    words = shlex.split(command, comments=True)[1:]
    while words and (inner := getattr(at, "commands", None)) is not None and not words[0].startswith("-"):
        if words[0] not in inner:
            return f"{command}: there is no command {words[0]}"
        at, *words = inner[words[0]], *words[1:]
    known = {option for each in at.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
    for word in words:
        if word == "--" or (at.name in ("run", "agent") and word.endswith(".py")):  # what follows is for the script
            break
        if re.match(r"--?[a-z]", word) and (option := word.partition("=")[0]) not in known:
            return f"{command}: there is no option {option}"
    return None


def test_the_variables_of_all_pages_are_settings() -> None:
    known = {one.metadata["variable"] for one in dataclasses.fields(Settings) if "variable" in one.metadata}
    deployed = {path.name: path.read_text() for path in (ROOT / "deploy").rglob("*") if path.is_file()}
    texts = (PAGES | deployed).items()
    found = {(name, variable) for name, text in texts for variable in re.findall(r"\bTUNER_[A-Z_]+\b", text)}
    assert len({variable for _, variable in found}) > 30
    assert {(name, variable) for name, variable in found if variable not in known} == set()


def test_the_commands_of_all_pages_exist() -> None:
    found = [(name, line) for name, text in PAGES.items() for line in commands(text)]
    assert len(found) > 100
    assert [f"{name}: {wrong}" for name, line in found if (wrong := mistake(line))] == []
    assert commands("    tuner ls --ids | xargs -r tuner cancel\n") == ["tuner ls --ids", "tuner cancel"]
    assert mistake("tuner explian NAME") == "tuner explian NAME: there is no command explian"
    assert mistake("tuner logs NAME --folow") == "tuner logs NAME --folow: there is no option --folow"


@pytest.mark.parametrize("name", PAGES)
def test_the_python_of_each_page_uses_names_and_arguments_that_exist(name: str) -> None:
    for language, block in FENCES.findall(PAGES[name]):
        if language != "python":
            continue
        tree = ast.parse(textwrap.dedent(block))
        if any(
            isinstance(node, ast.Name) and node.id == "tuner" and isinstance(node.ctx, ast.Store)
            for node in ast.walk(tree)
        ):
            continue  # Ray's Tuner, under its usual name
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tuner":
                assert hasattr(tuner, node.attr), f"tuner.{node.attr}"
            if isinstance(node, ast.Call) and node.keywords and re.fullmatch(r"tuner(\.\w+)+", ast.unparse(node.func)):
                called = operator.attrgetter(ast.unparse(node.func).removeprefix("tuner."))(tuner)
                parameters = inspect.signature(called).parameters.values()
                if not any(each.kind is each.VAR_KEYWORD for each in parameters):
                    given = {keyword.arg for keyword in node.keywords} - {None}
                    assert given <= {each.name for each in parameters}, ast.unparse(node)


def curls(text: str) -> list[list[str]]:
    """Return the words of each curl command of a page. A quoted body may have several lines."""
    found = []
    for match in re.finditer(r"(?m)^ *(?:cd .* && )?(curl )", text):
        lines = text[match.start(1) :].replace("\\\n", " ").split("\n")
        for count in range(1, len(lines) + 1):
            try:
                words = shlex.split("\n".join(lines[:count]))
            except ValueError:  # a quote is still open
                continue
            found.append(words[: words.index("|")] if "|" in words else words)
            break
    return found


def request_of(words: list[str]) -> tuple[str, str, str | None]:
    """Return the method, the path below /api/v1 and the body of a curl command."""
    options = dict(itertools.pairwise(words))
    [url] = [word for word in words if "/api/v1/" in word]
    body = options.get("-d")
    return options.get("-X", "GET" if body is None else "POST").lower(), url.partition("/api/v1")[2], body


def test_the_curl_commands_of_all_pages_are_requests_of_the_api() -> None:
    api, checked = document(), 0
    for text in PAGES.values():
        for words in curls(text):
            if not any("/api/v1/" in word for word in words):
                continue
            method, path, body = request_of(words)
            [operation] = [
                operations[method]
                for route, operations in api["paths"].items()
                if method in operations and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route), f"/api/v1{path}")
            ]
            if body is not None:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                Draft202012Validator({**schema, "components": api["components"]}).validate(json.loads(body))
                checked += 1
    assert checked > 8
