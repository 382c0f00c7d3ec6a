"""The calls of a rank, through Ray and over a line, with the driver's handle at the other end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import ray

from tuner.trials.groups.pools import rank_handle
from tuner.trials.groups.pools.rank_handle import RankHandle
from tuner.trials.messages.call_lines import CallLines
from tuner.trials.messages.report_socket import ReportServer
from tuner.trials.runtime.calls import Calls

TOKEN = b"0123456789abcdef"
UNAVAILABLE = ray.exceptions.ActorUnavailableError("a connection broke", None)


class Actor:
    """Calls the methods of a rank in threads, as Ray does, and notes their names."""

    def __init__(self, calls: Calls) -> None:
        self._calls, self.asked = calls, []
        self.lost: Exception | None = None
        self.loses: list[tuple[str, str]] = []  # the next messages that are lost: (method, "call" or "answer")

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> asyncio.Future[Any]:
            # Ray would wait for such an argument before the call, and might wait forever.
            assert not any(isinstance(argument, ray.ObjectRef) for argument in arguments)
            self.asked.append((name, *arguments[:1]))
            return asyncio.ensure_future(asyncio.to_thread(self._call, name, arguments))

        return type("Method", (), {"remote": staticmethod(remote)})

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if self.lost is not None:
            raise self.lost
        if (name, "call") in self.loses:
            self.loses.remove((name, "call"))
            raise UNAVAILABLE
        answer = self._calls.make(*arguments) if name == "serial" else getattr(self._calls, name)(*arguments)
        if (name, "answer") in self.loses:
            self.loses.remove((name, "answer"))
            raise UNAVAILABLE
        return answer


class Odd(Exception):
    def __str__(self) -> str:
        raise AttributeError


class Rank:
    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []
        self.threads: set[str] = set()
        self.go = threading.Event()
        self.began = threading.Event()

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        self.threads.add(threading.current_thread().name)
        if method == "train":
            self.began.set()
            assert self.go.wait(30)
        if arguments == ("bad",):
            raise ValueError("no such trial")
        if arguments == ("odd",):
            raise Odd
        self.made.append((method, arguments))
        return len(self.made)


@asynccontextmanager
async def connected(rank: Rank) -> AsyncIterator[tuple[RankHandle, Actor, Calls, CallLines]]:
    lines = CallLines()
    server = ReportServer(lambda *_: None, lines=lines)  # type: ignore[arg-type,return-value]
    address = await server.open("127.0.0.1")
    calls = Calls(rank.call)
    await asyncio.to_thread(calls.open_line, address, TOKEN)
    await until(lambda: lines.get(TOKEN) is not None)
    actor = Actor(calls)
    try:
        yield RankHandle(actor, TOKEN, lines), actor, calls, lines
    finally:
        rank.go.set()
        await server.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.005)


def test_calls_over_a_line_are_made_in_order_in_one_thread() -> None:
    async def main() -> None:
        rank = Rank()
        rank.go.set()
        async with connected(rank) as (handle, actor, _, _):
            answers = [handle.prepare.remote(1), handle.train.remote(), handle.reset.remote(), handle.prepare.remote(2)]
            assert await asyncio.gather(*answers) == [1, 2, 3, 4]
            assert rank.made == [("prepare", (1,)), ("train", ()), ("reset", ()), ("prepare", (2,))]
            assert actor.asked == []
            with pytest.raises(RuntimeError, match="ValueError: no such trial"):
                await handle.prepare.remote("bad")
            assert rank.threads == {"tuner-calls"}

    asyncio.run(main())


def test_a_call_is_answered_also_if_its_error_cannot_be_shown() -> None:
    """The thread that makes the calls ended, and the driver waited for this call and all later ones."""

    async def main() -> None:
        rank = Rank()
        async with connected(rank) as (handle, _, _, _):
            odd, next_one = handle.prepare.remote("odd"), handle.prepare.remote(1)
            async with asyncio.timeout(30):
                with pytest.raises(RuntimeError, match=r"Odd: <Odd.__str__ raised AttributeError>"):
                    await odd
                assert await next_one == 1

    asyncio.run(main())


def test_calls_that_come_through_ray_and_over_the_line_keep_their_order() -> None:
    async def main() -> None:
        rank = Rank()
        rank.go.set()
        async with connected(rank) as (handle, actor, _, lines):
            line = lines._lines.pop(TOKEN)  # the rank has no line yet
            first = handle.prepare.remote(0)
            lines._lines[TOKEN] = line
            later = [handle.train.remote(), handle.reset.remote()]
            assert await asyncio.gather(first, *later) == [1, 2, 3]
            assert [name for name, _ in rank.made] == ["prepare", "train", "reset"]
            assert actor.asked == [("serial", 0)]
            assert rank.threads == {"tuner-calls"}

    asyncio.run(main())


def test_a_reference_to_a_ray_object_goes_through_ray_but_not_as_an_argument_for_which_ray_waits() -> None:
    async def main() -> None:
        rank = Rank()
        reference = ray.ObjectRef.from_random()
        async with connected(rank) as (handle, actor, _, _):
            assert await handle.prepare.remote("launch", reference) == 1
            assert rank.made == [("prepare", ("launch", reference))]
            assert actor.asked == [("serial", 0)]

    asyncio.run(main())


def test_a_broken_line_loses_and_repeats_no_call() -> None:
    async def main() -> None:
        rank = Rank()
        async with connected(rank) as (handle, actor, calls, _):
            prepared, trained = handle.prepare.remote(1), handle.train.remote()
            assert await prepared == 1
            await until(rank.began.is_set)
            assert calls._line is not None
            calls._line.close()  # while the rank trains
            await until(lambda: handle._line is None)
            reset = handle.reset.remote()
            rank.go.set()
            assert (await trained, await reset) == (2, 3)
            assert await handle.prepare.remote(2) == 4
            assert rank.made == [("prepare", (1,)), ("train", ()), ("reset", ()), ("prepare", (2,))]
            assert [name for name, *_ in actor.asked] == ["last_received", "answer_to", "serial", "serial"]

    asyncio.run(main())


def test_calls_that_the_rank_had_not_read_when_the_line_broke_are_sent_through_ray() -> None:
    async def main() -> None:
        rank = Rank()
        async with connected(rank) as (handle, actor, _, lines):
            trained = handle.train.remote()
            await until(rank.began.is_set)
            reset, prepared = handle.reset.remote(), handle.prepare.remote(2)  # they wait in the socket
            lines._lines[TOKEN].cut()
            await until(lambda: len(actor.asked) == 4)
            rank.go.set()
            assert await asyncio.gather(trained, reset, prepared) == [1, 2, 3]
            assert actor.asked == [("last_received",), ("answer_to", 0), ("serial", 1), ("serial", 2)]
            assert [name for name, _ in rank.made] == ["train", "reset", "prepare"]

    asyncio.run(main())


@pytest.mark.parametrize("what", ["call", "answer"])
def test_a_call_that_ray_loses_is_repeated_and_runs_once(what: str) -> None:
    """The calls after a lost one waited for it forever: the next trial of the group was said to hang in the user's code."""

    async def main() -> None:
        rank = Rank()
        rank.go.set()
        async with connected(rank) as (handle, actor, _, lines), asyncio.timeout(30):
            lines._lines.clear()  # all calls go through Ray
            assert await handle.train.remote() == 1
            actor.loses = [("serial", what)]
            reset, prepared = handle.reset.remote(), handle.prepare.remote(2)
            assert await prepared == 3
            assert await reset == 2
            assert rank.made == [("train", ()), ("reset", ()), ("prepare", (2,))]
            assert not actor.loses

    asyncio.run(main())


