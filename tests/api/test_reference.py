"""docs/api_reference.md is generated, and up to date."""

from __future__ import annotations

from fastapi import FastAPI

from tuner.api import reference
from tuner.experiment.operations.verbs import VERBS
from tuner.experiment.specs.model import OPTIONS


def test_the_file_is_what_is_generated(app: FastAPI) -> None:
    assert reference.FILE.read_text() == reference.text(app.openapi()), "run: make generate"


def test_it_has_every_option_and_verb(app: FastAPI) -> None:
    text = reference.text(app.openapi())
    assert all(f"`{name}`" in text for names in OPTIONS.values() for name in names)
    assert all(f"`POST /api/v1/experiments/{{experiment_id}}/{name}`" in text for name in VERBS)
