"""Every operation of the OpenAPI document keeps what the document says, whatever a client sends.

Schemathesis derives the requests from the document; TUNER_SCHEMATHESIS_EXAMPLES sets how many for each operation. Event streams
are left out, because they do not end: `test_stream.py` has them.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api.test_projects import fill
from tuner.store import Store

STREAMS = ("/events", "/changes")
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
PARTS = ("experiments", "trials", "checkpoints", "cluster", "access", "webhooks", "health")
EXAMPLES = int(os.environ.get("TUNER_SCHEMATHESIS_EXAMPLES", "12"))


def operations(app: FastAPI) -> list[Any]:
    """Return the operations of the document, without the streams."""
    loaded = schemathesis.openapi.from_dict(app.openapi())
    return [found.ok() for found in loaded.get_all_operations() if not found.ok().path.endswith(STREAMS)]


def tag(operation: Any) -> str:
    return str(next(iter(operation.tags or ()), ""))


def test_every_operation_has_a_test(app: FastAPI) -> None:
    assert {tag(operation) for operation in operations(app)} == {*PARTS}


@pytest.mark.parametrize("part", PARTS)
def test_the_answers_are_those_of_the_document(app: FastAPI, server: str, sqlite_store: Store, part: str) -> None:
    for at, operation in enumerate(one for one in operations(app) if tag(one) == part):
        ids = fill(sqlite_store, f"{part}{at}").ids
        hold(operation, server, dict(ids))


def hold(operation: Any, server: str, ids: dict[str, str]) -> None:
    """Send generated requests to an operation, with real ids in two of three, and check the answers."""
    requests = operation.as_strategy(generation_mode=GenerationMode.POSITIVE) | operation.as_strategy(
        generation_mode=GenerationMode.NEGATIVE
    )

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=requests, known=st.integers(0, 2))
    def each(case: Any, known: int) -> None:
        if known and case.path_parameters:
            case.path_parameters.update({name: ids[name] for name in case.path_parameters if name in ids})
        if case.query:
            case.query.pop("follow", None)  # it would not end while the trial runs
        response = case.call(base_url=server, timeout=20)
        # 503 is the documented answer of routes that need a driver, and there is none here.
        case.validate_response(
            response, checks=CHECKS if response.status_code == 503 else [not_a_server_error, *CHECKS]
        )

    each()
