"""Test how long a request waits for the driver."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest
from fastapi import FastAPI

from tuner.api import context
from tuner.errors import DriverSilent


async def test_a_request_waits_for_the_driver_as_long_as_somebody_waits_for_its_answer(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "LOOK_S", 0.01)
    here = app.state.context

    async def stays() -> bool:
        return False

    async def left() -> bool:
        return True

    answered: Future[int] = Future()
    asyncio.get_running_loop().call_later(0.05, answered.set_result, 7)
    assert await here.answered(answered, 60.0, stays) == 7
    waits = [
        (0.0, stays, "did not answer in time"),
        (60.0, left, "has disconnected"),
        (60.0, stays, "is shutting down"),
    ]
    for patience_s, gone, said in waits:
        if said == "is shutting down":
            here.ending.set()
        asked: Future[int] = Future()
        with pytest.raises(DriverSilent, match=said):
            await asyncio.wait_for(here.answered(asked, patience_s, gone), 10)
        await asyncio.sleep(0)
        assert asked.cancelled(), "the driver need not answer"