def test_calls_continue_through_ray_although_it_cannot_reach_the_rank_at_first() -> None:
    """Ray's connection breaks together with the line if the network fails for a moment. The trial failed."""

    async def main() -> None:
        rank = Rank()
        async with connected(rank) as (handle, actor, calls, _), asyncio.timeout(30):
            trained = handle.train.remote()
            await until(rank.began.is_set)
            actor.loses = [("last_received", "call"), ("last_received", "answer"), ("answer_to", "answer")]
            assert calls._line is not None
            calls._line.close()
            await until(lambda: handle._line is None)
            rank.go.set()
            assert (await trained, await handle.reset.remote()) == (1, 2)
            assert not actor.loses

    asyncio.run(main())


def test_a_rank_that_ray_cannot_reach_for_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_handle, "_UNREACHABLE_S", 0.5)

    async def main() -> None:
        async with connected(Rank()) as (handle, actor, _, lines), asyncio.timeout(30):
            lines._lines.clear()
            actor.lost = UNAVAILABLE
            with pytest.raises(ray.exceptions.ActorUnavailableError):
                await handle.train.remote()

    asyncio.run(main())


def test_calls_of_a_process_that_has_ended_raise_the_error_of_ray() -> None:
    async def main() -> None:
        rank = Rank()
        async with connected(rank) as (handle, actor, calls, _):
            trained = handle.train.remote()
            await until(rank.began.is_set)
            actor.lost = ConnectionResetError("the actor died")
            assert calls._line is not None
            calls._line.close()
            with pytest.raises(ConnectionResetError, match="the actor died"):
                await trained
            with pytest.raises(ConnectionResetError, match="the actor died"):
                await handle.reset.remote()

    asyncio.run(main())


class Unreadable:
    """An argument that can be pickled but not unpickled, such as an object of a module that the rank cannot import."""

    def __reduce__(self) -> Any:
        return _missing, ()


def _missing() -> None:
    raise ModuleNotFoundError("no module named 'theirs'")


def test_a_call_that_the_rank_cannot_read_is_sent_through_ray() -> None:
    async def main() -> None:
        rank = Rank()
        rank.go.set()
        async with connected(rank) as (handle, actor, _, _), asyncio.timeout(30):
            assert await handle.prepare.remote(1) == 1
            assert await handle.prepare.remote(Unreadable()) == 2
            assert await handle.train.remote() == 3
            assert actor.asked == [("last_received",), ("serial", 1), ("serial", 2)]

    asyncio.run(main())
