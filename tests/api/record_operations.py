"""Add the ids of new operations of the API to `operation_ids.txt`: ``python -m tests.api.record_operations``.

Generated clients name their methods after the ids, so this keeps the lines of operations that are gone, and a test fails.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.api import create_app
from tuner.settings import Settings
from tuner.store import Store

RECORDED = Path(__file__).with_name("operation_ids.txt")


def operations(document: Mapping[str, Any]) -> set[str]:
    """Return a line for each operation of an OpenAPI document."""
    return {
        f"{operation['operationId']} {method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }


def recorded() -> set[str]:
    return set(RECORDED.read_text().splitlines())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home, Store.open(f"sqlite:///{home}/tuner.db") as store:
        found = operations(create_app(Settings(home=Path(home)), store).openapi())
    RECORDED.write_text("".join(f"{line}\n" for line in sorted(recorded() | found)))
