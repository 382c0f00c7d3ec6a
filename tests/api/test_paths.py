"""Test the answer at an address that does not exist."""

from __future__ import annotations

import httpx
import pytest


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("POST", "/api/v1/experiments/exp_1/paus", "/api/v1/experiments/exp_1/pause"),
        ("POST", "/experiments/exp_1/pause", "/api/v1/experiments/exp_1/pause"),
        ("GET", "/api/v1/experiments/exp_1/trails", "/api/v1/experiments/exp_1/trials"),
        ("GET", "/api/v1/experiment/exp_1", "/api/v1/experiments/exp_1"),
        ("POST", "/api/v1/experiments/exp_1/frobnicate", None),
        ("GET", "/api/v1/a/b/c/d/e/f", None),
    ],
)
async def test_an_address_without_a_route_is_not_found_and_the_nearest_is_named(
    client: httpx.AsyncClient, method: str, path: str, meant: str | None
) -> None:
    answer = await client.request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    detail = answer.json()["detail"]
    assert detail.endswith(f"; did you mean {meant}?" if meant else f"there is no {path}"), detail


async def test_a_wrong_method_of_a_page_is_still_a_405(client: httpx.AsyncClient) -> None:
    answer = await client.post("/compare")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
