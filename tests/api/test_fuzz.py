"""Whatever is sent, the answer is an experiment or a problem that says what is wrong: never a 500."""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.conftest import SPEC
from tuner.experiment.specs.model import SpecModel

quiet = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

WORDS = [
    "type",
    "lower",
    "upper",
    "categories",
    "values",
    "max_t",
    "grid_search",
    "num_workers",
    "CPU",
    "lr",
    "",
    "a/b~c",
    "env_vars",
]
KINDS = [
    "uniform",
    "loguniform",
    "choice",
    "quniform",
    "randint",
    "const",
    "sample_from",
    "asha",
    "pbt",
    "tpe",
    "random",
    "auto",
    "python",
    "plateau",
]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40) | st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(WORDS + KINDS),
    st.text(max_size=5),
    st.text(st.characters(categories=["Cs", "Cc", "Ll"]), max_size=3),
)
anything: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=[]), max_size=3), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@st.composite
def spoiled(draw: st.DrawFn) -> Any:
    """Draw the example with one or two of its values, wherever they are, replaced."""
    spec = copy.deepcopy(SPEC)
    for _ in range(draw(st.integers(1, 2))):
        place: Any = spec
        while isinstance(place, dict) and place:
            key = draw(st.sampled_from([*place, *(SpecModel.model_fields if place is spec else ["type"])]))
            if not isinstance(place.get(key), dict) or draw(st.booleans()):
                place[key] = draw(anything)
                break
            place = place[key]
    return spec


async def check(client: httpx.AsyncClient, body: Any) -> None:
    response = await client.post(
        "/api/v1/experiments",
        content=json.dumps(body),
        headers={"Content-Type": "application/json", "X-Request-Id": "same"},
    )
    answer = response.json()
    dry = await client.post(
        "/api/v1/experiments/dry-run",
        content=json.dumps(body),
        headers={"Content-Type": "application/json", "X-Request-Id": "same"},
    )
    if response.status_code == 201:
        assert dry.status_code == 200, dry.json()
        assert (await client.get(f"/api/v1/experiments/{answer['id']}")).json() == answer
        return
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json"), answer
    assert answer["errors"]
    assert (dry.status_code, dry.json()) == (422, answer)
    assert all(
        error["message"] and (not error["pointer"] or error["pointer"].startswith("/")) for error in answer["errors"]
    )


@quiet
@given(body=spoiled())
async def test_a_spoiled_spec(client: httpx.AsyncClient, body: Any) -> None:
    await check(client, body)


@quiet
@given(body=anything)
async def test_any_json_at_all(client: httpx.AsyncClient, body: Any) -> None:
    await check(client, body)


@quiet
@given(
    path=st.text(max_size=30),
    query=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    method=st.sampled_from(["GET", "POST", "PUT", "HEAD"]),
)
async def test_any_address(client: httpx.AsyncClient, path: str, query: dict[str, str], method: str) -> None:
    url = httpx.URL("http://localhost:8000").copy_with(
        raw_path=b"/api/v1/" + path.encode("utf-8", "replace").hex().encode()
    )
    response = await client.request(method, url, params=query)
    assert response.status_code in (404, 405)
    if method != "GET":
        return
    response = await client.get("/api/v1/experiments", params=query)
    if unknown := set(query) - {"state", "name", "page_size", "page_token"}:
        assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")
        assert len(response.json()["errors"]) == len(unknown)
    else:
        assert response.status_code in (200, 422)
