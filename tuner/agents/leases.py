"""The HTTP calls of an agent to a service. All of them can safely be repeated, so a lost answer does no harm."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx

from tuner.client import protocol
from tuner.domain.logs import LogChunk
from tuner.domain.segments import CheckpointInfo, Failure, Outcome, Report, Verdict
from tuner.errors import Gone

ASK_S = 20.0
"""Seconds that the service may wait for a trial to become available before it answers that it has none."""
CALL_S = 60.0
"""Seconds to wait for the answer to a call before repeating it."""
PATIENCE_S = 3600.0
"""Seconds for which a call is repeated if the service does not answer. The trial may have to wait this long."""
AT_ONCE = 1000
"""The maximum number of reports that are sent in one call. A service that does not answer for a while gets many afterwards."""
BYTES_AT_ONCE = 8 << 20
"""The maximum size of their metrics in bytes, unless one report alone has more. A service refuses bodies of more than 16 MiB."""
_JSON = {"content-type": "application/json"}
_NO_TRIAL = 204
_NOT_FOUND = 404
_GONE = 410
_PLACE = re.compile(r"/experiments/([^/]+)/assignments$")

Assignment = Mapping[str, Any]
"""A trial that the service has leased to this agent, as a dict with the fields of `tuner.api.schemas.Assignment`."""


class Leases:
    """Gets trials of one experiment from a service, and sends their reports. Use it in a single event loop.

    Args:
        address: the URL of the service.
        token: a token with the role agent or editor. If None, the value of TUNER_TOKEN is used, if it is set.
        experiment: the id or name of the experiment.
        agent: the name of this agent in the experiment's log.
        lease_s: seconds after which a trial may be started elsewhere if this agent has made no call about it.
    """

    def __init__(self, address: str, token: str | None, experiment: str, agent: str, lease_s: float = 60.0) -> None:
        protocol.check_body(lease_s, "/lease_s")
        self.address = protocol.address_of(address)
        self._experiment = experiment  # its id once it is known, since another experiment may get the same name
        self._agent, self._lease_s = agent, lease_s
        headers, verify = protocol.headers_of(token), protocol.tls_of(self.address)
        with protocol.proxies_named():
            self._http = httpx.AsyncClient(
                headers=headers,
                verify=verify,
                trust_env=not protocol.is_here(self.address),
            )
        self._reached = False
        self._known = False  # whether the service has had the experiment, so that it was deleted if it is not found

    async def close(self) -> None:
        """Close the connections to the service."""
        await self._http.aclose()

    async def ask(self, request: str, wait_s: float = ASK_S) -> Assignment | None:
        """Lease a trial to train, or return None if the service has none within `wait_s` seconds.

        request: a name for this request. A second call with the same name replaces the first one, or returns its trial.

        Raises:
            Gone: the experiment has ended, or has been deleted since an earlier call.
            ServiceError: the service rejects the call, or does not answer.
        """
        body = {
            "agent": self._agent,
            "request": request,
            "wait_s": wait_s,
            "lease_s": self._lease_s,
            "late_checkpoints": True,
        }
        found = await self._post(self._experiment, "", body)
        if found:
            self._experiment, self._known = found["experiment_id"], True
        return found or None

    async def report(self, lease: Assignment, reports: Sequence[Report]) -> tuple[Verdict, str]:
        """Send reports of a trial. Return (the verdict on the last report, the action that the service wants).

        The action is "continue", unless a user or the scheduler has decided to interrupt the trial in the meantime.
        """
        begun = time.monotonic()
        for part in _parts(reports):
            said = await self._post_about(lease, "reports", partial(_message, lease, part, begun))
        start = lease["iteration"]
        following = said["next_milestone"]
        verdict = Verdict(
            action=said["verdict"],
            next_milestone=None if following is None else following - start,
            save_checkpoint=said["save_checkpoint"],
            reason=said["reason"],
            completed=said["completed"],
        )
        return verdict, str(said["wanted"])

    async def checkpoint(self, lease: Assignment, info: CheckpointInfo) -> None:
        """Tell the service that a checkpoint of the trial is stored."""
        await self._post_about(lease, "checkpoints", {"iteration": info.step, **_place(info)})

    async def heartbeat(self, lease: Assignment) -> str:
        """Renew the lease of a trial, and return the action that the service wants.

        The action is "continue", or the verdict that the trial will get at its next report.
        """
        # A connection that is cut, or a service that hangs, must not use up the lease: the next heartbeat may get through.
        timeout_s = min(CALL_S, lease["lease_s"] / 3)
        found = await self._post_about(lease, "heartbeat", None, patience_s=0.0, timeout_s=timeout_s)
        return str(found["wanted"])

    async def log(self, lease: Assignment, chunks: Sequence[LogChunk]) -> None:
        """Send chunks of the trial's log."""
        for chunk in chunks:
            if chunk.size:
                data = base64.b64encode(chunk.content()).decode()
                await self._post_about(lease, "log", {"start": chunk.start, "data": data})

    async def end(self, lease: Assignment, outcome: Outcome) -> None:
        """Tell the service how the segment of the trial has ended. Ignore the error if the lease has already ended."""
        failure = outcome.failure
        try:
            if outcome.kind == "returned":
                await self._post_about(lease, "complete", None)
            elif failure is None:
                await self._post_about(lease, "release", None)
            else:
                await self._post_about(lease, "fail", _failed(failure))
        except Gone:
            pass

    async def _post_about(
        self, lease: Assignment, call: str, body: Any, patience_s: float = PATIENCE_S, timeout_s: float = CALL_S
    ) -> dict[str, Any]:
        return await self._post(lease["experiment_id"], f"/{lease['lease']}/{call}", body, patience_s, timeout_s)

    async def _post(
        self, experiment: str, path: str, body: Any, patience_s: float = PATIENCE_S, timeout_s: float = CALL_S
    ) -> dict[str, Any]:
        """Send a body, or what a function returns as the body of each attempt, and return the answer."""
        url = f"{self.address}{protocol.API}/experiments/{quote(experiment, safe='')}/assignments{path}"
        attempts = protocol.Attempts(safe=True, patience_s=patience_s, reached=self._reached)
        timeout = protocol.timeout_of(timeout_s)
        while True:
            answer: httpx.Response | None = None
            error: httpx.TransportError | None = None
            text = json.dumps(body() if callable(body) else body, ensure_ascii=False)
            # Names of files that are not UTF-8 occur in errors and metrics. A database cannot store them either.
            content = text.encode("utf-8", "replace")
            try:
                answer = await self._http.post(url, content=content, headers=_JSON, timeout=timeout)
                self._reached = True
            except httpx.TransportError as raised:
                error = raised
            wait = attempts.wait_s(answer, error)
            if wait is None:
                break
            await asyncio.sleep(wait)
        if answer is None:
            assert error is not None
            raise protocol.unreachable(self.address, error)
        if answer.status_code == _NO_TRIAL and (place := _PLACE.search(answer.headers.get("Content-Location", ""))):
            self._experiment, self._known = place[1], True
        if answer.status_code == _GONE or (answer.status_code == _NOT_FOUND and self._known):
            raise Gone(str((protocol.body_of(answer) or {}).get("detail", "the experiment or the lease has ended")))
        protocol.check(answer)
        return dict(protocol.body_of(answer) or {})


