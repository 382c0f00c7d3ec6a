"""Find out who sends a request, and what they may do.

A request names its sender by `Authorization: Bearer TOKEN`, or by a cookie that the web UI gets when somebody signs in. The
cookie contains the secret of a session and not the token. It is HttpOnly and SameSite=Strict, so that no script can read it
and no other site can use it. Its name contains the port, since browsers send a cookie to every port of a host.

There are four roles: an agent may only run trials, a viewer may read, an editor may change experiments, and an admin may
manage tokens and read the audit trail. If the service requires no token (`TUNER_AUTH=auto` on loopback without a proxy, or
`TUNER_AUTH=off`), everybody who can reach the service is an admin with the name "local".
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import ipaddress
import logging
import re
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.api.headers import header
from tuner.api.paths import path_of
from tuner.api.problems import problem_response
from tuner.errors import Retryable, StoreError
from tuner.settings import Settings
from tuner.store import Store, watched_commits
from tuner.store.service.access import USED_EVERY_S, AuditRecord, Role, TokenRecord
from tuner.telemetry.log_format import without_secrets

log = logging.getLogger(__name__)

COOKIE = "tuner_session"
"""The name of the session's cookie, without the port that is appended to it."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
API = "/api/"
METRICS = "/metrics"
SESSION = "/api/v1/session"
ADMIN_ONLY = ("/api/v1/tokens", "/api/v1/audit")
FOR_AGENTS = re.compile(r"/api/v1/experiments/[^/]+/assignments(/.*)?")
"""The paths of the routes for programs that run trials. A token with the role agent may call only these routes."""
ONLY_READS = re.compile(r"/api/v1/experiments/[^/]+/replay")
"""The paths whose POST requests change nothing and call no code of users, and so are for viewers like those of `SAFE`."""
NOT_FOR_VIEWERS = re.compile(r"/api/v1/(webhooks|experiments/[^/]+/spec)")
"""The beginnings of the paths that viewers may not read, because the URL of a Slack webhook and the variables in a `runtime_env`
may be secret."""

KNOWN_S = 5.0
"""Seconds for which a token that was found in the database is cached. A revoked token still works for up to this long."""

TRIES, TRIES_S = 10, 60.0
"""The number of failed sign-in attempts that an address may make within a period, and the length of the period in seconds."""

MAX_COOKIE_AGE_S = 30 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Identity:
    """The sender of a request."""

    name: str
    role: Role
    token_id: str | None = None
    expires_at: float | None = None
    project: str | None = None  # the only project that the sender may see; None: all projects


LOCAL = Identity("local", Role.ADMIN)


def secured(settings: Settings) -> Settings:
    """Return the settings, with `auth` changed from "auto" to "on" if other machines may reach the service.

    Other machines may reach the service if its address is not loopback, if people sign in with an OpenID Connect provider,
    or if there is a proxy on this machine. Requests that such a proxy forwards seem to come from loopback.

    Raises:
        OSError: the name of the host cannot be resolved.
    """
    if settings.auth == "auto" and (settings.trusted_proxies or settings.oidc_issuer or not is_here(settings.host)):
        return dataclasses.replace(settings, auth="on")
    return settings


def is_here(host: str) -> bool:
    """Return whether only this machine can reach this host name or address. Raise OSError if the name cannot be resolved."""
    return all(_is_loopback(str(info[4][0])) for info in socket.getaddrinfo(host, None))


@functools.lru_cache(maxsize=256)
def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class Credential(NamedTuple):
    """The token, or the secret of a session, that a request carries."""

    secret: str
    is_session: bool = False


@dataclass(slots=True)
class Entry:
    """The entry of a request in the audit trail, for a route that writes it in the transaction of its change.

    record: returns the entry for an HTTP status and the public id of what was created.
    """

    record: Callable[[int, str | None], AuditRecord]
    is_written: bool = False


