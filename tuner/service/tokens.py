"""Decide whether a service needs tokens, and refuse to serve without them if it does."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tuner.errors import SpecError
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.store import Store


def with_auth(settings: Settings) -> Settings:
    """Return the settings with `auth` "on" or "off". The value "auto" becomes "on" if `auth.secured` says so.

    Raises:
        SpecError: the host is not an address of this machine, or `auth` is "off" and the host is not loopback.
    """
    from tuner.api.access.auth import is_here, secured

    try:
        loopback = is_here(settings.host)
    except OSError as error:
        raise SpecError(f"{settings.host!r} is not an address of this machine: {error}", "/host") from error
    if settings.auth == "off" and not loopback:
        raise SpecError(
            f"a service on {settings.host} needs tokens, because everybody who can reach it can run code; "
            "TUNER_AUTH=off is only for a service on loopback, behind a proxy that controls access",
            "/auth",
        )
    settings = secured(settings)
    return dataclasses.replace(settings, auth="off") if settings.auth == "auto" else settings


def about_tokens(settings: Settings) -> str:
    """Return the line that `serve` prints about who may call the API. `settings` must come from `with_auth`."""
    if settings.auth == "on":
        return f"Every request needs a token{_because(settings)}."
    if settings.trusted_proxies:
        return "It requires no token (TUNER_AUTH=off): everybody whom the proxy lets through can run code."
    return "It requires no token: every user of this machine can run code through it. Use --auth to require tokens."


def _because(settings: Settings) -> str:
    return " (TUNER_TRUSTED_PROXIES is set)" if settings.trusted_proxies else ""


def check_tokens(settings: Settings, store: Store) -> None:
    """Raise SpecError if tokens are needed, but neither a token nor a group in the settings has the role admin."""
    by_group = any(rule.role == "admin" and rule.project is None for rule in settings.oidc_roles)
    if settings.auth == "on" and not by_group and not store.access.has_admin():
        raise SpecError(
            f"serving on {settings.host} with tokens{_because(settings)} needs an admin token, and there is "
            "none; create it with `tuner token create NAME --role admin`",
            "/auth",
        )
