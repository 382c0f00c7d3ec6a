"""The documentation that comes with the package, for the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import tuner
from tuner.errors import NotFound
from tuner.names import did_you_mean

PACKAGE = Path(tuner.__file__).parent
FOLDERS = (PACKAGE / "_docs", PACKAGE.parent / "docs")
"""The folders that may have the pages: of an installed package, and of a source tree."""

FAILURES = "failures"
"""The topic that lists all causes of failures."""

_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)


def pages() -> dict[str, Path]:
    """Return the pages by name."""
    folder = next((folder for folder in FOLDERS if (folder / "troubleshooting.md").is_file()), None)
    return {} if folder is None else {file.stem: file for file in sorted(folder.glob("*.md"))}


def text_about(topic: str | None) -> str:
    """Return a page, or the section about an error or a cause of failures. Without a topic, return the names of the pages.

    Raises:
        NotFound: there is no such page or section. The message has the nearest name.
    """
    found = pages()
    if not found:
        raise NotFound("the pages of the documentation are missing from this installation")
    if topic is None:
        return "\n".join(f"{name:<16} {_title(file)}" for name, file in found.items())
    if topic in found:
        return found[topic].read_text(encoding="utf-8").rstrip()
    troubles = found["troubleshooting"].read_text(encoding="utf-8")
    sections = {title.lower(): text for title, text in _sections(troubles)}
    wanted = {FAILURES: "failures of trials"}.get(topic.lower(), topic.lower())
    if wanted not in sections:
        raise NotFound(f"no page and no section {topic!r}{did_you_mean(topic, [*found, *sections], chr(39))}")
    return sections[wanted]


def _title(file: Path) -> str:
    found = _HEADING.search(file.read_text(encoding="utf-8"))
    return found.group(2) if found else ""


def _sections(page: str) -> Iterator[tuple[str, str]]:
    """Yield the title and the text of each section. The text includes its subsections."""
    headings = list(_HEADING.finditer(page))
    for at, heading in enumerate(headings):
        level = len(heading.group(1))
        end = next((other.start() for other in headings[at + 1 :] if len(other.group(1)) <= level), len(page))
        yield heading.group(2), page[heading.start() : end].rstrip()
