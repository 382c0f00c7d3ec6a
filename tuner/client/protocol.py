"""The parts of both clients that do no I/O: addresses, when to retry requests, and reading answers and errors."""

from __future__ import annotations

import codecs
import contextlib
import ipaddress
import json
import math
import os
import random
import shutil
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from tuner import __version__
from tuner.domain.logs import LATE_S
from tuner.errors import Conflict, NotAllowed, NotFound, ServiceError, ServiceUnreachable, SpecError
from tuner.settings import Settings
from tuner.space import Space
from tuner.space.words import escape, show

M = TypeVar("M", bound=BaseModel)

API = "/api/v1"
IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE"})
BROKEN = frozenset({502, 503, 504})
"""Status codes that a proxy returns if it cannot reach the service. The request may have been carried out nevertheless."""
PAGE = 1000
LONG_S = 600.0
"""Seconds to wait for the answer to a request for which the service imports a training function, or stores or deletes files."""
CONNECT_S = 10.0
"""Seconds that a connection may take to open."""
LONGEST_S = 1e6
"""The longest timeout in seconds: sockets take no infinity."""
_PROXIES = ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
FIRST_CONTACT_S = 2.0
"""The time limit in seconds for connecting to a service that has never answered. It is short: the address is probably wrong."""


def address_of(address: str | None) -> str:
    """Return the URL of the service, by default the value of TUNER_ADDRESS. The default scheme is http."""
    found = address or Settings.from_env().address
    if not found:
        raise SpecError(
            "expected the URL of a service, such as http://localhost:8000; or set TUNER_ADDRESS", "/address"
        )
    url = found if "://" in found else f"http://{found}"
    try:
        parts = httpx.URL(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.host) and 0 <= (parts.port or 0) <= 65535
    except (httpx.InvalidURL, ValueError):
        is_url = False
    if not is_url:
        where = "" if address else " in TUNER_ADDRESS"
        raise SpecError(f"expected a URL such as http://localhost:8000{where}, got {found!r}", "/address")
    return url.rstrip("/").removesuffix(API)


def tls_of(address: str) -> ssl.SSLContext:
    """Return the certificates that a client of this service trusts: none for http, since reading them takes up to 0.2 s."""
    if httpx.URL(address).scheme != "https":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return httpx.create_ssl_context()
    except OSError as error:  # it does not name the file
        if not (file := os.environ.get("SSL_CERT_FILE")):
            raise
        raise SpecError(f"SSL_CERT_FILE: the certificates in {file!r} cannot be read: {error.strerror}") from error


def is_here(address: str) -> bool:
    """Return True if the URL names this machine itself. A proxy, as HTTP_PROXY names it, cannot reach its services."""
    host = httpx.URL(address).host
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def proxies_named() -> Iterator[None]:
    """Raise SpecError if httpx, whose client the block makes, cannot use a proxy that the environment names."""
    try:
        yield
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # ImportError: SOCKS needs another package
        names = [name for name in _PROXIES if os.environ.get(name) or os.environ.get(name.lower())]
        raise SpecError(f"{', '.join(names)}: this proxy cannot be used: {error}") from error


def headers_of(token: str | None) -> dict[str, str]:
    """Return the headers of every request. The default of `token` is the value of TUNER_TOKEN.

    White space around the token is ignored, such as the newline at the end of a file that has the token.

    Raises:
        SpecError: the token has characters that a header cannot have. The message does not show the token.
    """
    found = (token or Settings.from_env().token or "").strip()
    if not (found.isascii() and found.isprintable()):
        where = "" if token else " in TUNER_TOKEN"
        raise SpecError(
            f"the token{where} has characters other than printable ASCII; expected the token that `tuner token create` printed",
            "/token",
        )
    authorization = {"Authorization": f"Bearer {found}"} if found else {}
    return {"User-Agent": f"tuner/{__version__}", **authorization}


