"""Send requests to URLs that users have set. Such requests must not reach the service's internal network.

TUNER_WEBHOOK_PRIVATE allows private addresses, but never those at which clouds hand out credentials to their machines.

A host name is resolved once, its addresses are checked, and the connection is made to a checked address. So the check cannot
be evaded by changing the address of the name afterwards. Redirects are not followed, and proxies that environment
variables name are ignored.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpcore

from tuner.errors import SpecError

TIMEOUT_S = 10.0
"""Timeout in seconds of one request, from resolving the name to the HTTP status of the response."""

NAT64 = ipaddress.ip_network("64:ff9b::/96")

METADATA = frozenset(
    ipaddress.ip_address(one)
    for one in (
        "fd00:ec2::254",  # AWS, over IPv6
        "fd20:ce::254",  # Google Cloud, over IPv6
        "100.100.100.200",  # Alibaba Cloud
        "192.0.0.192",  # Oracle Cloud
        "168.63.129.16",  # Azure
    )
)
"""Addresses at which clouds serve a machine's credentials, besides link-local addresses such as 169.254.169.254."""


class Unreachable(Exception):
    """The request could not be sent, or got no response in time."""


def check_url(url: str, *, private: bool) -> None:
    """Raise SpecError unless a request may be sent to this URL.

    Only IP addresses are checked here. Host names are resolved and checked when a request is sent.

    private: allow private and loopback addresses.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise SpecError(f"not a URL: {error}", "/url") from error
    if not url.isascii() or not url.isprintable() or " " in url:
        raise SpecError("a URL must consist of printable ASCII characters, without spaces", "/url")
    if parts.scheme not in ("http", "https") or not host:
        raise SpecError("expected a URL such as https://example.com/hook", "/url")
    if parts.username is not None or parts.password is not None:
        raise SpecError(
            "a URL with a user or a password is not allowed; let the receiver check the signature instead", "/url"
        )
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        _check_name(host)
        return
    if (why := refusal(str(address), private=private)) is not None:
        raise SpecError(why, "/url")


def _check_name(host: str) -> None:
    """Raise SpecError if no host can have this name."""
    try:
        host.encode("idna")
    except UnicodeError as error:
        detail = f"no host can have the name {host!r}: a part between two dots is empty or longer than 63 characters"
        raise SpecError(detail, "/url") from error


def refusal(address: str, *, private: bool) -> str | None:
    """Return why no request may be sent to this IP address, or None if it may be sent."""
    if is_of_machine(address):
        return f"{address} is a link-local address or belongs to a cloud's metadata service, which no webhook may reach"
    if not private and not is_public(address):
        return f"{address} is not a public address; to allow it, set TUNER_WEBHOOK_PRIVATE=1 for the service"
    return None


def is_public(address: str) -> bool:
    """Return whether this is a public IP address. For an IPv6 address, embedded IPv4 addresses must be public as well."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if not all(is_public(str(one)) for one in _embedded(found)):
        return False
    if isinstance(found, ipaddress.IPv6Address) and (found.ipv4_mapped is not None or found in NAT64):
        return True
    return found.is_global and not found.is_multicast and not found.is_reserved


def is_of_machine(address: str) -> bool:
    """Return whether this address, or an IPv4 address embedded in it, is link-local or belongs to a cloud's metadata service."""
    found = ipaddress.ip_address(address.partition("%")[0])
    return found.is_link_local or found in METADATA or any(is_of_machine(str(one)) for one in _embedded(found))


def _embedded(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    if isinstance(address, ipaddress.IPv4Address):
        return []
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in NAT64:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [one for one in inner if one is not None]


class Outgoing:
    """Sends requests to URLs that users have set. Use it in one event loop only.

    private: allow private and loopback addresses.
    """

    def __init__(self, *, private: bool = False) -> None:
        self._network = _Network(private)
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=None,  # the default is 10: further requests would wait, and time out before they are sent
            max_keepalive_connections=0,  # so that the host name is resolved and checked for each request
            network_backend=self._network,
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Send a POST request, and return the HTTP status of the response without reading its body.

        Raises:
            Unreachable: an address of the host is not allowed, or there was no response in time.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                async with self._pool.stream("POST", url, headers=[*headers.items()], content=body) as answer:
                    return answer.status
        except TimeoutError:
            raise Unreachable(f"no answer within {TIMEOUT_S:g} s") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}".rstrip(": ")) from error

    async def close(self) -> None:
        """Close all connections."""
        self._network.close()
        await self._pool.aclose()


class _Network(httpcore.AsyncNetworkBackend):
    """Opens connections, but only to addresses that are allowed."""

    def __init__(self, private: bool) -> None:
        self._private = private
        self._inner = httpcore.AnyIOBackend()
        # Host names are resolved in threads of their own, so that a slow name server does not block the routes.
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="names")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        error: Exception = Unreachable(f"{host} has no address")
        for address in await self._addresses(host, port):
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.NetworkError as failure:
                error = failure
        raise error

    async def _addresses(self, host: str, port: int) -> list[str]:
        """Return the IP addresses of a host. Raise Unreachable if a request may not be sent to one of them."""
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            )
        except UnicodeError as error:
            raise Unreachable(f"no host can have the name {host!r}: {error}") from error
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        for address in addresses:
            if (why := refusal(address, private=self._private)) is not None:
                raise Unreachable(why)
        return addresses

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
