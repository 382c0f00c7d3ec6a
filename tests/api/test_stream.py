"""Server-sent events over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import os
import socket
import stat
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.services import until
from tests.store.examples import T0, a_report, begin
from tuner.api import stream
from tuner.api.server import UNSENT_BYTES, Server
from tuner.domain.batch import Batch, Entry
from tuner.domain.decisions import Finish, Stop
from tuner.domain.events import ModelFitted
from tuner.domain.keys import trial_id
from tuner.domain.states import ExperimentState
from tuner.errors import NotFound
from tuner.store import Store
from tuner.store.writing.writer import Writer


def events(lines: Iterator[str]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield (id, event, data) of each message, without comments."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield int(fields["id"]), fields["event"], json.loads(fields["data"], parse_constant=pytest.fail)
            fields = {}
        else:
            fields = {}


def take(server: str, path: str, count: int, **headers: str) -> list[tuple[int, str, dict[str, Any]]]:
    with httpx.stream("GET", server + path, headers=headers, timeout=20) as response:
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        found = events(response.iter_lines())
        return [next(found) for _ in range(count)]


def test_everything_comes_in_order_and_then_live(server: str, sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store)
    path = f"/api/v1/experiments/{made.public_id}/events"

    def go_on() -> None:
        log = [
            (4, a_report(0, 1, accuracy=math.nan)),
            (5, Stop(reason="bad", trial=0)),
            (6, ModelFitted(time=T0, payload={"big": [1]})),
        ]
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)
        sqlite_store.drivers.commit(
            made.id, epoch, Batch(log=[(7, Finish(reason="done"))], state=ExperimentState.COMPLETED), T0
        )

    with httpx.stream("GET", server + path, timeout=20) as response:
        found = events(response.iter_lines())
        first = [next(found) for _ in range(4)]
        assert [(seq, event) for seq, event, _ in first] == [
            (1, "driver_started"),
            (2, "decision"),
            (3, "segment_started"),
            (3, "experiment"),
        ]
        assert first[3][2]["state"] == "running"
        writer = threading.Thread(target=go_on)
        writer.start()
        live = [next(found) for _ in range(5)]
        writer.join()
    assert [(seq, event) for seq, event, _ in live if event != "experiment"] == [
        (4, "reported"),
        (5, "decision"),
        (6, "model_fitted"),
        (7, "decision"),
    ]
    assert live[-1][1:] == ("experiment", {**live[-1][2], "state": "completed", "seq": 7})
    report, decision, fitted = live[0][2], live[1][2], live[2][2]
    assert report | {"time": ""} == {
        "seq": 4, "time": "", "kind": "reported", "trial_number": 0, "trial_id": trial_id(made.public_id, 0), "segment": 1,
        "report_no": 1, "iteration": 1, "metrics": {"accuracy": None}, "checkpoint": None, "step": None,
    }  # fmt: skip
    assert (decision["kind"], decision["reason"], decision["trial_number"]) == ("stop", "bad", 0)
    assert "payload" not in fitted


def test_a_reconnect_goes_on_where_it_was(server: str, sqlite_store: Store) -> None:
    made, _, _ = begin(sqlite_store, 3)
    path = f"/api/v1/experiments/{made.public_id}/events"
    assert [seq for seq, _, _ in take(server, path, 2, **{"Last-Event-ID": "5"})] == [6, 7]
    assert [seq for seq, _, _ in take(server, path + "?after=4", 3)] == [5, 6, 7]
    assert [seq for seq, _, _ in take(server, path + "?after=2", 1, **{"Last-Event-ID": "6"})] == [7]
    assert take(server, path + "?after=99", 1)[0][1] == "experiment"
    assert [seq for seq, _, _ in take(server, path, 1, **{"Last-Event-ID": "7"})] == [7], "nothing but the state"
    restored = take(server, path + "?after=8", 7, **{"Last-Event-ID": "8"})
    assert [seq for seq, _, _ in restored] == [1, 2, 3, 4, 5, 6, 7], (
        "the stream was silent after a backup had been restored"
    )
    assert httpx.get(server + path, headers={"Last-Event-ID": "x"}).status_code == 422


def test_a_long_log_comes_whole(server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BATCH", 7)
    made, epoch, trials = begin(sqlite_store)
    sqlite_store.drivers.commit(
        made.id, epoch, Batch(log=[(3 + n, a_report(0, n)) for n in range(1, 101)], trials=trials), T0
    )
    found = take(server, f"/api/v1/experiments/{made.public_id}/events", 104)
    assert [seq for seq, _, _ in found] == [*range(1, 104), 103]


def test_the_log_is_read_once_for_all_clients(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, epoch, trials = begin(sqlite_store)
    url = f"{server}/api/v1/experiments/{made.public_id}/events?after=3"
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(12):
            client = stack.enter_context(httpx.Client(timeout=20))
            clients.append(events(stack.enter_context(client.stream("GET", url)).iter_lines()))
        assert {next(client)[1] for client in clients} == {"experiment"}
        reads: list[int] = []
        read = sqlite_store.log.events_after
        monkeypatch.setattr(sqlite_store.log, "events_after", lambda *args: reads.append(args[1]) or read(*args))
        for seq in (4, 5):
            batch = Batch(log=[(seq, a_report(0, seq - 3))], trials=trials)
            sqlite_store.drivers.commit(made.id, epoch, batch, T0)
            assert {next(client)[0] for client in clients} == {seq}
        assert reads == [3, 4]


def test_an_experiment_that_many_reports_were_added_to_is_caught_up_with(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "KEPT", 5)
    made, epoch, trials = begin(sqlite_store)
    url = f"{server}/api/v1/experiments/{made.public_id}/events?after=3"
    with httpx.stream("GET", url, timeout=20) as response:
        found = events(response.iter_lines())
        assert next(found)[1] == "experiment"
        log = [(3 + n, a_report(0, n)) for n in range(1, 30)]
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)
        assert [next(found)[0] for _ in log] == [seq for seq, _ in log]


def test_a_client_that_was_caught_up_with_hears_that_the_experiment_has_ended(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the log came, so a program that followed the experiment to its end waited forever."""
    monkeypatch.setattr(stream, "KEPT", 5)
    monkeypatch.setattr(stream, "COMMENT_S", 600.0)
    made, epoch, trials = begin(sqlite_store)
    url = f"{server}/api/v1/experiments/{made.public_id}/events?after=3"
    with httpx.stream("GET", url, timeout=20) as response:
        found = events(response.iter_lines())
        assert next(found)[2]["state"] == "running"
        log: list[Entry] = [(3 + n, a_report(0, n)) for n in range(1, 30)]
        log.append((33, Finish(reason="done")))
        batch = Batch(log=log, trials=trials, state=ExperimentState.COMPLETED)
        sqlite_store.drivers.commit(made.id, epoch, batch, T0)
        assert [next(found)[0] for _ in log] == [seq for seq, _ in log]
        seq, event, data = next(found)
    assert (seq, event, data["state"]) == (33, "experiment", "completed")