def space_patch(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merge patch of a search space, with domains such as `tuner.uniform(0, 1)` converted to JSON."""
    found: dict[str, Any] = {}
    for name, value in space.items():
        if isinstance(value, Mapping):
            found[name] = dict(value) if isinstance(value.get("type"), str) else space_patch(value)
        else:
            found[name] = None if value is None else Space.from_python({"it": value}).to_json()["it"]
    return found


def timeout_of(timeout_s: float) -> httpx.Timeout:
    """Return the timeout of a request whose answer may take this many seconds. Raise SpecError if it is not above 0."""
    check_seconds("timeout_s", timeout_s)
    if timeout_s == 0:
        raise SpecError("expected a number of seconds above 0, got 0", "/timeout_s")
    return httpx.Timeout(min(timeout_s, LONGEST_S), connect=CONNECT_S)


def check_seconds(name: str, seconds: Any) -> None:
    """Raise SpecError unless the argument with this name is a number that is at least 0; infinity is one."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise SpecError(f"expected a number of seconds, got {show(seconds)}", f"/{name}")


def plain(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the query parameters, without parameters that are None and with booleans as in JSON."""
    given = {name: value for name, value in (params or {}).items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}


def check_configurations(configurations: Any) -> None:
    """Raise SpecError if these are not several configurations, but a single one, as Optuna's `enqueue_trial` takes it."""
    if isinstance(configurations, Mapping):
        raise SpecError(
            f"expected a list of configurations, got one: pass [{dict(configurations)!r}]", "/configurations"
        )


def check_body(body: Any, pointer: str = "") -> None:
    """Raise SpecError if the body of a request has a value that JSON does not have, such as an infinity or a date."""
    try:
        _check_value(body, pointer)
    except RecursionError as error:
        raise SpecError(
            "expected a JSON value, got one that contains itself or is nested too deeply", pointer
        ) from error


def _check_value(body: Any, pointer: str) -> None:
    match body:
        case None | bool() | int() | str():
            return
        case float():
            if not math.isfinite(body):
                raise SpecError(f"expected a finite number, got {body}", pointer)
        case Mapping():
            for key, value in body.items():
                _check_value(value, f"{pointer}/{escape(str(key))}")
        case list() | tuple():
            for at, value in enumerate(body):
                _check_value(value, f"{pointer}/{at}")
        case _:
            raise SpecError(f"expected a JSON value, got {show(body)}", pointer)


def check_headers(headers: Mapping[str, str] | None) -> None:
    """Raise SpecError if a request cannot have one of these headers, such as an Idempotency-Key with a line break."""
    for name, value in (headers or {}).items():
        if not (isinstance(value, str) and value.isascii() and value.isprintable() and value == value.strip()):
            expected = "expected printable ASCII characters, without spaces at the beginning or the end"
            raise SpecError(f"{expected}, got {show(value)}", f"/{name.lower()}")


@dataclass(slots=True)
class Attempts:
    """Decides whether and when to retry a request.

    Attributes:
        safe: True if the request may be retried even if it may have been carried out already.
        patience_s: seconds after the first attempt beyond which the request is not retried.
        reached: True if the service has answered this client before.
        begun: when the first attempt was made, in seconds of the monotonic clock.
        made: the number of attempts so far.
    """

    safe: bool
    patience_s: float
    reached: bool = True
    begun: float = field(default_factory=time.monotonic)
    made: int = 0

    def wait_s(self, answer: httpx.Response | None, error: httpx.TransportError | None) -> float | None:
        """Return the seconds to wait before retrying the request, or None if it must not be retried.

        Either `answer` or `error` is the outcome of the latest attempt.
        """
        self.made += 1
        if error is not None:
            repeat = self.safe or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        else:
            assert answer is not None
            repeat = _was_refused(answer) or (self.safe and answer.status_code in BROKEN)
        if not repeat:
            return None
        backoff = min(0.1 * 2.0 ** min(self.made - 1, 10), 5.0) * random.uniform(0.5, 1.0)
        wait = max(backoff, _asked_s(answer))
        patience_s = self.patience_s
        if isinstance(error, httpx.ConnectError) and not self.reached:
            patience_s = min(patience_s, FIRST_CONTACT_S)
        return wait if time.monotonic() + wait - self.begun <= patience_s else None


def _was_refused(answer: httpx.Response) -> bool:
    """Return True if the service refused the request without doing anything, so that even an unsafe one may be retried."""
    return answer.status_code == 429 or (answer.status_code == 503 and "retry-after" in answer.headers)


def _asked_s(answer: httpx.Response | None) -> float:
    """Return the seconds in the Retry-After header of an answer, or 0 if it has none. A tuner service never sends a date."""
    text = "" if answer is None else answer.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0


def folder_of(path: str | os.PathLike[str]) -> Path:
    """Return the folder with this path. Raise SpecError if there is no such folder."""
    folder = Path(path)
    if not folder.is_dir():
        raise SpecError(f"there is no folder {folder}", "/bundle")
    return folder


@contextlib.contextmanager
def empty_folder(path: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Provide an empty folder for a download, and make it if it does not exist. Delete what was made if the block fails.

    path: the folder. None: a new temporary folder.

    Raises:
        SpecError: there is a file with this path, or the folder is not empty.
    """
    made = path is None
    folder = Path(tempfile.mkdtemp(prefix="tuner-checkpoint-") if path is None else path)
    if path is not None:
        try:
            made = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise SpecError(
                f"expected a folder to download to, got {str(folder)!r}, which is a file", "/path"
            ) from error
        if any(folder.iterdir()):
            raise SpecError(f"expected an empty folder to download to, got {str(folder)!r}, which has files", "/path")
    try:
        yield folder
    except BaseException:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise


class LogEnd:
    """Tells when no more of a rank's log can arrive: `LATE_S` seconds after the end of its segment."""

    def __init__(self) -> None:
        self._since: float | None = None  # about when the segment ended, by the monotonic clock

    def is_reached(self, ended_at: str | None) -> bool:
        """Return whether it is reached. ended_at: the end of the segment by the clock of the service, None while it runs."""
        now = time.monotonic()
        if ended_at is None:
            self._since = now
            return False
        if self._since is None:  # it was never seen running, so there is only the clock of the service
            self._since = now - max(0.0, time.time() - datetime.fromisoformat(ended_at).timestamp())
        return now - self._since > LATE_S


def unreachable(address: str, error: httpx.TransportError) -> ServiceUnreachable:
    """Return the exception to raise if the service does not answer."""
    url = httpx.URL(address)
    proxies = {} if is_here(address) or urllib.request.proxy_bypass(url.host) else urllib.request.getproxies()
    by = next((name for name in (url.scheme, "all") if proxies.get(name)), None)
    way = "" if by is None else f" through the proxy of {by.upper()}_PROXY (NO_PROXY={url.host} avoids it)"
    return ServiceUnreachable(f"no tuner service answers at {address}{way}: {str(error) or type(error).__name__}")


def check(answer: httpx.Response) -> None:
    """Raise the exception for an answer's status, with the text of its problem document.

    A redirect is an error, since a tuner service sends none. Do nothing for other statuses that are not errors.
    """
    if answer.status_code < 400:
        if answer.status_code >= 300 and "location" in answer.headers:
            raise ServiceError(
                f"{answer.url} redirects to {answer.headers['location']}, which is not followed: give the address to which it "
                "redirects, if that is the tuner service",
                answer.status_code,
            )
        return
    detail, errors = _problem(answer)
    match answer.status_code:
        case 404:
            raise NotFound(detail)
        case 409 | 412 | 428:
            raise Conflict(detail)
        case 413 | 422:
            raise SpecError(errors or detail)
        case 401 | 403:
            raise NotAllowed(detail, answer.status_code)
        case status:
            raise ServiceError(detail, status)


def body_of(answer: httpx.Response) -> Any:
    """Return the JSON of an answer, or None if it has no body. Raise ServiceError if the body is not JSON."""
    try:
        return answer.json() if answer.content else None
    except ValueError as error:
        raise ServiceError(_foreign(answer), answer.status_code) from error


def _foreign(answer: httpx.Response) -> str:
    return f"{answer.status_code} {answer.reason_phrase} from {answer.url}, which may not be a tuner service"


def _problem(answer: httpx.Response) -> tuple[str, list[tuple[str, str]]]:
    """Return the detail and the (pointer, message) pairs of the problem document in an answer."""
    try:
        found = answer.json()
        errors = [(str(one["pointer"]), str(one["message"])) for one in found.get("errors", ())]
        return str(found["detail"]), errors
    except (ValueError, KeyError, TypeError, AttributeError):
        return _foreign(answer), []


def read(model: type[M], data: Any) -> M:
    """Return an answer's JSON as this model. Raise ServiceError if it does not fit."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ServiceError(
            f"this tuner ({__version__}) cannot read the service's answer, probably because their versions differ: "
            f"{where}: {first['msg']}"
        ) from error


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    id: str
    name: str
    data: Any


class EventReader:
    """Parses server-sent events from the bytes of a stream."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, part: bytes) -> list[Event]:
        """Take the next bytes of the stream, and return the events that they complete."""
        *blocks, self._rest = (self._rest + self._decoder.decode(part)).split("\n\n")
        return [event for block in blocks if (event := _event(block)) is not None]


def _event(block: str) -> Event | None:
    fields: dict[str, list[str]] = {}
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        if name:  # a line without a name is a comment
            fields.setdefault(name, []).append(value.removeprefix(" "))
    if "data" not in fields:
        return None
    return Event(fields.get("id", [""])[-1], fields.get("event", [""])[-1], json.loads("\n".join(fields["data"])))
