"""Sign in with an OpenID Connect provider, such as Keycloak, Okta, Entra ID, Google or GitLab.

This is the authorization code flow of OpenID Connect Core 1.0, section 3.1, with PKCE (RFC 7636), state and nonce. Authlib
builds the requests, and joserfc verifies the ID token. When somebody starts to sign in, the browser gets a cookie with the
state, the nonce and the code verifier, so that the sign-in can be finished by another service with the same database. The
groups in the ID token determine the person's role.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

import httpx
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet

from tuner.api.access.auth import Identity
from tuner.settings import OidcRule, Settings
from tuner.store.service.access import Role

SCOPES = "openid profile email"
SESSION_S = 12 * 3600.0
"""Seconds that a person stays signed in. Then the provider is asked again, so that changed groups take effect."""

PENDING_S = 600
"""Seconds within which a person must finish signing in at the provider."""

KNOWN_S = 3600.0
"""Seconds for which the provider's metadata and keys are cached."""

LEEWAY_S = 60
"""Seconds by which the clocks of the service and the provider may differ."""

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
"""The accepted signature algorithms, all with public keys. The algorithm `none` and HMAC with the client secret are refused."""

TIMEOUT_S = 10.0


class SignInRefused(Exception):
    """The person may not sign in. The message says why."""


class ProviderSilent(Exception):
    """The provider does not answer, or its answer violates OpenID Connect."""


@dataclass(frozen=True, slots=True)
class Pending:
    """The data that the browser keeps in a cookie while the person signs in at the provider."""

    state: str
    nonce: str
    verifier: str
    path: str  # the path of the web UI to show after signing in

    def packed(self) -> str:
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()

    @classmethod
    def unpacked(cls, text: str) -> Pending | None:
        try:
            return cls(**{name: str(value) for name, value in json.loads(base64.urlsafe_b64decode(text)).items()})
        except (binascii.Error, ValueError, TypeError, AttributeError, RecursionError):
            return None


