"""``python -m tuner.api.reference``: write docs/api_reference.md from the OpenAPI document and the table of verbs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tuner.api.app import create_app
from tuner.settings import Settings
from tuner.store import Store

FILE = Path(__file__).resolve().parents[2] / "docs" / "api_reference.md"

HEAD = """# API reference

This file is generated: `make generate`. [api.md](api.md) explains what the calls mean. `/openapi.json` of a service has the same
content in full, with an example of a spec.
"""


def document() -> dict[str, Any]:
    """Return the OpenAPI document of a service."""
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/tuner.db") as store:
        return create_app(Settings(home=Path(folder)), store).openapi()


def text(openapi: Mapping[str, Any]) -> str:
    """Return the API reference that describes this OpenAPI document, as Markdown."""
    schemas: Mapping[str, Any] = openapi["components"]["schemas"]
    lines = [HEAD, "## Routes", "", "| route | |", "|---|---|"]
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            lines.append(f"| `{method.upper()} {path}` | {_cell(operation['summary'])} |")
    written = [name for name in schemas if name == "Spec" or name.endswith("Spec")]
    for title, names in (("Spec", written), ("Answers", [name for name in schemas if name not in written])):
        lines += ["", f"## {title}"]
        for name in names:
            if "properties" in schemas[name]:
                lines += ["", *_table(name, schemas[name], defaults=title == "Spec")]
    return "\n".join(lines) + "\n"


def _table(name: str, schema: Mapping[str, Any], *, defaults: bool) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    if "description" in schema:
        yield _cell(schema["description"])
        yield ""
    yield "| field | type | default | |" if defaults else "| field | type | |"
    yield "|---|---|---|---|" if defaults else "|---|---|---|"
    for field, about in schema["properties"].items():
        default = json.dumps(about["default"], ensure_ascii=False) if "default" in about else ""
        cells = [f"`{field}`", _type(about), *([f"`{default}`" if default else ""] if defaults else [])]
        yield "| " + " | ".join([*cells, _cell(about.get("description", ""))]) + " |"


def _type(schema: Mapping[str, Any]) -> str:
    """Return a short name for the type of a schema, such as ``integer or null`` or ``list of Trial``."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(json.dumps(value) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    kind = str(schema.get("type", "any"))
    return f"list of {_type(schema['items'])}" if kind == "array" and "items" in schema else kind


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")


if __name__ == "__main__":
    FILE.write_text(text(document()), encoding="utf-8")
