"""The calls of agents explain answers that do not come from a tuner service."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from tuner.agents.leases import AT_ONCE, Leases
from tuner.api.access.guards import MAX_BODY
from tuner.api.schemas.service.agents import MOST_EARLIER
from tuner.client import protocol
from tuner.domain.segments import Failure, Outcome, Report
from tuner.errors import Gone, NotFound, ServiceError
from tuner.trials.training.metrics import LONGEST_NAME

MOVED = {"location": "https://tuner.example.com/here"}
NEGOTIATED = {"content-location": "error.html.en"}  # as Apache sends it with a page in several languages


CONTINUE = {
    "verdict": "continue",
    "next_milestone": None,
    "save_checkpoint": False,
    "reason": "",
    "completed": False,
    "wanted": "continue",
}
"""The answer to a report after which the trial goes on."""


@contextlib.asynccontextmanager
async def answered_by(answer: Callable[[httpx.Request], httpx.Response]) -> AsyncIterator[Leases]:
    """Yield an agent's calls about the experiment "far", which this function answers in place of a service."""
    leases = Leases("http://service.invalid", None, "far", "agent")
    await leases.close()
    leases._http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    try:
        yield leases
    finally:
        await leases.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(200, html="<html>Please log in</html>"), "200 OK from .* which may not be a tuner service"),
        (httpx.Response(410, html="<html>gone</html>"), "410 Gone from .* which may not be a tuner service"),
        (httpx.Response(301, html="<html>moved</html>", headers=MOVED), "redirects to https://tuner.example.com/here"),
        (httpx.Response(410, html="<html>gone</html>", headers=NEGOTIATED), "410 Gone from .* which may not be"),
    ],
)
def test_an_answer_of_another_server_is_explained(answer: httpx.Response, said: str) -> None:
    async def ask() -> None:
        async with answered_by(lambda request: answer) as leases:
            with pytest.raises(ServiceError, match=said):
                await leases.ask("r1")

    asyncio.run(ask())


def test_an_agent_that_has_got_no_trial_yet_stays_with_the_experiment_that_its_name_meant() -> None:
    called: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        called.append(request.url.path)
        return httpx.Response(204, headers={"Content-Location": "/api/v1/experiments/exp_1/assignments"})

    async def ask() -> None:
        async with answered_by(answer) as leases:
            assert [await leases.ask("r1"), await leases.ask("r2")] == [None, None]

    asyncio.run(ask())
    assert called == [f"/api/v1/experiments/{name}/assignments" for name in ("far", "exp_1")]


def test_an_experiment_that_is_not_found_has_ended_only_if_the_service_has_had_it() -> None:
    """Otherwise its name is wrong, which is an error."""
    place = {"Content-Location": "/api/v1/experiments/exp_1/assignments"}
    statuses = iter((404, 204, 404))

    def answer(request: httpx.Request) -> httpx.Response:
        if next(statuses) == 204:
            return httpx.Response(204, headers=place)
        return httpx.Response(404, json={"detail": "no experiment far"})

    async def ask() -> None:
        async with answered_by(answer) as leases:
            with pytest.raises(NotFound, match="no experiment far"):
                await leases.ask("r1")
            assert await leases.ask("r2") is None
            with pytest.raises(Gone, match="no experiment far"):
                await leases.ask("r3")

    asyncio.run(ask())


