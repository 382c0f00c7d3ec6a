"""ASGI middleware that checks the headers of every request and the size of its body. It also answers HEAD, and sends 304.

A service that requires no token runs code for anybody who can reach it. It listens on loopback, which only users of
this machine can reach. But any website that is open in a browser on this machine could send requests too. Therefore:

- The Host header must be a name of loopback or one of TUNER_ALLOWED_HOSTS, because a website can make its own host name
  resolve to 127.0.0.1. If tokens are required, any host name is accepted, because a website has neither token nor cookie.
- A request that changes something must come from this service's own web UI, if the browser sends the origin.
- A body must be JSON, or a zip file for routes that take code. Before a browser sends such a body for another website, it
  asks the service whether it may (CORS preflight).
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import time
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.api.headers import header
from tuner.api.paths import path_of
from tuner.api.problems import problem_response
from tuner.settings import Settings
from tuner.usercode import archives

MAX_BODY = 16 * 1024 * 1024
BODY_S, BYTES_PER_S = 60.0, 4096
"""The number of seconds that any body may take to arrive, and the number of received bytes that earn one more second.

So a client that sends a byte now and then cannot keep a connection open for long.
"""
BUNDLES = "/api/v1/bundles/"
"""Routes below this path take zip files instead of JSON."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Accepted:
    """The media type that the body of a request must have, and its maximum size."""

    kind: str
    most: int

    @property
    def too_large(self) -> str:
        return f"the body is larger than {self.most} bytes"


JSON, ZIP = Accepted("application/json", MAX_BODY), Accepted("application/zip", archives.MAX_BYTES)


class Guard:
    """ASGI middleware that checks the headers of a request and limits the size of its body.

    It also answers HEAD, and it answers 304 if the client already has the content.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._hosts = frozenset({"localhost", settings.host.lower(), *settings.allowed_hosts})
        # Nearly all requests have the same Host header.
        self._allowed = functools.lru_cache(maxsize=256)(self._is_allowed)
        # With tokens, any host is allowed, because a website that resolves to this service has neither token nor
        # cookie.
        self._any_host = settings.auth == "on"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _NoSniff(send)
        if scope["method"] == "HEAD":
            head = _HeadOnly(receive, send)
            scope, receive, send = {**scope, "method": "GET"}, head.receive, head.send
        accepted = ZIP if scope["method"] == "PUT" and path_of(scope).startswith(BUNDLES) else JSON
        if refusal := self._refusal(scope, accepted):
            status, detail = refusal
            await problem_response(status, detail)(scope, receive, send)
            return
        known = header(scope, b"if-none-match")
        if scope["method"] not in SAFE:
            receive = _Counted(receive, accepted)
        await self._app(scope, receive, _NotModified(send, known) if known else send)

    def _refusal(self, scope: Scope, accepted: Accepted) -> tuple[int, str] | None:
        host = header(scope, b"host") or ""
        if not self._allowed(host):
            return (
                421,
                f"the Host header {host!r} is not a name of this service; add it to TUNER_ALLOWED_HOSTS if it should be",
            )
        if scope["method"] in SAFE:
            return None
        origin = header(scope, b"origin")
        if origin is not None and host_of(origin) != host.lower():
            return 403, f"web pages of {origin} may not change anything on this service"
        length = "0" if (sent := header(scope, b"content-length")) is None else sent
        if length.isdecimal() and int(length) > accepted.most:
            return 413, accepted.too_large
        body = length != "0" or header(scope, b"transfer-encoding") is not None
        kind, _, parameters = (header(scope, b"content-type") or "").lower().partition(";")
        if body and kind.strip() != accepted.kind:
            return 415, f"expected Content-Type: {accepted.kind}, got {kind.strip() or 'none'}"
        charset = parameters.strip().removeprefix("charset=").strip('"')
        if body and parameters.strip().startswith("charset=") and charset not in ("utf-8", "utf8", "us-ascii"):
            return 415, f"expected JSON in UTF-8, got charset={charset}"
        return None

    def _is_allowed(self, host: str) -> bool:
        return self._any_host or names_loopback(host, self._hosts)


def names_loopback(host: str, names: Collection[str]) -> bool:
    """Return whether a Host header has an address of loopback or one of these names. No name is resolved."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name in names:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(origin: str) -> str | None:
    """Return the host and the port of an Origin header, in the form of a Host header."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


class _Counted:
    """Refuses a body that turns out to be too large while it arrives, because a chunked request has no Content-Length.

    It also refuses a body that arrives too slowly.
    """

    def __init__(self, receive: Receive, accepted: Accepted) -> None:
        self._receive, self._accepted = receive, accepted
        self._received = 0
        self._begun = time.monotonic()
        self._is_complete = False

    async def __call__(self) -> Message:
        if self._is_complete:  # the caller waits for the client to disconnect
            return await self._receive()
        left = self._begun + BODY_S + self._received / BYTES_PER_S - time.monotonic()
        try:
            async with asyncio.timeout(left):
                message = await self._receive()
        except TimeoutError as error:
            took = time.monotonic() - self._begun
            detail = f"only {self._received} bytes of the body have arrived in {took:.0f} s"
            raise HTTPException(408, detail, {"Connection": "close"}) from error
        self._received += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._received > self._accepted.most:
            raise HTTPException(413, self._accepted.too_large, {"Connection": "close"})
        return message


class _NoSniff:
    """Adds the header X-Content-Type-Options to a response, so that browsers do not guess the media type."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [(name, value) for name, value in message["headers"] if name.lower() != b"x-content-type-options"]
            message = {**message, "headers": [*kept, (b"x-content-type-options", b"nosniff")]}
        await self._send(message)


class _HeadOnly:
    """Answers HEAD with the headers of the response to a GET.

    After the headers, the route is told that the client has disconnected, so that an event stream ends.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._asked = False
        self._answered = asyncio.Event()

    async def receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return await self._receive()
        await self._answered.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._send(message)
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            self._answered.set()


class _NotModified:
    """Replaces a response with a 304 without a body if the ETag of the response is in the request's If-None-Match."""

    def __init__(self, send: Send, known: str) -> None:
        self._send = send
        self._known = {tag.strip().removeprefix("W/") for tag in known.split(",")}
        self._dropping = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            tag = dict(message["headers"]).get(b"etag", b"").decode("latin-1").removeprefix("W/")
            if tag and tag in self._known:
                self._dropping = True
                kept = [(name, value) for name, value in message["headers"] if name in (b"etag", b"cache-control")]
                await self._send({**message, "status": 304, "headers": kept})
                return
        if self._dropping and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)
