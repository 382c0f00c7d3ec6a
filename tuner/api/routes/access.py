"""/session, /tokens, /audit: sign in, manage tokens, read the audit trail."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from tuner.api.access.auth import Credential, Identity, cookie_name, credential_of, source_of
from tuner.api.answers import BAD, NOT_FOUND, Route, answer, checked, json_body
from tuner.api.context import Context, Here
from tuner.api.problems import problem_response
from tuner.api.schemas import AuditEntry, AuditPage, NewToken, Problem, Session, SignIn, Token, TokenList
from tuner.domain.timestamps import rfc3339_or_none
from tuner.store.service.access import Role

router = APIRouter(route_class=Route, tags=["access"])

REFUSED: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "the token is wrong, expired or revoked"}
}
TOO_OFTEN: dict[int | str, dict[str, Any]] = {
    429: {"model": Problem, "description": "too many failed attempts to sign in; Retry-After says when to try again"}
}


@router.get(
    "/session",
    response_model=Session,
    responses=BAD,
    summary="Get the name and the role of the caller, and whether a token is needed",
)
async def session(here: Here, request: Request) -> Response:
    return answer(_session(here, request, request.scope["state"].get("identity")))


@router.post(
    "/session",
    response_model=Session,
    responses={**BAD, **REFUSED, **TOO_OFTEN},
    summary="Sign in with a token. Sets a cookie that scripts cannot read",
)
async def sign_in(here: Here, request: Request, data: Annotated[object, Depends(json_body)]) -> Response:
    given = checked(SignIn, data)
    address = source_of(request.scope)
    wait_s = here.authenticator.must_wait_s(address)
    here.authenticator.tried(address)
    identity = await here.authenticator.identity_of(Credential(given.token))
    if identity is None and wait_s > 0:
        detail = f"too many failed attempts to sign in from {address}; try again in {wait_s:.0f} s"
        return problem_response(429, detail, headers={"Retry-After": str(int(wait_s) + 1)})
    if identity is None:
        return problem_response(401, "this token is not valid: it is wrong, expired or revoked")
    here.authenticator.succeeded(address)
    request.scope["state"]["identity"] = identity  # for the audit trail and the log
    response = answer(_session(here, request, identity), headers={"Cache-Control": "no-store"})
    secret, lasts_s = await here.authenticator.open_session(identity)
    set_session(response, request, secret, lasts_s)
    return response


def set_session(response: Response, request: Request, secret: str, lasts_s: float) -> None:
    """Set the session's cookie in the browser, for the path of this service only.

    If the request came over HTTPS, the browser sends the cookie only over HTTPS.
    """
    response.set_cookie(
        cookie_name(request.scope),
        secret,
        max_age=max(int(lasts_s), 1),
        path=request.scope.get("root_path") or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )


@router.delete("/session", status_code=204, responses=BAD, summary="Sign out. Ends the session and removes the cookie")
async def sign_out(here: Here, request: Request) -> Response:
    credential = credential_of(request.scope)
    if credential is not None and credential.is_session:
        await here.authenticator.close_session(credential)
    response = Response(status_code=204)
    path = request.scope.get("root_path") or "/"
    response.delete_cookie(cookie_name(request.scope), path=path, httponly=True, samesite="strict")
    return response


@router.get("/tokens", response_model=TokenList, responses=BAD, summary="List tokens, newest first; for admins")
def tokens(here: Here) -> Response:
    return answer(TokenList(items=[Token.of(record) for record in here.store.access.tokens()]))


@router.post(
    "/tokens",
    status_code=201,
    response_model=Token,
    responses=BAD,
    summary="Create a token. Only this response contains its secret; for admins",
)
def create_token(here: Here, data: Annotated[object, Depends(json_body)]) -> Response:
    given = checked(NewToken, data)
    lifetime_s = None if given.expires_days is None else given.expires_days * 86400
    secret, record = here.store.access.create_token(
        given.name, Role.named(given.role), project=given.project or here.project, lifetime_s=lifetime_s
    )
    return answer(Token.of(record, secret), 201, {"Cache-Control": "no-store"})


@router.post(
    "/tokens/{token_id}/revoke",
    response_model=Token,
    responses={**NOT_FOUND, **BAD},
    summary="Revoke a token. Every service notices within 5 s; for admins",
)
async def revoke_token(here: Here, token_id: Annotated[str, Path(description="tok_...")]) -> Response:
    wanted = token_id.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    record = await asyncio.to_thread(here.store.access.revoke_token, wanted)
    here.authenticator.forget(record.id)
    return answer(Token.of(record))


@router.get(
    "/audit",
    response_model=AuditPage,
    responses=BAD,
    summary="List who changed what, newest first; for admins",
)
async def audit(
    here: Here,
    page_size: Annotated[int, Query(ge=1, le=1000, description="the maximum number of items per page")] = 100,
    page_token: Annotated[int | None, Query(ge=0, le=2**62, description="next_page_token of the previous page")] = None,
) -> Response:
    await here.authenticator.noted()
    found = await asyncio.to_thread(here.store.access.trail, limit=page_size, before=page_token)
    more = str(found[-1][0]) if len(found) == page_size else None
    return answer(AuditPage(items=[AuditEntry.of(*entry) for entry in found], next_page_token=more))


def _session(here: Context, request: Request, identity: Identity | None) -> Session:
    with_provider = here.settings.oidc_issuer is not None
    return Session(
        required=here.authenticator.asks(request.scope),
        name=None if identity is None else identity.name,
        role=None if identity is None else str(identity.role),  # type: ignore[arg-type]
        expires_at=None if identity is None else rfc3339_or_none(identity.expires_at),
        project=None if identity is None else identity.project,
        sign_in_url=f"{request.scope.get('root_path') or ''}/auth/login" if with_provider else None,
    )
