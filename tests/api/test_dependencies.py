"""Test what FastAPI calls before each route."""

from __future__ import annotations

import inspect

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts


def test_no_request_waits_for_a_thread_before_its_route(app: FastAPI) -> None:
    seen = plain = 0
    for route in iter_route_contexts(app.routes):
        for dependency in getattr(getattr(route, "dependant", None), "dependencies", ()):
            seen += 1
            if not inspect.iscoroutinefunction(dependency.call):
                print(f"{dependency.call} of {route.path} is a plain function, which FastAPI runs in a thread")
                plain += 1
    assert seen > 100
    assert plain == 0
