"""Sessions, tokens and the audit trail."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner.api.schemas.forms import Body, Model
from tuner.domain.experiment import PROJECT
from tuner.domain.timestamps import rfc3339, rfc3339_or_none
from tuner.store.service.access import AuditRecord, TokenRecord

RoleName = Literal["agent", "viewer", "editor", "admin"]


class Session(Model):
    """Information about the caller: their name, their role, and whether they need a token."""

    required: Annotated[bool, Field(description="true if the service requires a token")]
    name: Annotated[
        str | None,
        Field(
            description="the caller's name, or that of their token; local if no token is needed; null if not signed in"
        ),
    ]
    role: Annotated[RoleName | None, Field(description="what the caller may do; null if not signed in")]
    expires_at: Annotated[str | None, Field(description="when the caller's token or session expires; null: never")]
    project: Annotated[str | None, Field(description="the only project that the caller may see; null: all projects")]
    sign_in_url: Annotated[
        str | None,
        Field(
            description="the URL at which to sign in with the OpenID Connect provider; null: the service has no provider"
        ),
    ]


class SignIn(Body):
    """The body of a request to sign in."""

    token: Annotated[
        str,
        Field(min_length=1, max_length=1000, description="the token, tnr_..., as printed by `tuner token create`"),
    ]


class NewToken(Body):
    """The body of a request to create a token."""

    name: Annotated[
        str,
        Field(
            description="the person or program that will use the token; the audit trail shows this name", max_length=100
        ),
    ]
    role: Annotated[RoleName, Field(description="what the token allows")]
    project: Annotated[
        str | None,
        Field(
            pattern=PROJECT,
            description=(
                "the only project that the token gives access to; null: the caller's own limit applies, if there is one"
            ),
        ),
    ] = None
    expires_days: Annotated[
        float | None,
        Field(gt=0, le=36500, description="days until the token expires; null: it never expires"),
    ] = None


class Token(Model):
    """A token. Its secret is shown only when it is created."""

    id: Annotated[str, Field(description="tok_...")]
    name: Annotated[str, Field(description="the person or program that uses the token")]
    role: Annotated[RoleName, Field(description="what the token allows")]
    project: Annotated[
        str | None, Field(description="the only project that the token gives access to; null: all projects")
    ]
    created_at: Annotated[str, Field(description="when the token was created")]
    expires_at: Annotated[str | None, Field(description="when the token expires; null: never")]
    revoked_at: Annotated[str | None, Field(description="when the token was revoked; null: it has not been revoked")]
    used_at: Annotated[
        str | None, Field(description="when the token was last used, to the minute; null: it has not been used")
    ]
    secret: Annotated[
        str | None,
        Field(description="the secret; contained only in the response to the request that creates the token"),
    ] = None

    @classmethod
    def of(cls, record: TokenRecord, secret: str | None = None) -> Token:
        """Return the token as the API shows it."""
        return cls(
            id=record.id,
            name=record.name,
            role=str(record.role),  # type: ignore[arg-type]
            project=record.project,
            created_at=rfc3339(record.created_at),
            expires_at=rfc3339_or_none(record.expires_at),
            revoked_at=rfc3339_or_none(record.revoked_at),
            used_at=rfc3339_or_none(record.used_at),
            secret=secret,
        )


class TokenList(Model):
    """All tokens, newest first."""

    items: Annotated[list[Token], Field(description="the tokens, without their secrets")]


class AuditEntry(Model):
    """An entry of the audit trail: a request that changed something, or that was meant to."""

    id: Annotated[int, Field(description="the number of the entry; later entries have larger numbers")]
    time: Annotated[str, Field(description="when the request was answered")]
    actor: Annotated[
        str, Field(description="the caller's name, or that of their token; local if the service requires no token")
    ]
    token_id: Annotated[
        str | None, Field(description="the id of the caller's token, tok_...; null: the caller has no token")
    ]
    method: Annotated[str, Field(description="POST, PATCH, DELETE, ...")]
    path: Annotated[str, Field(description="the path that was requested")]
    status: Annotated[int, Field(description="the HTTP status of the response; 401 and 403: the request was refused")]
    address: Annotated[str, Field(description="the IP address of the caller")]
    created: Annotated[
        str | None,
        Field(
            description="the id of the experiment, trial or webhook that the request created; null if it created none"
        ),
    ]

    @classmethod
    def of(cls, number: int, record: AuditRecord) -> AuditEntry:
        """Return the entry as the API shows it."""
        return cls(
            id=number,
            time=rfc3339(record.time),
            actor=record.actor,
            token_id=record.token_id,
            method=record.method,
            path=record.path,
            status=record.status,
            address=record.address,
            created=record.created,
        )


class AuditPage(Model):
    """Entries of the audit trail, newest first."""

    items: Annotated[list[AuditEntry], Field(description="the entries")]
    next_page_token: Annotated[str | None, Field(description="token of the next page; null on the last page")]
