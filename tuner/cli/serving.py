"""`tuner export-model` and `tuner serve-model`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.cli.run import imported
from tuner.sdk.result import Result


def export_model(
    result: Result, folder: Path, model: str | None, formats: Sequence[Any], example_input: str | None
) -> Path:
    """Export the best model of a search. `model` and `example_input` name objects, as ``FILE.py:NAME`` or ``module:name``."""
    from tuner.serving.exports import export  # loads torch

    example = None if example_input is None else imported(example_input)
    return export(
        result,
        folder,
        model=None if model is None else imported(model),
        formats=formats,
        example_input=example() if callable(example) else example,
    )
