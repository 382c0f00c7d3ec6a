"""Find out who sends a request, and what they may do.

A request names its sender by `Authorization: Bearer TOKEN`, or by the cookie that signing in on the page sets. The cookie is
HttpOnly and SameSite=Strict, so that no script reads it and no other page can use it. Roles: a viewer may read, an editor may
change experiments, an admin may manage tokens and read the audit trail. If the service asks for no token (`TUNER_AUTH=auto` on
a loopback address), everybody who reaches it is an admin named "local".
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import time
from collections import OrderedDict, deque
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.api.problems import problem_response
from tuner.errors import Retryable, StoreError
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.access import USED_EVERY_S, AuditRecord, Role, TokenRecord

log = logging.getLogger(__name__)

COOKIE = "tuner_session"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
API = "/api/"
SESSION = "/api/v1/session"
ADMIN_ONLY = ("/api/v1/tokens", "/api/v1/audit")

KNOWN_S = 5.0
"""A token that was revoked may be used for this long: this is how often the database is asked about a token."""

TRIES, TRIES_S = 10, 60.0
"""One address may fail to sign in this many times within this many seconds."""

MAX_COOKIE_AGE_S = 30 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Identity:
    """The sender of a request."""

    name: str
    role: Role
    token_id: str | None = None
    expires_at: float | None = None


LOCAL = Identity("local", Role.ADMIN)


class Authenticator:
    """Finds the identity behind a token. Belongs to the event loop; asks the database in threads."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.required = settings.auth == "on"
        self._store = store
        self._known: OrderedDict[bytes, tuple[float, TokenRecord]] = OrderedDict()
        self._failures: dict[str, deque[float]] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def identity_of(self, secret: str) -> Identity | None:
        """Return the identity of a valid token's owner, None for any other text."""
        key, now = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest(), time.monotonic()
        known = self._known.get(key)
        if known is None or now - known[0] > KNOWN_S:
            found = await asyncio.to_thread(self._store.access.token_of, secret)
            self._known.pop(key, None)
            if found is None:
                return None
            self._note_use(found)
            known = self._known[key] = (now, found)
            if len(self._known) > 1000:
                self._known.popitem(last=False)
        record = known[1]
        if not record.is_valid(time.time()):
            return None
        return Identity(record.name, record.role, record.id, record.expires_at)

    def _note_use(self, found: TokenRecord) -> None:
        """Write the time of its latest use, in the background: reading must not wait for a write, nor fail with it."""
        if found.used_at is not None and time.time() - found.used_at < USED_EVERY_S:
            return

        async def write() -> None:
            with contextlib.suppress(StoreError):
                await asyncio.to_thread(self._store.access.note_use, found.id)

        task = asyncio.get_running_loop().create_task(write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    def forget(self, token_id: str) -> None:
        """Ask the database about this token again at its next use, since it was revoked."""
        for key in [key for key, (_, record) in self._known.items() if record.id == token_id]:
            del self._known[key]

    def must_wait_s(self, address: str) -> float:
        """Return for how many seconds this address may not try to sign in; 0 if it may."""
        failures = self._failures.get(address)
        if failures is None:
            return 0.0
        now = time.monotonic()
        while failures and now - failures[0] > TRIES_S:
            failures.popleft()
        if not failures:
            del self._failures[address]
        return failures[0] + TRIES_S - now if len(failures) >= TRIES else 0.0

    def succeeded(self, address: str) -> None:
        """Forget the failed attempts of an address from which somebody has signed in."""
        self._failures.pop(address, None)

    def tried(self, address: str) -> None:
        """Count an attempt to sign in from this address, as failed until `succeeded` is called."""
        self._failures.setdefault(address, deque(maxlen=TRIES)).append(time.monotonic())
        while len(self._failures) > 10_000:
            self._failures.pop(next(iter(self._failures)))


class Authenticate:
    """Authenticate calls of the API, as ASGI middleware.

    It puts the caller's `Identity` into ``scope["state"]["identity"]``, refuses calls that the caller may not make, and writes
    each call that changes something into the audit trail.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator, store: Store) -> None:
        self._app = app
        self._authenticator = authenticator
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_of(scope) if scope["type"] == "http" else ""
        if not path.startswith(API):
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        status = 500
        identity: Identity | None = None

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            headers = Headers(scope=scope)
            identity, refusal = await self._judge(headers, path, method)
            if refusal is not None:
                await refusal(scope, receive, noting)
                return
            state = scope.setdefault("state", {})
            state["identity"], state["is_allowed"] = identity, True
            state["still_allowed"] = functools.partial(self._still_allowed, identity, _secret(headers))
            await self._app(scope, receive, noting)
        finally:
            # Attempts without a valid token are not written down: anybody could fill the disk with them.
            if method not in SAFE and identity is not None:
                await self._note(scope, identity, method, path, status)

    async def _still_allowed(self, identity: Identity | None, secret: str | None) -> bool:
        """Return whether the one who opened a stream may still read it. Ask the database every `KNOWN_S` seconds at most."""
        if identity is None or identity.token_id is None or not secret:
            return True
        try:
            return await self._authenticator.identity_of(secret) is not None
        except StoreError:
            return True  # a stream outlives a database that is away; it is asked again

    async def _judge(self, headers: Headers, path: str, method: str) -> tuple[Identity | None, Response | None]:
        """Return the caller, and the answer if the call is refused."""
        secret = _secret(headers)
        try:
            identity = await self._authenticator.identity_of(secret) if secret else None
        except StoreError as error:
            if not isinstance(error, Retryable):
                raise
            detail = f"the database does not answer just now: {error}"
            return None, problem_response(503, detail, headers={"Retry-After": "1"})
        if identity is None and not self._authenticator.required and not secret:
            identity = LOCAL
        if path == SESSION:
            return identity, None  # signing in and out, and asking who one is, is open to everybody
        if identity is None:
            wrong = "this token is not valid: it is wrong, expired or revoked" if secret else "a token is needed"
            detail = (
                f"{wrong}; `tuner token create` on the service's machine makes one, send it as Authorization: Bearer"
            )
            return None, problem_response(401, detail, headers={"WWW-Authenticate": 'Bearer realm="tuner"'})
        needed = Role.VIEWER if method in SAFE else Role.EDITOR
        if path.startswith(ADMIN_ONLY):
            needed = Role.ADMIN
        if identity.role < needed:
            detail = (
                f"{identity.name!r} is a token of the role {identity.role}; {method} {path} needs the role {needed}"
            )
            return identity, problem_response(403, detail)
        return identity, None

    async def _note(self, scope: Scope, identity: Identity, method: str, path: str, status: int) -> None:
        record = AuditRecord(
            time=time.time(),
            actor=identity.name,
            token_id=identity.token_id,
            method=method[:16],
            path=path[:1000].replace("\0", "\ufffd"),
            status=status,
            address=address_of(scope),
        )
        try:
            await asyncio.to_thread(self._store.access.note, record)
        except StoreError as error:
            log.warning("not in the audit trail, as the database does not answer: %s (%s)", record, error)


def address_of(scope: Scope) -> str:
    """Return the address that a request comes from."""
    return scope["client"][0] if scope.get("client") else "unknown"


def path_of(scope: Scope) -> str:
    """Return the path that routes are looked up by: without the prefix under which the app is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def check_allowed(request: Request) -> None:
    """Refuse a call of the API that did not pass `Authenticate`. Every route of the API depends on it, so none is left open."""
    if not request.scope.get("state", {}).get("is_allowed"):
        raise HTTPException(401, "the token of this call was not checked", {"WWW-Authenticate": 'Bearer realm="tuner"'})


def _secret(headers: Headers) -> str | None:
    """Return the token that a request brings, in its header or its cookie. Credentials for a proxy are not for us."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return secret.strip() or "none"
    cookies = [cookie_parser(header) for header in headers.getlist("cookie")]
    return next((found[COOKIE] for found in cookies if COOKIE in found), None)
