"""docs/api_reference.md is generated, and up to date. docs/api.md names every route."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi import FastAPI

from tuner.api import reference
from tuner.api.paths import PREFIX
from tuner.experiment.operations.verbs import TRIAL_VERBS, VERBS
from tuner.experiment.specs.model import OPTIONS


def test_the_file_is_what_is_generated(app: FastAPI) -> None:
    assert reference.FILE.read_text() == reference.text(app.openapi()), "run: make generate"


def test_it_has_every_option_and_verb(app: FastAPI) -> None:
    text = reference.text(app.openapi())
    assert all(f"`{name}`" in text for names in OPTIONS.values() for name in names)
    assert all(f"`POST /api/v1/experiments/{{experiment_id}}/{name}`" in text for name in VERBS)


PAGE = Path(reference.FILE).with_name("api.md")
_PARAMETER = re.compile(r"\{\w+\}")


def test_the_page_about_the_api_names_every_route_and_no_other(app: FastAPI) -> None:
    routes = {
        (method.upper(), _PARAMETER.sub("{}", path.removeprefix(PREFIX)))
        for path, operations in app.openapi()["paths"].items()
        for method in operations
    }
    named = _named(PAGE.read_text())
    assert sorted(routes - named) == [], "docs/api.md lacks these routes"
    assert sorted(named - routes) == [], "docs/api.md names routes that do not exist"


def _named(page: str) -> set[tuple[str, str]]:
    """Return the routes in the first column of the page's table of calls.

    VERB stands for each verb that has no row of its own. A path without a method, such as `/unpin` after
    `POST /checkpoints/{id}/pin`, replaces the last part of the path before it, or follows it after "below".
    """
    table = page.partition("| call | response |")[2].partition("\n\n")[0]
    found: set[tuple[str, str]] = set()
    for row in table.splitlines()[2:]:
        cell = re.split(r"(?<!\\)\|", row)[1]
        method, base = "", ""
        for span in re.findall(r"`([A-Z]+ /[^`]*|/[^`]*)`", cell.partition("(outside")[0]):
            word, _, path = span.rpartition(" ")
            path = _PARAMETER.sub("{}", path.partition("?")[0])
            if word:
                method, base = word, path
                if "below" in cell:
                    base += "/{}/"
            elif "{}" in path:
                path = base.removesuffix("/{}/") + path
            else:
                path = base.rpartition("/")[0] + path
            found.add((method, path))
    for kind, verbs in (("experiments", VERBS), ("trials", TRIAL_VERBS)):
        found.remove(("POST", f"/{kind}/{{}}/VERB"))
        found |= {("POST", f"/{kind}/{{}}/{verb}") for verb in verbs}
    return found
