"""Searches on a cluster whose nodes have addresses of their own, and what happens when nodes and links fail."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest

from tests.nodes.conftest import NewCluster
from tests.nodes.watching import DEADLINE_S, Search, training, until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(500)]

NOTICED_S = 20.0
"""Seconds within which a cut link must be noticed."""


def test_ranks_meet_over_the_bridge_with_the_address_of_rank_0(new_cluster: NewCluster) -> None:
    cluster = new_cluster((2, 2))
    addresses = cluster.network.addresses[1:]
    search = Search(cluster)
    search.completes(cluster.search("ddp", pause=0.0))
    seats = [json.loads(found) for found in re.findall(r"seats (\[.*\])", cluster.output.read_text())]
    assert len(seats) == 2
    for first, second in seats:
        assert [first[:2], second[:2]] == [[0, 0], [1, 0]], "node_rank and local_rank"
        assert first[2] == second[2]
        assert first[2] in addresses
        assert first[3] == second[3] == "eth0"
    for trial in search.segments():
        assert search.trained_on(trial) == [set(addresses)], "nodes of one host name are named by their addresses"


def test_a_slow_link_is_no_cut_link(new_cluster: NewCluster) -> None:
    cluster = new_cluster((1, 1))
    print(cluster.network.slow(2, mbit=8, delay_ms=50))
    search = Search(cluster)
    search.completes(cluster.search("one", pause=0.0, ballast=1_000_000, steps=10), iterations=10)
    assert search.failures() == []
    [[segment]] = search.segments().values()
    assert segment.ended_at is not None
    assert segment.started_at is not None
    assert segment.ended_at - segment.started_at > 10 * 0.9, "ten times a megabyte each way, over 8 Mbit/s"


def test_checkpoints_travel_from_node_to_node(new_cluster: NewCluster) -> None:
    cluster = new_cluster((1, 1))
    search = Search(cluster)
    search.completes(cluster.search("copies", steps=12, pause=0.1, meet=str(cluster.folder / "begun")), iterations=12)
    places: dict[tuple[int | None, int | None], str] = {
        (trial, found.ordinal): found.placement["ranks"][0]["host"]
        for trial, segments in search.segments().items()
        for found in segments
    }
    travelled = [
        found
        for trial, segments in search.segments().items()
        for found in segments
        if str(found.cause) == "exploit"
        and places[found.source_trial, found.source_ordinal] != places[trial, found.ordinal]
    ]
    assert travelled, places
    assert all(s.start_iteration > 0 for s in travelled)
    for number in (1, 2):
        assert list(cluster.disk(number).rglob("model.pt")), "each node saves on its own disk"
    assert search.failures() == []


def test_a_cut_link_is_noticed_soon_and_both_trials_go_on(new_cluster: NewCluster) -> None:
    cluster = new_cluster((2, 1, 1))  # each trial needs two nodes, so both use node 1
    search = Search(cluster)
    script = cluster.search("ddp", steps=60)
    training(search)
    before, begun = search.iterations(), time.time()
    cut = cluster.network.addresses[1]
    cluster.network.cut(1)
    failures = until("both failures", lambda: len(search.failures()) == 2 and search.failures())
    for at, trial, failure in failures:
        print(f"trial {trial}: noticed after {at - begun:.1f} s")
        assert at - begun < NOTICED_S
        assert (failure.kind, failure.cause, failure.node) == ("system", "node_unreachable", cut)
        assert "has not answered for 12 s" in failure.message
    others = set(cluster.network.addresses[2:])
    gone_on = until("one trial on the others", lambda: [t for t in (0, 1) if others in search.trained_on(t)])
    cluster.network.mend(1)  # before Ray has noticed anything
    [waits] = {0, 1} - set(gone_on[:1])
    until("both trials", lambda: len(search.trained_on(waits)) > 1 and search.trained_on(waits)[-1])
    search.completes(script, iterations=60)
    for trial, segments in search.segments().items():
        assert len(segments) == 2, "nothing was lost again"
        assert segments[1].start_iteration >= before[trial] - 1, "from the newest checkpoint"


def test_a_node_that_stays_away_is_left_out(new_cluster: NewCluster) -> None:
    cluster = new_cluster((1, 1, 1))
    search = Search(cluster)
    script = cluster.search("one", steps=40)
    training(search, trials=1)
    [used] = search.trained_on(0)
    lost = sorted(used)[-1]
    begun = time.time()
    cluster.network.cut(cluster.network.addresses.index(lost))
    search.completes(script, iterations=40)
    [(at, _, failure)] = search.failures()
    print(f"noticed after {at - begun:.1f} s, the script ended after {time.time() - begun:.1f} s")
    assert at - begun < NOTICED_S
    assert failure.node == lost
    assert lost not in search.trained_on(0)[-1]


def test_two_nodes_that_cannot_reach_each_other(new_cluster: NewCluster) -> None:
    cluster = new_cluster((1, 1, 1))
    search = Search(cluster)
    script = cluster.search("one", steps=40)
    training(search, trials=1)
    [used] = search.trained_on(0)
    begun = time.time()
    cluster.network.part(*(cluster.network.addresses.index(address) for address in used))
    search.completes(script, iterations=40)
    at, _, failure = search.failures()[0]
    print(f"noticed after {at - begun:.1f} s")
    assert at - begun < NOTICED_S
    assert (failure.kind, failure.cause) == ("system", "node_unreachable")
    assert re.search(r"it cannot reach rank 0 at 10\.213\.", failure.message)
    assert len(search.failures()) == 1
    assert search.trained_on(0)[-1] != used


def test_two_nodes_without_rank_0_that_cannot_reach_each_other(new_cluster: NewCluster) -> None:
    cluster = new_cluster((1, 1, 1, 1))
    search = Search(cluster)
    script = cluster.search("three", steps=40)
    training(search, trials=1)
    seats = [rank["host"] for rank in search.segments()[0][0].placement["ranks"]]
    begun = time.time()
    cluster.network.part(*(cluster.network.addresses.index(address) for address in seats[1:]))
    search.completes(script, iterations=40)
    at, _, failure = search.failures()[0]
    print(f"noticed after {at - begun:.1f} s")
    assert at - begun < NOTICED_S
    assert (failure.kind, failure.cause, failure.rank) == ("system", "node_unreachable", 2)
    assert failure.message.endswith(f"it cannot reach rank 1 at {seats[1]}")
    assert len(search.failures()) == 1
    assert not {*seats[1:]} <= search.trained_on(0)[-1]


def test_a_link_that_is_cut_while_a_group_is_being_started(new_cluster: NewCluster) -> None:
    cluster = new_cluster((1, 1, None))
    search = Search(cluster)
    script = cluster.search("one", pause=0.1)

    def is_starting() -> bool:
        for pid in cluster.network.processes(2, r"^\S*bin/python\S* .*(fork_server|default_worker)|^ray::"):
            os.kill(pid, signal.SIGSTOP)  # no worker of node 2 says that it has started
        return bool(cluster.network.processes(1, "^ray::RayRank"))

    until("a rank on node 1", is_starting)
    cluster.start_node(3, 1)
    assert search.segments()[0][0].started_at is None
    begun = time.time()
    cluster.network.cut(2)
    search.completes(script)
    [[segment]] = search.segments().values()
    assert segment.started_at is not None
    print(f"started elsewhere after {segment.started_at - begun:.1f} s")
    assert segment.started_at - begun < NOTICED_S + 10.0, "the ranks need some seconds to start"
    assert search.trained_on(0) == [{cluster.network.addresses[1], cluster.network.addresses[3]}]
    assert search.failures() == []


def test_a_node_that_vanishes_and_one_that_comes_instead(new_cluster: NewCluster) -> None:
    cluster = new_cluster((1, 1))
    search = Search(cluster)
    script = cluster.search("one", steps=40)
    training(search, trials=1)
    begun = time.time()
    cluster.network.kill(2)
    [(at, _, failure)] = until("the failure", search.failures)
    print(f"noticed after {at - begun:.1f} s: {failure.message}")
    assert (failure.kind, failure.cause) == ("system", "node_lost")
    assert at - begun < NOTICED_S
    cluster.start_node(2, 1)
    search.completes(script, iterations=40)
    assert search.trained_on(0) == [set(cluster.network.addresses[1:])] * 2
    assert search.segments()[0][1].start_iteration >= 3


def test_the_death_of_the_head(new_cluster: NewCluster) -> None:
    cluster = new_cluster((1, 1))
    search = Search(cluster)
    script = cluster.search("one", number=1, steps=60)  # a script on the head's node would die with it
    training(search, trials=1)
    begun = time.time()
    cluster.network.kill(0)
    assert script.wait(timeout=DEADLINE_S) != 0
    print(f"the script ended after {time.time() - begun:.1f} s: {search.output()[-1500:]}")
    for number in (1, 2):
        cluster.network.kill(number)
    cluster.start_head()
    for number in (1, 2):
        cluster.start_node(number, 1)
    reached = search.iterations()[0]
    resumed = cluster.search("resume", number=1)
    search.completes(resumed, iterations=60)
    assert search.segments()[0][-1].start_iteration >= reached - 1
