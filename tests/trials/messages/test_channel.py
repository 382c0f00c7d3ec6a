from __future__ import annotations

import socket
import threading

import pytest

from tuner.trials.messages.channel import ChannelClient, ChannelServer, PeerLost

TOKEN = b"0123456789abcdef"


def star(size: int) -> tuple[ChannelServer, list[ChannelClient]]:
    server = ChannelServer("127.0.0.1", TOKEN)
    clients: dict[int, ChannelClient] = {}

    def connect(rank: int) -> None:
        clients[rank] = ChannelClient(server.address, TOKEN, rank, 5)

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in range(1, size)]
    for thread in threads:
        thread.start()
    server.accept(size, 5)
    for thread in threads:
        thread.join()
    return server, [clients[rank] for rank in range(1, size)]


def test_a_broadcast_reaches_every_rank_in_order() -> None:
    server, clients = star(4)
    for number in range(100):
        server.broadcast({"number": number, "text": "x" * number * 100})
    for client in clients:
        assert [client.verdicts.receive(5)["number"] for _ in range(100)] == list(range(100))
    server.close()
    for client in clients:
        client.close()


def test_notes_go_both_ways_and_apart_from_verdicts() -> None:
    server, (one, two) = star(3)
    server.broadcast("verdict")
    server.notes[1].send("want")
    assert one.notes.receive(5) == "want"
    one.notes.send("have")
    assert server.notes[1].receive(5) == "have"
    assert one.verdicts.receive(5) == two.verdicts.receive(5) == "verdict"
    for end in (server, one, two):
        end.close()


def test_a_lost_peer_is_seen_at_once_on_either_side() -> None:
    server, (one, two) = star(3)
    one.close()
    with pytest.raises(PeerLost):
        server.notes[1].receive(5)
    with pytest.raises(PeerLost, match="the peer is gone"):
        for _ in range(1000):  # the first one finds out
            server.notes[1].send("want")
    server.close()
    with pytest.raises(PeerLost):
        two.verdicts.receive(5)
    two.close()


def test_closing_wakes_a_reader_in_another_thread() -> None:
    server, (one,) = star(2)
    caught: list[BaseException] = []

    def read() -> None:
        try:
            one.notes.receive()
        except PeerLost as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    one.close()
    thread.join(5)
    assert caught
    server.close()


def test_a_timeout_is_a_timeout() -> None:
    server, (one,) = star(2)
    with pytest.raises(TimeoutError):
        one.verdicts.receive(0.05)
    server.close()
    one.close()


def test_strangers_are_turned_away_and_a_missing_rank_is_named() -> None:
    server = ChannelServer("127.0.0.1", TOKEN)
    stranger = socket.create_connection(server.address)
    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\0" * 16)
    wrong = socket.create_connection(server.address)
    wrong.sendall(b"f" * 16 + b"\0\0\0\0\1")
    with pytest.raises(PeerLost, match=r"ranks \[1\] did not connect within 0 s"):
        server.accept(2, 0.3)
    assert not server.verdicts
    server.close()
    stranger.close()
    wrong.close()


def test_a_rank_that_finds_no_rank_0_has_lost_its_peer() -> None:
    """A ConnectionRefusedError or a timeout would count as a failure of the user's code."""
    server = ChannelServer("127.0.0.1", TOKEN)
    server.close()
    with pytest.raises(PeerLost, match=rf"rank 0 cannot be reached at 127.0.0.1:{server.address[1]}: .*refused"):
        ChannelClient(server.address, TOKEN, 1, 5)


def test_nobody_listens_once_all_have_come() -> None:
    server, (one,) = star(2)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.address, timeout=1)
    server.close()
    one.close()
