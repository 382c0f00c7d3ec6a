"""The thread of a host that writes to the database makes all writes, in order, whatever happens to who waits for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tuner.errors import Retryable
from tuner.hosts.measures.metrics import Histogram
from tuner.hosts.writer import Writer


@pytest.fixture
def writer() -> Iterator[Writer]:
    writer = Writer(Histogram())
    yield writer
    writer.close()


async def test_writes_are_made_one_after_another_and_errors_reach_the_caller(writer: Writer) -> None:
    made: list[int] = []
    threads: set[threading.Thread] = set()

    def write(number: int) -> int:
        made.append(number)
        threads.add(threading.current_thread())
        if number == 1:
            raise ValueError("a bug")
        return number

    answers = await asyncio.gather(*(writer.write(write, number) for number in range(4)), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["0", "a bug", "2", "3"]
    assert made == [0, 1, 2, 3]
    assert [thread.name for thread in threads] == ["tuner-writer"]
    assert writer.failed_at == float("-inf"), "the database could be reached"

    def unreachable() -> None:
        raise Retryable("the disk is full")

    with pytest.raises(Retryable):
        await writer.write(unreachable)
    assert writer.failed_at > 0


async def test_a_caller_that_is_cancelled_waits_for_the_end_of_its_write(writer: Writer) -> None:
    """Otherwise it could release its lease before its last batch is committed."""
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)  # it would tell that nobody has asked for the error

    def write() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(20)
        raise ValueError("a bug")

    caller = asyncio.create_task(writer.write(write))
    await asyncio.wait_for(begun.wait(), 20)
    caller.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not caller.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(caller, 20)


def test_a_caller_whose_loop_has_ended_keeps_no_other_write_from_being_made(writer: Writer) -> None:
    go_on, made = threading.Event(), threading.Event()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it would tell that the callers are still waiting
    waiting = [loop.create_task(writer.write(function)) for function in (go_on.wait, made.set)]
    loop.run_until_complete(asyncio.sleep(0))
    assert writer.queue >= 1
    loop.close()
    writer.close()
    go_on.set()
    assert made.wait(20), "writes that wait are made before the thread ends"
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(writer.write(made.set))
    assert len(waiting) == 2


def test_writes_that_wait_are_made_before_the_process_exits() -> None:
    code = """
import asyncio, time
from tuner.hosts.measures.metrics import Histogram
from tuner.hosts.writer import Writer

loop, writer = asyncio.new_event_loop(), Writer(Histogram())
waiting = [loop.create_task(writer.write(*call)) for call in ((time.sleep, 0.2), (print, "written"))]
loop.run_until_complete(asyncio.sleep(0))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "written\n"
