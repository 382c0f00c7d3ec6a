"""/auth: sign in with an OpenID Connect provider. These routes are for browsers, so the OpenAPI document omits them."""

from __future__ import annotations

import hashlib
import html
import logging
import time
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from tuner.api.access.auth import cookie_name, source_of
from tuner.api.access.oidc import PENDING_S, Pending, Provider, ProviderSilent, SignInRefused
from tuner.api.context import Here
from tuner.api.routes.access import set_session
from tuner.errors import StoreError
from tuner.store.service.access import AuditRecord

log = logging.getLogger(__name__)

LOGIN, CALLBACK = "/auth/login", "/auth/callback"


def router(provider: Provider) -> APIRouter:
    """Return the routes by which people sign in with this provider."""
    routes = APIRouter(include_in_schema=False)

    @routes.get(LOGIN)
    async def login(request: Request, next: str = "/") -> Response:
        try:
            url, pending = await provider.begin(_callback(request), _own_path(next))
        except ProviderSilent as error:
            return _page(503, str(error), next)
        response = RedirectResponse(url, 303, {"Cache-Control": "no-store"})
        response.set_cookie(
            _cookie(request, pending.state),
            pending.packed(),
            max_age=PENDING_S,
            path=_root(request) + CALLBACK,
            httponly=True,
            samesite="lax",  # not "strict", because the browser comes back from the provider, which is another site
            secure=request.url.scheme == "https",
        )
        return response

    @routes.get(CALLBACK)
    async def callback(
        here: Here, request: Request, state: str = "", code: str = "", error: str = "", error_description: str = ""
    ) -> Response:
        address = source_of(request.scope)
        if (wait_s := here.authenticator.must_wait_s(address)) > 0:
            wait = int(wait_s) + 1
            why = f"too many sign-ins have failed; wait {wait} s"
            return _page(429, why, headers={"Retry-After": str(wait)})
        pending = Pending.unpacked(request.cookies.get(_cookie(request, state), ""))
        path = (
            _own_path(pending.path) if pending is not None else "/"
        )  # another service of this domain may have set the cookie
        here.authenticator.tried(address)
        try:
            if pending is None or not state or state != pending.state:
                raise SignInRefused("this sign-in was not started in this browser, or it took too long")
            if error or not code:
                raise SignInRefused(
                    f"the provider refused the sign-in: {error_description or error or 'no code'}"[:300]
                )
            identity = await provider.finish(_callback(request), code, pending)
            here.authenticator.succeeded(address)
            secret, lasts_s = await here.authenticator.open_session(identity)
        except SignInRefused as refused:
            return _forget(_page(403, str(refused), path), request, state)
        except (ProviderSilent, StoreError) as silent:
            return _forget(_page(503, str(silent), path), request, state)
        response = RedirectResponse(_root(request) + path, 303, {"Cache-Control": "no-store"})
        set_session(response, request, secret, lasts_s)
        await here.authenticator.note(
            AuditRecord(
                time=time.time(),
                actor=identity.name,
                token_id=None,
                method="GET",
                path=CALLBACK,
                status=303,
                address=request.client.host if request.client else "unknown",
                project=identity.project,
            )
        )
        return _forget(response, request, state)

    return routes


def _root(request: Request) -> str:
    return str(request.scope.get("root_path") or "")


def _callback(request: Request) -> str:
    """Return the redirect URI, to which the provider sends the browser back. It must be registered with the provider."""
    return f"{request.url.scheme}://{request.headers.get('host', '')}{_root(request)}{CALLBACK}"


def _own_path(path: str) -> str:
    """Return the path if it is a path on this service, and not the URL of another site; otherwise return ``/``."""
    safe = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if safe and "\\" not in path else "/"


def _cookie(request: Request, state: str) -> str:
    """Return the name of the cookie of one sign-in. Each has its own, since people sign in in several tabs at once."""
    name = cookie_name(request.scope).replace("session", "oidc")
    return f"{name}_{hashlib.sha256(state.encode()).hexdigest()[:16]}"


def _forget(response: Response, request: Request, state: str) -> Response:
    response.delete_cookie(_cookie(request, state), path=_root(request) + CALLBACK, httponly=True, samesite="lax")
    return response


def _page(status: int, why: str, path: str = "/", headers: dict[str, str] | None = None) -> HTMLResponse:
    """Return a page that says why nobody was signed in, with links to try again and to sign in with a token.

    path: the path of the web UI to show after signing in.
    """
    log.warning("a sign-in failed: %s", why)
    said = html.escape(why[:1].upper() + why[1:])
    text = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<meta name=color-scheme content='light dark'><title>Sign-in failed · Tuner</title><h1>Sign-in failed</h1><p>{said}."
        f"<p><a href='login?next={quote(_own_path(path), safe='')}'>Try again</a> · <a href='..'>Sign in with a token</a>"
    )
    safe = {"Cache-Control": "no-store", "X-Frame-Options": "DENY", "Content-Security-Policy": "default-src 'none'"}
    return HTMLResponse(text, status, {**safe, **(headers or {})})
