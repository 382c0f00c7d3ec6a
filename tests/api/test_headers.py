"""Test reading headers in the form of ASGI."""

from __future__ import annotations

from tuner.api.headers import header


def test_a_header_is_found_by_its_name() -> None:
    scope = {"headers": [(b"host", b"a"), (b"x-name", b"\xe9"), (b"x-name", b"second")]}
    assert header(scope, b"x-name") == "é"
    assert header(scope, b"host") == "a"
    assert header(scope, b"hos") is None
    assert header({}, b"host") is None