class Authenticator:
    """Finds out whom a token or session belongs to. Use it in the event loop; it queries the database in threads."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.required = settings.auth == "on"
        self._only_here = settings.auth == "auto"
        self._store = store
        self._known: OrderedDict[bytes, tuple[float, Identity]] = OrderedDict()
        self._failures: dict[str, deque[float]] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self._unwritten: list[tuple[AuditRecord, asyncio.Future[None]]] = []
        self._notes: asyncio.Task[None] | None = None
        self._newest: asyncio.Future[None] | None = None  # done once the newest entry is written

    def asks(self, scope: Scope) -> bool:
        """Return whether the sender of a request needs a token.

        If `auth` is "auto" and the app runs in an ASGI server other than ours, the app does not know the address on which it
        listens. So it requires a token from everybody who is not on this machine.
        """
        return self.required or (self._only_here and not _is_loopback(address_of(scope)))

    async def identity_of(self, credential: Credential) -> Identity | None:
        """Return whom a token or session belongs to, or None if it is wrong, expired or revoked."""
        key, now = _key(credential), time.monotonic()
        known = self._known.get(key)
        if known is None or now - known[0] > KNOWN_S:
            find = self._of_session if credential.is_session else self._of_token
            found = await find(credential.secret)
            self._known.pop(key, None)
            if found is None:
                return None
            known = self._known[key] = (now, found)
            if len(self._known) > 1000:
                self._known.popitem(last=False)
        identity = known[1]
        return identity if identity.expires_at is None or time.time() < identity.expires_at else None

    async def _of_token(self, secret: str) -> Identity | None:
        found = await asyncio.to_thread(self._store.access.token_of, secret)
        if found is None:
            return None
        self._note_use(found)
        return Identity(found.name, found.role, found.id, found.expires_at, found.project)

    async def _of_session(self, secret: str) -> Identity | None:
        found = await asyncio.to_thread(self._store.access.session_of, secret)
        return None if found is None else Identity(found.name, found.role, found.token, found.expires_at, found.project)

    async def open_session(self, identity: Identity) -> tuple[str, float]:
        """Open a session for this identity. Return the secret for the cookie, and the lifetime of the session in seconds."""
        left = MAX_COOKIE_AGE_S if identity.expires_at is None else identity.expires_at - time.time()
        left = min(left, MAX_COOKIE_AGE_S)
        open_session = functools.partial(
            self._store.access.open_session,
            token=identity.token_id,
            name=identity.name,
            role=identity.role,
            project=identity.project,
            expires_at=time.time() + left,
        )
        return await asyncio.to_thread(open_session), left

    async def close_session(self, credential: Credential) -> None:
        """End a session."""
        await asyncio.to_thread(self._store.access.close_session, credential.secret)
        self._known.pop(_key(credential), None)  # not before, since a request meanwhile would put it back

    def _note_use(self, found: TokenRecord) -> None:
        """Record in the background that this token has just been used.

        The request that uses the token does not wait for this write, and succeeds even if the write fails.
        """
        # A use in the future is one from before the clock was put back.
        if found.used_at is not None and 0 <= time.time() - found.used_at < USED_EVERY_S:
            return

        async def write() -> None:
            with watched_commits(), contextlib.suppress(StoreError):  # the request itself has not written anything
                await asyncio.to_thread(self._store.access.note_use, found.id)

        task = asyncio.get_running_loop().create_task(write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    def note(self, record: AuditRecord) -> asyncio.Future[None]:
        """Write an entry to the audit trail. If the database does not answer, write it to the log instead.

        Entries that arrive during a write are written together in the next one. If a write fails for another reason,
        the error is raised for each of its entries.

        Return a future that is done once the entry is written.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unwritten.append((record, written))
        self._newest = written
        if self._notes is None:
            self._notes = asyncio.create_task(self._write_notes())
        return written

    async def noted(self) -> None:
        """Wait until all entries so far are written, so that a client that has a response finds its request in the trail."""
        if self._newest is not None:
            await asyncio.wait({self._newest})

    async def _write_notes(self) -> None:
        """Write all waiting entries, and answer each request that waits for one, even if a write fails."""
        notes: list[tuple[AuditRecord, asyncio.Future[None]]] = []
        try:
            while self._unwritten:
                notes, self._unwritten = self._unwritten, []
                failure: Exception | None = None
                try:
                    await asyncio.to_thread(self._store.access.note, *(record for record, _ in notes))
                except StoreError as error:
                    for record, _ in notes:
                        log.warning(
                            "the database does not answer, so this is missing from the audit trail: %s (%s)",
                            record,
                            error,
                        )
                except Exception as error:
                    failure = error
                for _, written in notes:
                    if written.done():
                        continue
                    if failure is None:
                        written.set_result(None)
                    else:
                        written.set_exception(failure)
        finally:
            # If requests are still waiting here, this task was cancelled.
            for _, written in (*notes, *self._unwritten):
                written.cancel()
            self._unwritten = []
            self._notes = None

    def forget(self, token_id: str) -> None:
        """Drop a revoked token from the cache, so that its next use is refused."""
        for key in [key for key, (_, identity) in self._known.items() if identity.token_id == token_id]:
            del self._known[key]

    def must_wait_s(self, address: str) -> float:
        """Return the seconds until somebody at this address may try to sign in again; 0 if that is allowed now."""
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
        """Forget the failed sign-in attempts from an address, after an attempt has succeeded."""
        self._failures.pop(address, None)

    def tried(self, address: str) -> None:
        """Count a sign-in attempt from this address as failed. `succeeded` undoes that."""
        self._failures.setdefault(address, deque(maxlen=TRIES)).append(time.monotonic())
        while len(self._failures) > 10_000:
            self._failures.pop(next(iter(self._failures)))