def test_clients_that_read_the_whole_log_share_its_reads_and_hold_up_nobody(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BATCH", 2)
    made, epoch, trials = begin(sqlite_store, 9)  # 19 entries
    url = f"{server}/api/v1/experiments/{made.public_id}/events"
    go, reads, waiting = threading.Event(), [], threading.Semaphore(0)
    missed, wait = stream.Events.missed, stream.Channel.missed
    channels: set[stream.Channel] = set()

    def slowly(form: stream.Events, after: int, upto: int) -> stream.Message:
        reads.append(after)
        go.wait()
        return missed(form, after, upto)

    async def counted(channel: stream.Channel, after: int, limit: asyncio.Semaphore) -> stream.Message:
        channels.add(channel)
        waiting.release()
        return await wait(channel, after, limit)

    monkeypatch.setattr(stream.Events, "missed", slowly)
    monkeypatch.setattr(stream.Channel, "missed", counted)
    with contextlib.ExitStack() as stack:

        def client(after: int) -> Iterator[tuple[int, str, dict[str, Any]]]:
            opened = stack.enter_context(httpx.Client(timeout=20))
            return events(stack.enter_context(opened.stream("GET", f"{url}?after={after}")).iter_lines())

        newest = client(99)
        assert next(newest)[1] == "experiment"
        slow = [client(0) for _ in range(20)] + [client(1), client(2), client(3)]
        stack.callback(go.set)
        for _ in slow:
            assert waiting.acquire(timeout=60)
        batch = Batch(log=[(20, a_report(0, 1))], trials=trials)
        sqlite_store.drivers.commit(made.id, epoch, batch, T0)
        assert next(newest)[0] == 20, "although nobody has caught up yet"
        assert len(reads) <= stream.CATCHING_UP
        go.set()
        assert [next(found)[0] for found in slow] == [1] * 20 + [2, 3, 4]
        assert reads.count(0) == 1
        [channel] = channels
        until("no read is kept once its clients have it", lambda: channel._reads == {})


def _healthy(client: socket.socket) -> None:
    client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_accepted_connections_send_at_once(app: Any) -> None:
    """Check that connections have TCP_NODELAY, also those made before the server took the socket over.

    Without it, the body of every answer on a kept-alive connection came 40 ms after its head.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    with listening, socket.create_connection(listening.getsockname()) as early:
        serving = Server(app, log_level="warning")
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        _healthy(early)  # the server has taken the socket over
        with socket.create_connection(listening.getsockname()) as late:
            _healthy(late)
            for client in (early, late):
                accepted = [of for of in _sockets() if _peer(of) == client.getsockname()]
                assert [of.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0 for of in accepted] == [True]
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections inherit it, so the early one has none
                unsent = [of.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) for of in accepted]
                assert unsent == [UNSENT_BYTES]
        serving.should_exit = True
        thread.join(timeout=10)
        assert not thread.is_alive()


def _sockets() -> list[socket.socket]:
    """Return duplicates of all sockets of this process."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(socket.socket(fileno=os.dup(int(name))))
    return found


def _peer(of: socket.socket) -> Any:
    with contextlib.suppress(OSError):
        return of.getpeername()
    return None


def test_a_quiet_stream_is_kept_open_by_comments(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "COMMENT_S", 0.3)
    made, _, _ = begin(sqlite_store)
    with httpx.stream("GET", f"{server}/api/v1/experiments/{made.public_id}/events?after=3", timeout=20) as response:
        lines = response.iter_lines()
        assert any(line.startswith(": ") for line in lines)


def test_open_streams_end_with_the_service(server: str, sqlite_store: Store, app: Any) -> None:
    made, _, _ = begin(sqlite_store)
    with httpx.stream("GET", f"{server}/api/v1/experiments/{made.public_id}/events", timeout=20) as response:
        found = events(response.iter_lines())
        next(found)
        app.state.context.ending.set()
        assert [event for _, event, _ in found] == ["decision", "segment_started", "experiment"]


def test_a_server_does_not_wait_for_open_streams(server: str, sqlite_store: Store) -> None:
    """The fixture ends the server while this stream is open, and gives it less time than its grace."""
    made, _, _ = begin(sqlite_store)
    client = httpx.Client(timeout=20)
    response = client.send(
        client.build_request("GET", f"{server}/api/v1/experiments/{made.public_id}/events"), stream=True
    )
    assert next(events(response.iter_lines()))[1] == "driver_started"


@pytest.mark.parametrize("form", ["events", "changes"])
def test_a_stream_of_what_is_being_deleted_ends_and_the_others_go_on(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    path = f"{server}/api/v1/experiments"
    other, epoch, _ = begin(sqlite_store)
    made, last, trials = begin(sqlite_store)
    with (
        httpx.stream("GET", f"{path}/{other.public_id}/events?after=3", timeout=20) as kept,
        httpx.stream("GET", f"{path}/{made.public_id}/{form}?after=3", timeout=20) as ending,
    ):
        found, lines = events(kept.iter_lines()), ending.iter_lines()
        assert (next(found)[1], next(events(lines))[0]) == ("experiment", 3)
        # The last report and the beginning of the deletion come between two polls.
        with sqlite_store._database.write() as cursor:
            Writer(cursor, made.id, last).write(cursor, Batch(log=[(4, a_report(0, 1))], trials=trials), T0 + 2)
            cursor.execute(
                "DELETE FROM segment WHERE trial_id IN (SELECT id FROM trial WHERE experiment_id = ?)", (made.id,)
            )
        assert list(events(lines)) == []
        sqlite_store.drivers.commit(other.id, epoch, Batch(log=[(4, a_report(0, 1))], trials=[]), T0 + 2)
        assert next(found)[1] == "reported"


async def test_experiments_that_nobody_follows_any_more_are_not_read(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "POLL_ENDED_S", 0.1)
    ended, epoch, _ = begin(sqlite_store)
    batch = Batch(log=[(4, Finish(reason="done"))], state=ExperimentState.COMPLETED)
    sqlite_store.drivers.commit(ended.id, epoch, batch, T0)
    running, _, _ = begin(sqlite_store)
    tail = stream.Tail(sqlite_store, threading.Event())
    async with asyncio.timeout(10):
        with tail.follow(stream.Events(sqlite_store, ended)) as channel:
            await channel.changed.wait()
            assert tail._interval() == stream.POLL_ENDED_S
            with tail.follow(stream.Events(sqlite_store, running)):
                assert tail._interval() < stream.POLL_ENDED_S, "whether it has ended is not known yet"
        assert tail._task is not None
        await tail._task


def test_a_read_that_fails_after_its_client_has_left_is_not_logged(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service's log had "Task exception was never retrieved", with a traceback, if the experiment was deleted meanwhile."""
    begun, gone = threading.Event(), threading.Event()

    def missed(form: stream.Events, after: int, upto: int) -> stream.Message:
        begun.set()
        assert gone.wait(60)
        raise NotFound("the experiment is being deleted")

    monkeypatch.setattr(stream.Events, "missed", missed)
    channel = stream.Channel(stream.Events(sqlite_store, begin(sqlite_store)[0]))

    async def leave() -> list[dict[str, Any]]:
        logged: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: logged.append(about))
        client = asyncio.create_task(channel.missed(0, asyncio.Semaphore()))
        assert await asyncio.to_thread(begun.wait, 60)
        client.cancel()
        await asyncio.wait([client])
        read = next(iter(channel._reads.values()))
        gone.set()
        await asyncio.wait([read])
        del client, read
        gc.collect()
        return logged

    assert asyncio.run(leave()) == []


def test_an_experiment_that_cannot_be_shown_ends_no_stream_of_others(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{server}/api/v1/experiments"
    other, epoch, _ = begin(sqlite_store)
    broken, last, trials = begin(sqlite_store)
    since = sqlite_store.changes.since

    def read(experiment: int, *args: Any) -> Any:
        if experiment == broken.id:
            raise ValueError("cannot be shown")
        return since(experiment, *args)

    monkeypatch.setattr(type(sqlite_store.changes), "since", lambda self, *args: read(*args))
    with (
        httpx.stream("GET", f"{path}/{other.public_id}/changes?after=3", timeout=20) as kept,
        httpx.stream("GET", f"{path}/{broken.public_id}/changes?after=3", timeout=20) as ending,
    ):
        found, lines = events(kept.iter_lines()), ending.iter_lines()
        assert (next(found)[0], next(events(lines))[0]) == (3, 3)
        sqlite_store.drivers.commit(broken.id, last, Batch(log=[(4, a_report(0, 1))], trials=trials), T0 + 2)
        assert list(events(lines)) == []
        sqlite_store.drivers.commit(other.id, epoch, Batch(log=[(4, a_report(0, 1))], trials=[]), T0 + 2)
        assert next(found)[0] == 4
