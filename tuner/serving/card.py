"""The model card of an export: README.md for people, config.json for programs."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tuner import __version__
from tuner.names import printable
from tuner.serving.origin import Origin, plain

LIBRARIES = ("torch", "lightning", "pytorch-lightning", "safetensors", "onnx", "onnxscript")
"""The packages whose versions are recorded in the card if they are installed."""


def versions() -> dict[str, str]:
    """Return the versions of Python, of tuner and of the libraries that may have written the files."""
    found = {"python": platform.python_version(), "tuner": __version__}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def config_json(origin: Origin, files: Mapping[str, str], model: str | None, inputs: Sequence[Any]) -> str:
    """Return the content of config.json.

    Args:
        origin: where the weights come from.
        files: file name -> description of the file.
        model: the class of the model, as ``module.Class``.
        inputs: the shapes and types of the example input.
    """
    facts = origin.facts() | {"model": model, "files": dict(files), "inputs": list(inputs), "versions": versions()}
    return json.dumps(facts, indent=2) + "\n"


def card(origin: Origin, files: Mapping[str, str], model: str | None) -> str:
    """Return the content of README.md."""
    facts = [
        ("model", model),
        ("experiment", origin.experiment),
        ("trial", None if origin.trial is None else f"{origin.trial} ({origin.trial_id})"),
        ("metric", None if origin.metric is None else f"{origin.metric} ({origin.mode})"),
        ("best value", None if origin.value is None else f"{origin.value:.6g}"),
        ("checkpoint iteration", origin.iteration),
        ("checkpoint", origin.checkpoint.path),
    ]
    parts = [
        "---\ntags: [tuner]\n---",
        f"# {_line(origin.name or 'Exported model')}",
        _table(("", ""), [(what, _line(value)) for what, value in facts if value is not None]),
        "## Files",
        _table(("file", "what it is"), [(f"`{name}`", what) for name, what in files.items()]),
        "## Configuration",
        _block(plain(origin.config)) if origin.config else "Unknown: only a checkpoint was exported.",
    ]
    if len(origin.lineage) > 1:
        parts += [
            "## Lineage",
            "The configuration changed during training. Each configuration applied after the given iteration:",
            _table(
                ("after iteration", "trial", "configuration"),
                [
                    (step["iteration"], step["trial"], f"`{_line(json.dumps(plain(step['config'])))}`")
                    for step in origin.lineage
                ],
            ),
        ]
    parts += ["## Versions", _table(("", ""), list(versions().items()))]
    return "\n\n".join(parts) + "\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _block(value: Any) -> str:
    return "```json\n" + json.dumps(value, indent=2) + "\n```"


def _line(value: Any) -> str:
    """Return a value as the text of a table cell, escaped, because anyone may have chosen an experiment's name."""
    return printable(str(value)).replace("\n", " ").replace("|", "\\|")