class Authenticate:
    """ASGI middleware that authenticates API requests.

    It puts the sender's `Identity` into ``scope["state"]["identity"]``, refuses requests that the sender may not make, and
    writes each request that would change something to the audit trail.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator, *, open_metrics: bool = False) -> None:
        self._app = app
        self._open_metrics = open_metrics
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_of(scope) if scope["type"] == "http" else ""
        if path == METRICS and self._open_metrics:
            scope.setdefault("state", {})["is_allowed"] = True
        if not path.startswith(API) and (path != METRICS or self._open_metrics):
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        identity: Identity | None = None
        noted: asyncio.Future[None] | None = None
        entry = Entry(lambda status, created: _record(scope, identity or LOCAL, method, path, status, created))

        def note(status: int, created: str | None = None) -> None:
            """Start writing the request to the audit trail, if it belongs there and has not been written yet."""
            nonlocal noted, identity
            identity = scope.get("state", {}).get("identity", identity)  # signing in changes it
            # Requests without a valid token are not recorded, because anybody could fill the disk with them. Requests from
            # agents are not recorded either, because the experiment's log already has them, with the agent's name.
            quiet = status < 400 and FOR_AGENTS.fullmatch(path)
            if (
                noted is None
                and not _reads(method, path)
                and identity is not None
                and not quiet
                and not entry.is_written
            ):
                noted = self._authenticator.note(entry.record(status, created))

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Do this before the client gets the response, because the client may then ask for the trail.
                note(message["status"], _created(message))
            await send(message)

        try:
            credential = credential_of(scope)
            identity, refusal = await self._judge(credential, path, method, self._authenticator.asks(scope))
            if refusal is not None:
                await refusal(scope, receive, noting)
                return
            state = scope.setdefault("state", {})
            state["identity"], state["is_allowed"], state["entry"] = identity, True, entry
            state["still_allowed"] = functools.partial(self._still_allowed, identity, credential)
            await self._app(scope, receive, noting)
        except BaseException as error:
            note(503 if isinstance(error, asyncio.CancelledError) else 500)  # has no effect if the response has begun
            raise
        finally:
            if noted is not None:
                await noted

    async def _still_allowed(self, identity: Identity | None, credential: Credential | None) -> bool:
        """Return whether the client of an open event stream may still read it.

        The database is queried at most every `KNOWN_S` seconds.
        """
        if identity is None or identity is LOCAL or credential is None:
            return True
        try:
            return await self._authenticator.identity_of(credential) is not None
        except StoreError:
            return True  # an outage of the database does not end streams; the check is repeated later

    async def _judge(
        self, credential: Credential | None, path: str, method: str, asks: bool
    ) -> tuple[Identity | None, Response | None]:
        """Return who sends the request (None if unknown), and the error response if it is refused (None if allowed)."""
        try:
            identity = await self._authenticator.identity_of(credential) if credential else None
        except StoreError as error:
            if not isinstance(error, Retryable):
                raise
            detail = f"the database does not answer at the moment: {error}"
            return None, problem_response(503, detail, headers={"Retry-After": "1"})
        if identity is None and not asks and (credential is None or credential.is_session):
            # A browser keeps sending the cookie of an earlier service with the same address, and its user cannot sign out.
            identity = LOCAL
        if path == SESSION:
            return identity, None  # everybody may sign in, sign out, and read whether they are signed in
        if identity is None:
            detail = _why_refused(credential, asks)
            return None, problem_response(401, detail, headers={"WWW-Authenticate": 'Bearer realm="tuner"'})
        needed = Role.VIEWER if _reads(method, path) and not NOT_FOR_VIEWERS.match(path) else Role.EDITOR
        if path.startswith(ADMIN_ONLY):
            needed = Role.ADMIN
        if identity.role is Role.AGENT and FOR_AGENTS.fullmatch(path):
            return identity, None
        if identity.role < needed:
            enough = f"{Role.AGENT} or {needed}" if FOR_AGENTS.fullmatch(path) else needed
            detail = f"{identity.name!r} has the role {identity.role}; {method} {path} needs the role {enough}"
            return identity, problem_response(403, detail)
        return identity, None


def _reads(method: str, path: str) -> bool:
    return method in SAFE or (method == "POST" and ONLY_READS.fullmatch(path) is not None)


def _record(scope: Scope, identity: Identity, method: str, path: str, status: int, created: str | None) -> AuditRecord:
    return AuditRecord(
        time=time.time(),
        actor=identity.name,
        token_id=identity.token_id,
        method=method[:16],
        path=without_secrets(path)[:1000].replace("\0", "\ufffd"),  # somebody may pass a token in place of its id
        status=status,
        address=address_of(scope),
        project=identity.project,
        created=created,
    )


def _created(start: Message) -> str | None:
    """Return the public id of what a request has created, or None. The address of the new object ends with it."""
    location = header(start, b"location") if start["status"] == 201 else None
    return location.rpartition("/")[2] if location else None


def address_of(scope: Scope) -> str:
    """Return the IP address that a request comes from, or "unknown"."""
    return scope["client"][0] if scope.get("client") else "unknown"


class PlainAddress:
    """ASGI middleware that writes the address of a client without IPv6 in the form of IPv4.

    A socket that listens on "::" names such a client ``::ffff:10.0.0.7``. All of these addresses are in one /64 network, and are
    neither loopback nor in a network of IPv4.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if client := scope.get("client"):
            scope["client"] = (plain_address(client[0]), *client[1:])
        await self._app(scope, receive, send)


