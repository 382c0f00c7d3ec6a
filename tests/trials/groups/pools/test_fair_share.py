"""The rule that shares a cluster among experiments: who is next, and that nobody starves."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.trials.groups.pools import fair_share
from tuner.trials.groups.pools.fair_share import Claim, Gang, Room, Running, Shares

ONE_CPU = Gang((("CPU", 1.0),))


def cpus(workers: int, each: float = 1.0, strategy: str = "PACK") -> Gang:
    return Gang((("CPU", each),), workers, strategy)


@dataclass
class Busy:
    """An experiment that always wants another group. Each of its groups runs for `seconds`."""

    gang: Gang = ONE_CPU
    seconds: float = 10.0
    priority: int = 0
    weight: float = 1.0
    most: int = 10**6  # groups at a time


@dataclass
class Cluster:
    """Runs busy experiments in virtual time by the rule, as the pool does."""

    nodes: Mapping[str, Mapping[str, float]]
    experiments: Mapping[str, Busy]
    reserve_after_s: float = 30.0
    shares: Shares = field(default_factory=lambda: Shares(half_life_s=600.0, starved_s=300.0))
    now: float = 0.0
    started: list[tuple[float, str]] = field(default_factory=list)
    seconds: Counter[str] = field(default_factory=Counter)

    def run(self, until: float) -> None:
        self.shares.set_nodes(self.nodes)
        numbers, ends = itertools.count(), list[tuple[float, int, str]]()
        since = dict.fromkeys(self.experiments, 0.0)
        while self.now < until:
            while found := self.shares.next_grant(self.claims(since), self.now, reserve_after_s=self.reserve_after_s):
                claim, at = found
                assert self.shares.room.fits_at(claim.gang, at), "a gang is placed whole, into what is free"
                number, name = next(numbers), claim.experiment
                self.shares.hold(number, name, claim.gang, at, self.now)
                heapq.heappush(ends, (self.now + self.experiments[name].seconds, number, name))
                self.started.append((self.now, name))
                self.seconds[name] += self.experiments[name].seconds * claim.gang.workers
                since[name] = self.now
            self.check_work_conservation(since)
            if not ends:
                break
            end, number, _ = heapq.heappop(ends)
            self.now = min(end, self.now + 10.0) if end > self.now + 10.0 else end
            if self.now < end:
                heapq.heappush(ends, (end, number, _))
            else:
                self.shares.release(number, self.now)

    def claims(self, since: Mapping[str, float]) -> list[Claim]:
        return [
            Claim(name, busy.gang, since[name], busy.priority, busy.weight)
            for name, busy in self.experiments.items()
            if self.shares.groups(name) < busy.most
        ]

    def check_work_conservation(self, since: Mapping[str, float]) -> None:
        """Check that nobody waits for what is free, unless it is kept for a group that has waited for long."""
        claims = self.claims(since)
        if not any(self.now - claim.since >= self.reserve_after_s for claim in claims):
            assert not any(self.shares.room.place(claim.gang) for claim in claims)


def jain(values: Sequence[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def test_twenty_equal_experiments_on_two_cpus_get_their_first_trials_in_turn() -> None:
    names = [f"exp_{n}" for n in range(20)]
    cluster = Cluster({"a": {"CPU": 2.0}}, {name: Busy() for name in names})
    cluster.run(1000.0)
    assert sorted(name for _, name in cluster.started[:20]) == sorted(names)
    assert jain([cluster.seconds[name] for name in names]) >= 0.95


def test_time_counts_and_not_the_number_of_trials() -> None:
    cluster = Cluster({"a": {"CPU": 4.0}}, {"long": Busy(seconds=60.0), "short": Busy(seconds=3.0)})
    cluster.run(3000.0)
    assert jain(list(cluster.seconds.values())) > 0.97


def test_dominant_shares_are_equal_as_in_the_paper() -> None:
    """Ghodsi et al. 2011, section 4.1: 9 CPUs and 18 GB; A's tasks need 1 CPU and 4 GB, B's 3 CPUs and 1 GB."""
    shares = Shares()
    shares.set_nodes({"a": {"CPU": 9.0, "memory": 18.0}})
    claims = [
        Claim("A", Gang((("CPU", 1.0), ("memory", 4.0))), 0.0),
        Claim("B", Gang((("CPU", 3.0), ("memory", 1.0))), 0.0),
    ]
    for number in itertools.count():
        if (found := shares.next_grant(claims, 0.0, reserve_after_s=30.0)) is None:
            break
        shares.hold(number, found[0].experiment, found[0].gang, found[1], 0.0)
    assert (shares.groups("A"), shares.groups("B")) == (3, 2)
    assert shares.share("A") == shares.share("B") == pytest.approx(2 / 3)


def test_a_large_gang_gets_its_turn_in_a_stream_of_small_trials() -> None:
    """Each of the small trials ends at another time, so four CPUs are never free by themselves."""
    small = {f"small_{n}": Busy(seconds=7.0 + n) for n in range(6)}
    cluster = Cluster({"a": {"CPU": 4.0}}, {"gang": Busy(cpus(4), seconds=5.0), **small})
    cluster.started.append((0.0, "seen"))
    cluster.experiments["gang"].most = 1
    cluster.run(2000.0)
    times = [at for at, name in cluster.started if name == "gang"]
    assert len(times) > 10
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 300


def test_a_higher_priority_comes_first_and_a_lower_one_still_moves() -> None:
    cluster = Cluster({"a": {"CPU": 2.0}}, {"high": Busy(priority=10), "low": Busy()})
    cluster.run(6000.0)
    assert cluster.seconds["high"] > 20 * cluster.seconds["low"]
    times = [at for at, name in cluster.started if name == "low"]
    assert times, "after `starved_s` it gets a group"
    assert max(later - earlier for earlier, later in itertools.pairwise([0.0, *times])) <= 300 + 20


def test_what_was_used_long_ago_is_forgotten() -> None:
    shares = Shares(half_life_s=100.0)
    shares.set_nodes({"a": {"CPU": 2.0}})
    shares.hold("g", "exp", ONE_CPU, ["a"], 0.0)
    assert shares.level("exp", 1.0, 0.0) == 0.5, "as it is not known how long its groups take"
    shares.release("g", 100.0)
    assert shares.level("exp", 1.0, 100.0) == pytest.approx(0.25)
    assert shares.level("exp", 2.0, 1100.0) == pytest.approx(0.25 / 1024 / 2)


def test_a_claim_that_has_its_turn_and_no_room_does_not_hold_up_those_that_fit() -> None:
    shares = Shares()
    shares.set_nodes({"a": {"CPU": 2.0}}, {"CPU": 1.0})
    claims = [Claim("large", cpus(2), 0.0, pending=True), Claim("large", cpus(2), 1.0), Claim("small", ONE_CPU, 2.0)]
    assert shares.next_grant(claims, 10.0, reserve_after_s=30.0) == (claims[2], ("a",))
    assert shares.next_grant(claims, 31.0, reserve_after_s=30.0) is None, "by now room is kept for it"


def test_a_pending_claim_gets_an_idle_group_when_it_is_its_turn() -> None:
    shares = Shares()
    shares.set_nodes({"a": {"CPU": 1.0}})
    first = [Claim("unlucky", ONE_CPU, 0.0, pending=True), Claim("other", ONE_CPU, 1.0)]
    assert shares.next_grant(first, 6.0, reserve_after_s=30.0) is None, "Ray is about to place it"
    shares.hold(1, "other", ONE_CPU, ["a"], 0.0)
    shares.release(1, 5.0)
    claims = [Claim("other", ONE_CPU, 1.0), Claim("unlucky", ONE_CPU, 2.0, pending=True)]
    warm = {"unlucky": [["a"]], "other": [["a"]]}
    assert shares.next_grant(claims, 6.0, reserve_after_s=30.0, warm=warm) == (claims[1], ("a",))


def test_room_is_kept_only_where_the_gang_will_go() -> None:
    shares = Shares()
    shares.set_nodes({"a": {"CPU": 4.0, "GPU": 4.0}, "b": {"CPU": 8.0}})
    shares.hold(1, "other", Gang((("CPU", 1.0), ("GPU", 1.0)), 3), ["a"] * 3, 0.0)
    gpus = Claim("gpus", Gang((("CPU", 1.0), ("GPU", 1.0)), 2), 0.0)
    small = Claim("small", ONE_CPU, 1.0)
    assert shares.next_grant([gpus, small], 60.0, reserve_after_s=30.0) == (small, ("b",))
    shares.hold(2, "small", cpus(8), ["b"] * 8, 60.0)
    assert shares.next_grant([gpus, small], 60.0, reserve_after_s=30.0) is None


def full(**priorities: int) -> tuple[Shares, list[Running]]:
    """Return a full cluster of four CPUs, and its groups: experiments hold one each, in the order of the arguments."""
    shares = Shares()
    shares.set_nodes({"a": {"CPU": 2.0}, "b": {"CPU": 2.0}})
    running = []
    for number, (name, priority) in enumerate(priorities.items()):
        experiment, node = name.partition("_")[0], "ab"[number // 2]
        shares.hold(name, experiment, ONE_CPU, [node], float(number))
        running.append(Running(name, experiment, ONE_CPU, (node,), float(number), priority))
    return shares, running


def chosen(found: tuple[Claim, list[Running]] | None) -> list[str]:
    return [one.name for one in found[1]] if found is not None else []


def test_the_newest_groups_of_the_lowest_priority_make_room() -> None:
    shares, running = full(mid=1, low_1=0, low_2=0, top=9)
    assert chosen(shares.make_room([Claim("new", ONE_CPU, 0.0, priority=5)], running, 10.0)) == ["low_2"]
    assert chosen(shares.make_room([Claim("new", cpus(2), 0.0, priority=5)], running, 10.0)) == ["low_2", "low_1"]
    assert chosen(shares.make_room([Claim("new", cpus(4), 0.0, priority=5)], running, 10.0)) == []
    assert chosen(shares.make_room([Claim("new", ONE_CPU, 0.0, priority=0)], running, 10.0)) == []


def test_no_more_groups_end_than_have_to() -> None:
    shares, running = full(a_1=0, a_2=0, b_1=0, b_2=0)
    together = Claim("new", cpus(2, strategy="STRICT_PACK"), 0.0, priority=1)
    assert chosen(shares.make_room([together], running[1:], 10.0)) == ["b_2", "b_1"]
    ending = [dataclasses.replace(one, ending=one.name.startswith("b")) for one in running]
    assert chosen(shares.make_room([together], ending, 10.0)) == [], "that is on its way"


def test_a_claim_that_cannot_be_helped_does_not_hold_up_the_next() -> None:
    shares, running = full(a=0, b=0, c=0, d=0)
    claims = [Claim("huge", cpus(9), 0.0, priority=9), Claim("new", ONE_CPU, 0.0, priority=5)]
    found = shares.make_room(claims, running, 10.0)
    assert found is not None
    assert (found[0].experiment, len(found[1])) == ("new", 1)


def test_an_experiment_above_its_share_makes_room_for_an_equal_that_has_nothing() -> None:
    shares, running = full(big_1=0, big_2=0, big_3=0, small=0)
    new = Claim("new", ONE_CPU, 0.0)
    assert chosen(shares.make_room([new], running, 30.0, after_s=60.0)) == [], "it has not waited for long"
    assert chosen(shares.make_room([new], running, 90.0, after_s=60.0)) == ["big_3"]
    assert chosen(shares.make_room([Claim("small", ONE_CPU, 0.0)], running, 90.0, after_s=60.0)) == []
    shares.release("big_3", 90.0)
    shares.hold("other", "other", ONE_CPU, ["b"], 90.0)
    shares.release("big_2", 90.0)
    shares.hold("third", "third", ONE_CPU, ["a"], 90.0)
    equal = [running[0], running[3]]
    assert chosen(shares.make_room([new], equal, 200.0, after_s=60.0)) == [], "each has one"


@pytest.mark.parametrize(
    ("gang", "nodes"),
    [
        (cpus(3), ("b", "b", "b")),
        (cpus(5), ("b", "b", "b", "b", "a")),
        (cpus(7), None),
        (cpus(2, strategy="STRICT_PACK"), ("a", "a")),
        (cpus(3, strategy="STRICT_PACK"), ("b", "b", "b")),
        (cpus(5, strategy="STRICT_PACK"), None),
        (cpus(2, strategy="STRICT_SPREAD"), ("b", "a")),
        (cpus(3, strategy="STRICT_SPREAD"), None),
        (cpus(3, strategy="SPREAD"), ("b", "a", "b")),
        (Gang(()), ("a",)),
    ],
)
def test_gangs_are_placed_by_their_strategy(gang: Gang, nodes: tuple[str, ...] | None) -> None:
    assert Room({"a": {"CPU": 2.0}, "b": {"CPU": 4.0}}).place(gang) == nodes


gangs = st.builds(cpus, st.integers(1, 4), st.sampled_from([0.5, 1.0]), st.sampled_from(["PACK", "SPREAD"]))
busy = st.builds(
    Busy, gangs, st.floats(1.0, 50.0), st.integers(0, 2), st.sampled_from([0.5, 1.0, 3.0]), st.integers(1, 3)
)


@settings(max_examples=15, deadline=None)
@given(st.lists(busy, min_size=1, max_size=6), st.integers(1, 3))
def test_nobody_starves_and_nothing_is_left_idle(experiments: list[Busy], nodes: int) -> None:
    names = [f"exp_{n}" for n in range(len(experiments))]
    there = {f"node_{n}": {"CPU": 4.0} for n in range(nodes)}
    cluster = Cluster(there, dict(zip(names, experiments, strict=True)))
    cluster.run(4000.0)
    assert {name for _, name in cluster.started} == set(names)
    for name in names:
        times = [at for at, who in cluster.started if who == name]
        own = cluster.experiments[name].seconds
        gaps = [later - earlier for earlier, later in itertools.pairwise([*times, 4000.0])]
        assert max(gaps) < own + 300 + 400 * len(names), "it gets a group again and again"


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=2, max_size=5), st.integers(2, 8))
def test_shares_follow_the_weights(weights: list[float], slots: int) -> None:
    names = [f"exp_{n}" for n in range(len(weights))]
    experiments = {name: Busy(seconds=4.0, weight=weight) for name, weight in zip(names, weights, strict=True)}
    cluster = Cluster({"a": {"CPU": float(slots)}}, experiments)
    cluster.run(4000.0)
    per_weight = [cluster.seconds[name] / experiments[name].weight for name in names]
    assert jain(per_weight) > 0.98


@pytest.mark.parametrize("strategy", ["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])
def test_gangs_go_to_the_same_nodes_however_the_room_has_changed(strategy: str) -> None:
    """Compare a room that has changed many times with a new one that has the same free resources."""
    rng = random.Random(strategy)
    room = Room({f"node{number}": {"CPU": 8.0, "GPU": 2.0} for number in range(12)})
    bundles = [(("CPU", 1.0),), (("CPU", 0.5), ("GPU", 1.0)), (("CPU", 3.0),)]
    placed: list[tuple[Gang, tuple[str, ...]]] = []
    refused = 0
    for _ in range(600):
        gang = Gang(rng.choice(bundles), rng.randint(1, 6), strategy)
        same = Room(room.total)
        same.free = {node: dict(resources) for node, resources in room.free.items()}
        nodes = room.place(gang)
        assert nodes == same.place(gang)
        if rng.random() < 0.02:
            room.reserve(gang)
        elif nodes is not None and rng.random() < 0.6:
            room.take(gang, nodes)
            placed.append((gang, nodes))
        elif placed:
            refused += nodes is None
            room.take(*placed.pop(rng.randrange(len(placed))), -1)
    assert refused


def test_a_gang_is_placed_without_a_look_at_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room({f"node{number}": {"GPU": 8.0} for number in range(1000)})
    gang = Gang((("GPU", 1.0),), 4)
    room.place(gang)  # the first look at this kind of worker
    assert room.holds(gang)
    looks = 0
    times = fair_share._times

    def counted(gang: Gang, resources: Mapping[str, float]) -> int:
        nonlocal looks
        looks += 1
        return times(gang, resources)

    monkeypatch.setattr(fair_share, "_times", counted)
    for _ in range(100):
        nodes = room.place(gang)
        assert nodes is not None
        assert room.holds(gang)
        room.take(gang, nodes)
    assert looks == 100, "only the node that got the workers"
