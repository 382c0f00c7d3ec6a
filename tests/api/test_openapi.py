"""The document from which the page's types are made says what the answers are."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import httpx
import jsonschema
import pytest
from fastapi.responses import Response

from tests.api import record_examples, record_operations
from tuner import search
from tuner.api.answers import Route
from tuner.api.app import PARTS, create_app
from tuner.api.openapi import BODIES, RECORDED, REQUESTS
from tuner.api.routes import health, monitoring
from tuner.api.schemas.analysis.curves import COLUMNS
from tuner.experiment.specs.model import SpecModel
from tuner.experiment.specs.spec import parse_spec
from tuner.schedulers import ASHAScheduler
from tuner.settings import Settings
from tuner.space.primitives import OPTIONS
from tuner.store import Store


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the document, which is the same for all apps. It takes a second to generate."""
    home = tmp_path_factory.mktemp("document")
    with Store.open(f"sqlite:///{home}/tuner.db") as store:
        return create_app(Settings(home=home), store).openapi()


def test_every_answer_has_a_type(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (path, method)
            for status, response in operation["responses"].items():
                assert ("content" in response) == (status not in ("204", "304"))
                for kind, content in response.get("content", {}).items():
                    if kind in ("text/event-stream", "text/plain", "application/x-tar", COLUMNS):
                        continue
                    assert content["schema"]["$ref"], (path, method, status)
                    error = status >= "400" and (path, status) != ("/readyz", "503")
                    assert (kind == "application/problem+json") == error, (path, status)


def test_models_of_answers_are_built_only_for_the_document(document: dict[str, Any]) -> None:
    """A route writes its answer itself. A model that FastAPI got would be built at every start, and would check the answer."""
    for part in (health, monitoring, *PARTS):
        for route in part.router.routes:
            assert isinstance(route, Route)
            assert (route.response_field, route.response_fields) == (None, {}), route.path
            answers = get_type_hints(route.endpoint).get("return")
            assert issubclass(answers or object, Response), route.path
    listed = document["paths"]["/api/v1/experiments"]["get"]["responses"]
    assert listed["200"]["content"]["application/json"]["schema"]["$ref"] == "#/components/schemas/ExperimentPage"


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*(references(item) for item in value.values()))
        return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()

    schemas = document["components"]["schemas"]
    assert {ref.removeprefix("#/components/schemas/") for ref in references(document)} <= set(schemas)
    assert set(schemas["Spec"]["properties"]) == set(SpecModel.model_fields)
    assert schemas["Spec"]["additionalProperties"] is False


def test_fields_that_are_always_there_are_required(document: dict[str, Any]) -> None:
    for name in ("Experiment", "Trial", "TrialDetail", "Segment", "Curves", "Decision", "Counts", "TrialPage"):
        schema = document["components"]["schemas"][name]
        assert set(schema["required"]) == set(schema["properties"]), name


def test_every_field_and_parameter_is_described(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        for field, about in schema.get("properties", {}).items():
            assert about.get("description") or "$ref" in about, (name, field)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", []):
                assert parameter.get("description"), (method, path, parameter["name"])


def test_operation_ids_are_short_and_unique(document: dict[str, Any]) -> None:
    found = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(set(found)) == len(found)
    assert {"experiments_create", "experiments_pause", "trials_get", "trials_stop", "health_readyz"} <= set(found)


def test_what_the_guards_answer_is_documented(document: dict[str, Any]) -> None:
    create = document["paths"]["/api/v1/experiments"]
    assert {"403", "408", "413", "415", "421"} <= set(create["post"]["responses"])
    assert {"304", "403", "421"} <= set(create["get"]["responses"])
    assert "304" not in document["paths"]["/api/v1/experiments/{experiment_id}/events"]["get"]["responses"]
    assert {"401", "403"} <= set(document["paths"]["/metrics"]["get"]["responses"])


def test_the_spec_names_the_options_of_schedulers_searchers_and_parameters(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    asha = next(kind for kind in schemas["Scheduler"]["oneOf"] if kind["title"] == "asha")
    assert asha["properties"]["type"]["const"] == "asha"
    assert asha["properties"]["reduction_factor"]["default"] == ASHAScheduler().reduction_factor
    assert {kind["title"] for kind in schemas["Search"]["oneOf"]} == {"name", "auto", *search.REGISTRY}
    assert {kind["title"] for kind in schemas["Parameter"]["anyOf"]} == {*OPTIONS, "constant"}


@pytest.mark.parametrize(
    ("part", "kind", "needed"),
    [("Scheduler", "pbt_replay", "schedule"), ("Search", "optuna", "sampler")],
)
def test_an_option_without_a_default_is_required_and_the_name_alone_is_not_enough(
    document: dict[str, Any], part: str, kind: str, needed: str
) -> None:
    kinds = {each["title"]: each for each in document["components"]["schemas"][part]["oneOf"]}
    assert kinds[kind]["required"] == ["type", needed]
    assert kind not in kinds["name"]["enum"]
    assert {"auto", "asha" if part == "Scheduler" else "random"} < set(kinds["name"]["enum"])


def test_a_file_of_the_service_is_no_schedule(document: dict[str, Any]) -> None:
    kinds = {each["title"]: each for each in document["components"]["schemas"]["Scheduler"]["oneOf"]}
    assert kinds["pbt_replay"]["properties"]["schedule"]["type"] == "array"


def test_the_example_is_a_spec(document: dict[str, Any]) -> None:
    (example,) = document["components"]["schemas"]["Spec"]["examples"]
    assert parse_spec(example).name == "digits"


async def test_it_is_where_people_look_for_it(client: httpx.AsyncClient, document: dict[str, Any]) -> None:
    assert (await client.get("/openapi.json")).json() == document


def test_every_request_and_answer_has_an_example_that_fits_its_schema(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            contents = dict(operation.get("requestBody", {}).get("content", {}))
            for status, response in operation["responses"].items():
                contents |= response.get("content", {}) if status < "300" else {}
            for kind, content in contents.items():
                if kind in ("application/x-tar", COLUMNS):
                    continue
                assert "example" in content, (method, path, kind)
                if kind == "application/json":
                    schema = {**content["schema"], "components": document["components"]}
                    jsonschema.validate(content["example"], schema, jsonschema.Draft202012Validator)
                else:
                    assert isinstance(content["example"], str)
    [problem] = document["components"]["schemas"]["Problem"]["examples"]
    assert problem["errors"]


def _paths(value: Any, at: str = "") -> set[str]:
    """Return where a JSON value has fields, such as `items/0/name`."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return set().union(*({f"{at}/{key}", *_paths(item, f"{at}/{key}")} for key, item in items))
    return set()


def test_the_recorded_examples_are_those_of_today() -> None:
    """Compare where they have fields, and not the values, since other versions of libraries may round differently."""
    known = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert _paths(record_examples.recorded()) ^ _paths(known) == set(), "run python -m tests.api.record_examples"


def test_examples_of_requests_are_taken(document: dict[str, Any]) -> None:
    for model, _ in BODIES.values():
        model.model_validate(REQUESTS[model.__name__.removesuffix("Model")])


def test_operation_ids_stay(document: dict[str, Any]) -> None:
    """Generated clients name their methods after them, so none may be changed or removed."""
    found, recorded = record_operations.operations(document), record_operations.recorded()
    assert recorded - found == set(), "an operation is gone"
    assert found == recorded, "run python -m tests.api.record_operations"
