"""What every request passes first.

Until there are tokens, whoever reaches the service may run code on it. It binds loopback, so that is the machine's own users;
but a browser on the machine would carry requests of any web page here. Hence: the Host header must be a name of loopback (a
foreign page can point a name of its own at 127.0.0.1), a changing request must come from the page itself where the browser
says where it comes from, and a body must be JSON, which other pages may not send without asking first.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.api.problems import problem_response
from tuner.settings import Settings

MAX_BODY = 16 * 1024 * 1024
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """ASGI middleware: checks the request's head, and answers 304 where the client has the answer already."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._hosts = frozenset({"localhost", settings.host.lower(), *settings.allowed_hosts})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if refusal := self._refusal(scope["method"], headers):
            status, detail = refusal
            await problem_response(status, detail)(scope, receive, send)
            return
        known = headers.get("if-none-match")
        await self._app(scope, receive, _NotModified(send, known) if known else send)

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._allowed(host):
            return 421, f"the Host header {host!r} is not a name of this service; TUNER_ALLOWED_HOSTS adds names"
        if method in SAFE:
            return None
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, f"a page of {origin} may not change anything here"
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > MAX_BODY:
            return 413, f"the body is larger than {MAX_BODY} bytes"
        body = length != "0" or "transfer-encoding" in headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if body and kind != "application/json":
            return 415, f"expected Content-Type: application/json, got {kind or 'none'}"
        return None

    def _allowed(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


class _NotModified:
    """Turns an answer whose ETag the client knows into a 304 without a body."""

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