_EMBEDDED = ipaddress.IPv6Network("::ffff:0:0/96")
"""The addresses of IPv6 that embed those of IPv4."""


def plain_address(address: str) -> str:
    """Return an IPv4 address that is embedded in IPv6, such as ``::ffff:10.0.0.7``, in its own form. Return others unchanged."""
    if ":" in address:
        with contextlib.suppress(ValueError):
            found = ipaddress.IPv6Address(address).ipv4_mapped
            return address if found is None else str(found)
    return address


def plain_networks(text: str) -> list[str]:
    """Return an address or a network, and the network of the IPv4 addresses that it embeds, if it embeds any."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return [text]
    if not isinstance(network, ipaddress.IPv6Network) or not network.overlaps(_EMBEDDED):
        return [text]
    first = int(network.network_address) & 0xFFFFFFFF
    return [text, str(ipaddress.IPv4Network((first, max(0, network.prefixlen - _EMBEDDED.prefixlen))))]


def source_of(scope: Scope) -> str:
    """Return the key under which failed attempts to sign in are counted: the IPv4 address, or the /64 network for IPv6."""
    address = address_of(scope)
    try:
        if ipaddress.ip_address(address).version == 6:
            return str(ipaddress.ip_network(f"{address}/64", strict=False))
    except ValueError:
        pass
    return address


async def check_allowed(request: Request) -> None:
    """Refuse an API request that did not pass `Authenticate`.

    Every route of the API depends on this check, so that no route is left open by mistake. This is a coroutine, because FastAPI
    would run a plain function in a thread.
    """
    if not request.scope.get("state", {}).get("is_allowed"):
        raise HTTPException(401, "the token of this call was not checked", {"WWW-Authenticate": 'Bearer realm="tuner"'})


def cookie_name(scope: Scope) -> str:
    """Return the name of the session's cookie, which ends with the port to which the browser sends its requests."""
    host = header(scope, b"host") or ""
    port = host.rpartition(":")[2]
    default = "443" if scope.get("scheme") == "https" else "80"
    return f"{COOKIE}_{port if port.isdecimal() and ':' in host else default}"


def credential_of(scope: Scope) -> Credential | None:
    """Return the token in the Authorization header of a request, or the session in its cookie, or None if it has neither.

    Other schemes of Authorization, such as Basic, are ignored, since they may be meant for a proxy.
    """
    scheme, _, secret = (header(scope, b"authorization") or "").partition(" ")
    if scheme.lower() == "bearer":
        return Credential(secret.strip() or "none")
    sent = [value.decode("latin-1") for key, value in scope["headers"] if key == b"cookie"]
    if not sent:
        return None
    name, cookies = cookie_name(scope), [cookie_parser(value) for value in sent]
    secret = next((found[name] for found in cookies if name in found), "")
    return Credential(secret, is_session=True) if secret else None


def _key(credential: Credential) -> bytes:
    """Return the hash under which a credential is cached, so that no secret stays in memory."""
    kind = b"session " if credential.is_session else b"token "
    return hashlib.sha256(kind + credential.secret.encode("utf-8", "surrogatepass")).digest()


def _why_refused(credential: Credential | None, required: bool) -> str:
    """Return the message for a request whose token or session is missing or not valid."""
    if credential and not required:
        return "this token is not valid; this service requires no token, so send none"
    wrong = "this token is not valid: it is wrong, expired or revoked" if credential else "a token is needed"
    return (
        f"{wrong}; create one with `tuner token create` on the service's machine, and send it in the header Authorization: "
        "Bearer TOKEN, or set TUNER_TOKEN for the command line and the Python client"
    )
