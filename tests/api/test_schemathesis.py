"""Every operation of the OpenAPI document keeps what the document says, whatever a client sends.

Schemathesis derives the requests from the document; TUNER_SCHEMATHESIS_EXAMPLES sets how many for each operation. Event streams
are left out, because they do not end: `test_stream.py` has them.
"""

from __future__ import annotations

import io
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

from tests.api.record_examples import CODE, EXPERIMENT, FOR_AGENTS, agents, cluster, fill, look, profile
from tuner.domain.keys import trial_id
from tuner.experiment.logs import driver_log_path
from tuner.store import Store
from tuner.store.service.access import Role
from tuner.usercode.archives import sha256

# The service draws random numbers in a thread of its own, while Hypothesis chooses requests.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

schemathesis.serializer.alias("application/zip", "application/octet-stream")

STREAMS = ("/events", "/changes")
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
PARTS = (
    "agents",
    "experiments",
    "trials",
    "checkpoints",
    "bundles",
    "cluster",
    "access",
    "projects",
    "webhooks",
    "health",
)
SHORT, LONG = (int(os.environ.get("TUNER_SCHEMATHESIS_EXAMPLES", default)) for default in ("8", "16"))
"""The number of requests for each operation."""


def operations(app: FastAPI) -> list[Any]:
    """Return the operations of the document, without the streams."""
    loaded = schemathesis.openapi.from_dict(app.openapi())
    return [found.ok() for found in loaded.get_all_operations() if not found.ok().path.endswith(STREAMS)]


def tag(operation: Any) -> str:
    return str(next(iter(operation.tags or ()), ""))


def test_every_operation_has_a_test(app: FastAPI) -> None:
    assert {tag(operation) for operation in operations(app)} == {*PARTS}


REFUSED = {
    "DELETE /api/v1/experiments/{experiment_id}": 409,
    "POST /api/v1/experiments/{experiment_id}/archive": 409,
    "POST /api/v1/trials/{trial_id}/retry": 409,
    "GET /api/v1/checkpoints/{checkpoint_id}/download": 409,
    "POST /api/v1/session": 401,
}
"""Map requests whose example is refused to the status they get: the experiment runs, and its checkpoints have no files."""


@pytest.mark.parametrize("examples", [SHORT, pytest.param(LONG, marks=pytest.mark.long)], ids=["few", "many"])
@pytest.mark.parametrize("part", PARTS)
def test_the_answers_are_those_of_the_document(
    app: FastAPI, server: str, sqlite_store: Store, part: str, examples: int
) -> None:
    driver = app.state.context.driver
    driver.look, driver.cluster, driver.agents, driver.profile = look, cluster, agents, profile
    log = driver_log_path(app.state.context.settings.home, EXPERIMENT)
    log.parent.mkdir(parents=True)
    log.write_text("a new driver took over\n")
    number = fill(sqlite_store)
    [saved, *_] = sqlite_store.trials.checkpoint_page(sqlite_store.experiments.get(EXPERIMENT).id, page_size=1).items
    app.state.context.bundles.put(sha256(CODE), io.BytesIO(CODE))
    _, token = sqlite_store.access.create_token("ci", Role.VIEWER)
    ids = {
        "experiment_id": EXPERIMENT,
        "trial_id": trial_id(EXPERIMENT, number),
        "checkpoint_id": saved.public_id,
        "token_id": token.id,
        "project": "default",
        "sha256": sha256(CODE),
        "experiment": FOR_AGENTS,
        "lease": "0-1-0123456789abcdef",
        "webhook_id": sqlite_store.webhooks.create("https://hooks.invalid/", ["trial.failed"]).public_id,
    }
    tried = [operation for operation in operations(app) if tag(operation) == part]
    for operation in sorted(tried, key=lambda one: one.method == "delete"):
        send_the_example(operation, server, ids)
        hold(operation, server, ids, examples)


def send_the_example(operation: Any, server: str, ids: dict[str, str]) -> None:
    """Send the example of the document, with real ids and no optional parameter, and check the answer."""
    content = operation.definition.raw.get("requestBody", {}).get("content", {})
    body = {}
    for kind, described in content.items():
        body = {"body": CODE if kind == "application/zip" else described["example"], "media_type": kind}
    names = [one["name"] for one in operation.definition.raw.get("parameters", ()) if one["in"] == "path"]
    case = operation.Case(path_parameters={name: ids[name] for name in names}, **body)
    response = case.call_and_validate(base_url=server, checks=[not_a_server_error, *CHECKS], timeout=60)
    expected = REFUSED.get(operation.label)
    assert response.status_code == expected if expected else response.status_code < 300, response.content


def hold(operation: Any, server: str, ids: dict[str, str], examples: int) -> None:
    """Send generated requests to an operation, with real ids in two of three, and check the answers."""
    requests = operation.as_strategy(generation_mode=GenerationMode.POSITIVE) | operation.as_strategy(
        generation_mode=GenerationMode.NEGATIVE
    )

    @settings(
        max_examples=examples,
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