def test_a_service_that_has_answered_before_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is being restarted. One that has never answered probably has another address."""
    monkeypatch.setattr(protocol, "FIRST_CONTACT_S", 0.0)
    up = iter((False, True, False, True))

    def answer(request: httpx.Request) -> httpx.Response:
        if not next(up):
            raise httpx.ConnectError("connection refused")
        return httpx.Response(204)

    async def ask() -> None:
        async with answered_by(answer) as leases:
            with pytest.raises(ServiceError):
                await leases.ask("r1")
            assert [await leases.ask("r2"), await leases.ask("r3")] == [None, None]

    asyncio.run(ask())
    assert next(up, None) is None


def test_calls_about_a_lease_name_its_experiment() -> None:
    """Two loops ask with the name, and another experiment gets the name in between."""
    assignments = iter({"experiment_id": f"exp_{i}", "lease": f"seg_{i}", "lease_s": 60.0} for i in (1, 2))
    called: list[str] = []
    waits: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        called.append(request.url.path.removeprefix("/api/v1/experiments/"))
        if request.url.path.endswith("/assignments"):
            return httpx.Response(201, json=next(assignments))
        waits.append(request.extensions["timeout"]["read"])
        return httpx.Response(200, json={"wanted": "continue"})

    async def ask() -> None:
        async with answered_by(answer) as leases:
            for lease in [await leases.ask("r1"), await leases.ask("r2")]:
                assert lease is not None
                await leases.heartbeat(lease)

    asyncio.run(ask())
    assert called[2:] == ["exp_1/assignments/seg_1/heartbeat", "exp_2/assignments/seg_2/heartbeat"]
    assert waits == [20.0, 20.0], "a heartbeat without an answer leaves time for the next one"


def test_a_service_is_told_of_a_last_report() -> None:
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json=CONTINUE)

    async def report() -> None:
        lease = {"experiment_id": "exp_1", "lease": "seg_1", "iteration": 0}
        metrics = {"loss": 1.0, "nan": math.nan, "most": math.inf, "least": -math.inf}
        made = [Report(report_no=i, metrics=metrics, time=0.0, waits=True, last=i == 2) for i in (1, 2)]
        async with answered_by(answer) as leases:
            for one in made:
                await leases.report(lease, [one])

    asyncio.run(report())
    assert [body.get("last") for body in bodies] == [None, True]
    assert bodies[0]["metrics"] == {"loss": 1.0, "nan": None, "most": "Infinity", "least": "-Infinity"}


@pytest.mark.parametrize(("metrics", "calls"), [(1, 3), (34, 5)])
def test_reports_that_have_gathered_are_sent_in_parts_that_a_service_takes(metrics: int, calls: int) -> None:
    """The first batch after an outage of the service had more, so the service refused it, and the trial failed."""
    assert AT_ONCE <= MOST_EARLIER + 1
    bodies: list[Any] = []
    values = {f"{i:0{LONGEST_NAME}}": 1 / 3 for i in range(metrics)}

    def answer(request: httpx.Request) -> httpx.Response:
        assert len(request.content) <= MAX_BODY
        bodies.append(json.loads(request.content))
        verdict = "stop" if bodies[-1]["waits"] else "continue"
        return httpx.Response(200, json={**CONTINUE, "verdict": verdict, "wanted": "stop"})

    async def report() -> str:
        count = 2 * AT_ONCE + 1
        made = [Report(report_no=i, metrics=values, time=0.0, waits=i == count) for i in range(1, count + 1)]
        async with answered_by(answer) as leases:
            verdict, _ = await leases.report({"experiment_id": "exp_1", "lease": "seg_1", "iteration": 0}, made)
            return verdict.action

    assert asyncio.run(report()) == "stop"
    assert len(bodies) == calls
    assert all(len(body["earlier"]) < AT_ONCE for body in bodies)
    sent = [one["iteration"] for body in bodies for one in (*body["earlier"], body)]
    assert sent == list(range(1, 2 * AT_ONCE + 2))


def test_a_report_that_is_sent_again_says_how_old_it_is_by_then() -> None:
    """After an outage, all reports that had been made in it had the time of its end."""
    ages: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        ages.extend(one["age_s"] for one in (*body["earlier"], body))
        if len(ages) == 2:
            return httpx.Response(503, headers={"Retry-After": "0"}, json={"detail": "starting"})
        return httpx.Response(200, json=CONTINUE)

    async def report() -> None:
        made = [Report(report_no=i, metrics={"loss": 1.0}, time=0.0, waits=False, age=9.0 - i) for i in (1, 2)]
        async with answered_by(answer) as leases:
            await leases.report({"experiment_id": "exp_1", "lease": "seg_1", "iteration": 0}, made)

    asyncio.run(report())
    first, second, *again = ages
    assert first >= 8.0
    assert second >= 7.0
    assert [old < new for old, new in zip((first, second), again, strict=True)] == [True, True]


def test_what_is_not_unicode_is_sent_with_placeholders() -> None:
    """An error that named a file in Latin-1 ended the agent, and a metric with such a name was a failure of its trial."""
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["content-type"] == "application/json"
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json={"ended": True})

    async def fail() -> None:
        failure = Failure(kind="user", message="no file caf\udce9")
        async with answered_by(answer) as leases:
            await leases.end({"experiment_id": "exp_1", "lease": "seg_1"}, Outcome(kind="failed", failure=failure))

    asyncio.run(fail())
    assert [body["message"] for body in bodies] == ["no file caf?"]