class Provider:
    """The OpenID Connect provider from the settings."""

    def __init__(self, settings: Settings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        assert settings.oidc_issuer is not None
        self.issuer = settings.oidc_issuer
        self._client_id, self._secret = settings.oidc_client_id or "", settings.oidc_client_secret
        self._rules, self._claim = settings.oidc_roles, settings.oidc_groups_claim
        self._transport = transport
        self._metadata: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None

    async def begin(self, redirect_uri: str, path: str) -> tuple[str, Pending]:
        """Return the URL of the provider to redirect the browser to, and the data that the browser has to keep meanwhile."""
        metadata = await self._known()
        pending = Pending(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            path=path,
        )
        url: str = prepare_grant_uri(
            metadata["authorization_endpoint"],
            self._client_id,
            "code",
            redirect_uri=redirect_uri,
            scope=SCOPES,
            state=pending.state,
            nonce=pending.nonce,
            code_challenge=create_s256_code_challenge(pending.verifier),
            code_challenge_method="S256",
        )
        return url, pending

    async def finish(self, redirect_uri: str, code: str, pending: Pending) -> Identity:
        """Exchange the code from the browser for an ID token, and return the person's identity.

        Raises:
            SignInRefused: the code or the ID token is not valid, or none of the person's groups has a role.
            ProviderSilent: the provider does not answer.
        """
        metadata = await self._known()
        tokens = await self._exchange(metadata, redirect_uri, code, pending.verifier)
        claims = await self._verified(tokens.get("id_token"), pending.nonce, metadata)
        rule = granted(self._rules, self._groups(claims))
        name = str(claims.get("email") or claims.get("preferred_username") or claims["sub"])[:100]
        name = "".join(letter if letter.isprintable() else "?" for letter in name)
        if rule is None and self._claim in _elsewhere(claims):
            raise SignInRefused(
                f"the provider left the groups of {name} out of the ID token, since they are too many: ask an admin to let the "
                "provider send only the groups that are assigned to this service"
            )
        if rule is None:
            raise SignInRefused(
                f"no group of {name} has a role here: ask an admin to add one of your groups to TUNER_OIDC_ROLES"
            )
        return Identity(name, Role.named(rule.role), expires_at=time.time() + SESSION_S, project=rule.project)

    async def _exchange(
        self, metadata: Mapping[str, Any], redirect_uri: str, code: str, verifier: str
    ) -> dict[str, Any]:
        """Exchange the code at the provider's token endpoint, and return the provider's answer with the ID token."""
        methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        in_body = "client_secret_basic" not in methods and "client_secret_post" in methods
        body: str = prepare_token_request(
            "authorization_code",
            redirect_uri=redirect_uri,
            code=code,
            code_verifier=verifier,
            client_id=self._client_id,
            **({"client_secret": self._secret} if self._secret and in_body else {}),
        )
        known = None
        if self._secret and not in_body:
            known = httpx.BasicAuth(quote(self._client_id, safe=""), quote(self._secret, safe=""))
        head = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        with _heard(f"the provider {self.issuer} does not answer"):
            async with httpx.AsyncClient(transport=self._transport, timeout=TIMEOUT_S) as client:
                answer = await client.post(metadata["token_endpoint"], content=body, headers=head, auth=known)  # type: ignore[arg-type]
            found = answer.json()
        if answer.status_code >= 500 or not isinstance(found, dict):
            raise ProviderSilent(f"the provider {self.issuer} answers with the status {answer.status_code}")
        if answer.is_error:
            said = [str(found[key]) for key in ("error", "error_description") if found.get(key)]
            raise SignInRefused(f"the provider refused the sign-in: {': '.join(said) or answer.status_code}"[:400])
        return found

    def _groups(self, claims: Mapping[str, Any]) -> Sequence[str]:
        found = claims.get(self._claim)
        if isinstance(found, str):
            return [found]
        return [str(one) for one in found] if isinstance(found, Sequence) else []

    async def _verified(self, token: object, nonce: str, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the claims of an ID token. Raise SignInRefused if its signature, issuer, audience, times or nonce is wrong."""
        if not isinstance(token, str):
            raise SignInRefused("the provider sent no ID token")
        offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        algorithms = [name for name in ALGORITHMS if name in offered]
        expected = jwt.JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self.issuer},
            aud={"essential": True, "value": self._client_id},
            exp={"essential": True},
            iat={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            try:
                claims = jwt.decode(token, await self._key_set(metadata), algorithms=algorithms).claims
            except (JoseError, ValueError):  # the provider may sign with a new key
                claims = jwt.decode(token, await self._key_set(metadata, anew=True), algorithms=algorithms).claims
            expected.validate(claims)
        except (JoseError, ValueError) as error:
            clocks = (  # the token comes from the provider directly, so it is new
                f"; compare the clocks of the service and the provider, which may differ by at most {LEEWAY_S} s"
                if isinstance(error, ExpiredTokenError | InvalidClaimError) and error.claim in ("exp", "iat", "nbf")
                else ""
            )
            raise SignInRefused(f"the provider sent an ID token that is not valid: {_words(error)}{clocks}") from error
        if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and claims.get("azp") != self._client_id:
            raise SignInRefused("the provider sent an ID token that is not valid: it was issued to another client")
        return claims

    async def _known(self) -> dict[str, Any]:
        if self._metadata is None or time.monotonic() > self._metadata[0] + KNOWN_S:
            found = await self._get(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
            if found.get("issuer") != self.issuer:
                raise ProviderSilent(
                    f"the provider {self.issuer} calls itself {found.get('issuer')!r}: set TUNER_OIDC_ISSUER to exactly this name"
                )
            missing = [name for name in ("authorization_endpoint", "token_endpoint", "jwks_uri") if name not in found]
            if missing:
                raise ProviderSilent(f"the metadata of {self.issuer} lacks {missing[0]}")
            self._metadata = (time.monotonic(), found)
        return self._metadata[1]

    async def _key_set(self, metadata: Mapping[str, Any], *, anew: bool = False) -> KeySet:
        if anew or self._keys is None or time.monotonic() > self._keys[0] + KNOWN_S:
            listed = (await self._get(metadata["jwks_uri"])).get("keys")
            if not isinstance(listed, list):
                raise ProviderSilent(f"the keys of {self.issuer} are not a JSON Web Key Set")
            self._keys = (time.monotonic(), KeySet([key for one in listed if (key := _key(one)) is not None]))
        return self._keys[1]

    async def _get(self, url: str) -> dict[str, Any]:
        with _heard(f"the provider does not answer at {url}"):
            async with httpx.AsyncClient(transport=self._transport, timeout=TIMEOUT_S) as client:
                answer = (await client.get(url)).raise_for_status().json()
        if not isinstance(answer, dict):
            raise ProviderSilent(f"the provider does not answer with a JSON object at {url}")
        return answer


@contextlib.contextmanager
def _heard(silent: str) -> Iterator[None]:
    """Raise ProviderSilent if the provider does not answer in JSON, or cannot be asked. silent: the beginning of the message."""
    try:
        yield
    except ImportError as error:  # a proxy of SOCKS needs another package
        raise ProviderSilent(f"{silent}: {error}") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
        raise ProviderSilent(f"{silent}: {type(error).__name__}") from error


def granted(rules: Sequence[OidcRule], groups: Sequence[str]) -> OidcRule | None:
    """Return the first rule for a group that the person belongs to, or None. Everybody belongs to the group ``*``."""
    return next((rule for rule in rules if rule.group == "*" or rule.group in groups), None)


def _elsewhere(claims: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the claims that are not in the ID token but at another URL, as Entra ID does with the groups if they are many."""
    found = claims.get("_claim_names")
    return found if isinstance(found, Mapping) else {}


def _key(data: Any) -> Key | None:
    """Return a key of the provider; None if it is of a kind that is not supported, as RFC 7517 (section 5) demands."""
    try:
        return JWKRegistry.import_key(data)
    except (JoseError, ValueError, KeyError, TypeError):
        return None


def _words(error: Exception) -> str:
    """Return the message of a joserfc error without its code or, if there is no message, the code in words."""
    if not isinstance(error, JoseError):
        return str(error)
    said = error.description or error.error.replace("_", " ")
    return (said[:1].lower() + said[1:]).rstrip(".")
