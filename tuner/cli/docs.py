"""`tuner docs`: print the documentation that comes with the package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import tuner
from tuner.errors import NotFound
from tuner.names import did_you_mean

PACKAGE = Path(tuner.__file__).parent
FOLDERS = (PACKAGE / "_docs", PACKAGE.parent / "docs")
"""The folders that may contain the documentation: one in an installed package, and one in a source tree."""

FAILURES = "failures"
"""The topic of `tuner docs` that lists all causes of failures."""

_TITLES = {FAILURES: "failures of trials", "storeunavailable": "storeerror"}
"""The sections of topics that are not titles themselves. A traceback shows the class StoreUnavailable."""

_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)


def pages() -> dict[str, Path]:
    """Return a dict from the name of each page of the documentation to its file."""
    folder = next((folder for folder in FOLDERS if (folder / "troubleshooting.md").is_file()), None)
    return {} if folder is None else {file.stem: file for file in sorted(folder.glob("*.md"))}


def text_about(topic: str | None) -> str:
    """Return the text about a topic: a page, or the section about an error or a cause of failures.

    If there is no topic, return a list of all pages.

    Raises:
        NotFound: there is no such page or section. The message suggests the most similar name.
    """
    found = pages()
    if not found:
        raise NotFound("the pages of the documentation are missing from this installation")
    if topic is None:
        width = max(map(len, found))
        return "\n".join(f"{name:<{width}}  {_title(file)}" for name, file in found.items())
    if topic in found:
        return found[topic].read_text(encoding="utf-8").rstrip()
    troubles = found["troubleshooting"].read_text(encoding="utf-8")
    sections = {title.lower(): text for title, text in _sections(troubles)}
    wanted = _TITLES.get(topic.lower(), topic.lower())
    if wanted not in sections:
        meant = did_you_mean(topic, [*found, *sections], "'") or "; `tuner docs` lists the pages"
        raise NotFound(f"no page or section {topic!r}{meant}")
    return sections[wanted]


def _title(file: Path) -> str:
    found = _HEADING.search(file.read_text(encoding="utf-8"))
    return found.group(2) if found else ""


def _sections(page: str) -> Iterator[tuple[str, str]]:
    """Yield the title and the text of each section of a page. The text includes the section's subsections."""
    headings = list(_HEADING.finditer(page))
    for at, heading in enumerate(headings):
        level = len(heading.group(1))
        end = next((other.start() for other in headings[at + 1 :] if len(other.group(1)) <= level), len(page))
        yield heading.group(2), page[heading.start() : end].rstrip()