def _parts(reports: Sequence[Report]) -> Iterator[list[Report]]:
    """Yield the reports in order, in parts that a service takes at once."""
    part: list[Report] = []
    size = 0
    for report in reports:
        more = len(json.dumps(report.metrics)) if len(reports) > 1 else 0
        if part and (len(part) == AT_ONCE or size + more > BYTES_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(report)
        size += more
    yield part


def _message(lease: Assignment, reports: Sequence[Report], since: float) -> dict[str, Any]:
    """Return the body of a call with these reports that is sent now. `since`: the time at which the reports had their ages."""
    waited_s = time.monotonic() - since
    *earlier, last = (_written(lease, report, waited_s) for report in reports)
    for one in earlier:
        one.pop("waits")
    if reports[-1].last:
        last["last"] = True
    return {**last, "earlier": earlier}


def _written(lease: Assignment, report: Report, waited_s: float) -> dict[str, Any]:
    start = lease["iteration"]
    return {
        "iteration": start + report.report_no,
        "metrics": {name: _number(value) for name, value in report.metrics.items()},
        "step": report.step,
        "checkpoint": None if report.checkpoint is None else _place(report.checkpoint),
        "offer": None if report.offer is None else start + report.offer,
        "age_s": max(0.0, report.age) + waited_s,
        "waits": report.waits,
    }


def _number(value: float) -> float | str | None:
    """Return a value of a metric as JSON, which has no infinity and no NaN."""
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _place(info: CheckpointInfo) -> dict[str, Any]:
    return {"uri": info.uri, "bytes": info.bytes, "ready": info.ready}


def _failed(failure: Failure) -> dict[str, Any]:
    return {
        "message": failure.message[:10_000] or failure.cause,
        "traceback": failure.traceback[-200_000:],
        "log_tail": failure.log_tail[-200_000:],
        "kind": "system" if failure.kind == "placement" else failure.kind,
        "cause": failure.cause[:50],
    }
