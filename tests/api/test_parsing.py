"""Test that the head of a response is sent together with the beginning of its body."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from tests.api.conftest import serving
from tuner.api.parsing import MOST_JOINED, Http, _Joining

HEAD, BODY = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n", b"body"


class Sent(asyncio.Transport):
    """A transport that records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


async def test_a_head_and_the_body_behind_it_are_one_write() -> None:
    sent = Sent()
    joining = _Joining(sent, asyncio.get_running_loop())
    for _ in range(2):
        joining.write(HEAD)
        joining.write(BODY)
    assert sent.written == [HEAD + BODY, HEAD + BODY]
    await asyncio.sleep(0)
    assert sent.written == [HEAD + BODY, HEAD + BODY], "nothing is sent twice"


async def test_a_head_whose_body_comes_later_is_sent_in_the_next_round() -> None:
    sent = Sent()
    joining = _Joining(sent, asyncio.get_running_loop())
    joining.write(HEAD)
    await asyncio.sleep(0)
    assert sent.written == [HEAD]
    joining.write(BODY)
    assert sent.written == [HEAD, BODY]


async def test_a_large_body_is_not_copied() -> None:
    sent, large = Sent(), bytes(MOST_JOINED + 1)
    joining = _Joining(sent, asyncio.get_running_loop())
    joining.write(HEAD)
    joining.write(large)
    assert sent.written == [HEAD, large]


async def test_a_kept_head_is_sent_before_the_connection_is_closed_and_never_after_that() -> None:
    sent = Sent()
    joining = _Joining(sent, asyncio.get_running_loop())
    joining.write(HEAD)
    joining.close()
    assert (sent.written, joining.is_closing()) == ([HEAD], True)
    lost = Sent()
    joining = _Joining(lost, asyncio.get_running_loop())
    joining.write(HEAD)
    lost.close()  # the client has disconnected
    await asyncio.sleep(0)
    assert lost.written == []


class Watched:
    """A transport that also records what is written."""

    def __init__(self, transport: asyncio.Transport, written: list[bytes]) -> None:
        self._transport, self._written = transport, written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written.append(data)
        self._transport.write(data)


def test_the_server_sends_each_response_in_one_write(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    made = Http.connection_made
    monkeypatch.setattr(
        Http, "connection_made", lambda self, transport: made(self, cast("Any", Watched(transport, written)))
    )
    for url in serving(app):
        with httpx.Client(base_url=url) as client:
            client.get("/healthz").raise_for_status()
            written.clear()
            answers = [client.get("/healthz"), client.get("/api/v1/experiments"), client.get("/api/v1/nothing")]
    assert [answer.status_code for answer in answers] == [200, 200, 404]
    assert len(written) == len(answers)
    for answer, sent in zip(answers, written, strict=True):
        assert sent.startswith(b"HTTP/1.1 ")
        assert sent.endswith(answer.content)


async def test_a_body_may_be_made_of_memoryviews() -> None:
    sent = Sent()
    joining = _Joining(sent, asyncio.get_running_loop())
    joining.write(HEAD)
    joining.write(memoryview(BODY[:2]))
    joining.write(memoryview(BODY[2:]))
    assert sent.written == [HEAD + BODY[:2], BODY[2:]]
