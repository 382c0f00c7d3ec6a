"""Test that docstrings open with a subject or a verb. ruff checks the rest of their form."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FRAGMENT = re.compile(r"(What|Who|How|Where|Whether|When|Which|Why|That|As|If|Those|The same) ")
OPENING = re.compile(rf"""['"]\s*{FRAGMENT.pattern}""")
"""A string that may be such a docstring. Most files have none, and need not be parsed."""

FOREIGN = re.compile(r"\b(goes on|went on|lets? go of|of which the|cannot be had|just now|also (?:if|while|after))\b")
"""Phrases that read as translated, in docstrings and messages alike."""
FOREIGN_ACROSS = re.compile(FOREIGN.pattern.replace(" ", r"""[\s"'f\\n]+"""))
"""These phrases in a source, where they may be broken into lines and strings. Most files have none, and need not be parsed."""


def fragments(text: str) -> list[str]:
    """Return the first lines of the docstrings in this source, of names too, that open with a fragment."""
    if not OPENING.search(text):
        return []
    found = [
        node.value.value.strip()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return [doc.splitlines()[0] for doc in found if FRAGMENT.match(doc)]


def test_a_fragment_is_noticed() -> None:
    assert fragments('"""Whether it runs."""\nX = 1\n"""The number of runs."""') == ["Whether it runs."]
    assert fragments('A = 1\n"""How often it runs."""') == ["How often it runs."]


def test_no_docstring_opens_with_a_fragment() -> None:
    folders = ("tuner", "tests", "benchmarks", "examples")
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    found = {str(path.relative_to(ROOT)): lines for path in files if (lines := fragments(path.read_text()))}
    assert found == {}, 'write a sentence with its subject or verb first, such as "Return whether it runs."'


def foreign(text: str) -> list[str]:
    """Return the strings of this source, messages and docstrings, that contain one of the phrases of FOREIGN."""
    if not FOREIGN_ACROSS.search(text):
        return []
    strings = [n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [" ".join(string.split()) for string in strings if FOREIGN.search(" ".join(string.split()))]


def test_a_foreign_phrase_is_noticed() -> None:
    assert foreign('raise Exception("the search goes\\n on there")\nX = "it continues"') == ["the search goes on there"]


def test_no_docstring_or_message_has_a_foreign_phrase() -> None:
    files = sorted((ROOT / "tuner").rglob("*.py"))
    found = {str(path.relative_to(ROOT)): lines for path in files if (lines := foreign(path.read_text()))}
    assert found == {}, 'use the usual word: "continues", "releases", "at the moment", "even if"'
