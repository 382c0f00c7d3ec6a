"""Decide which experiment gets the next worker group on a shared cluster. This module uses neither a clock nor Ray.

The rule is dominant resource fairness with decaying usage:

- An experiment's *dominant share* is the largest fraction of any cluster resource that its groups hold
  (Ghodsi et al., "Dominant Resource Fairness", NSDI 2011).
- Its *usage* is its recent average dominant share. The average decays with a half-life, like the usage in Slurm's
  multifactor priority and in Kueue's admission fair sharing. So experiments that cannot all run at once take turns, and
  an experiment that has been idle for a long time does not accumulate unlimited credit.
- Its *level* is the usage that it is expected to have when its current groups end, divided by its weight. These groups
  are expected to run for as long as the experiment's earlier groups did. Start-time fair queueing and DRFQ (Ghodsi et
  al., SIGCOMM 2012) look ahead in the same way.
- Waiting experiments are served in order of priority, highest first. At equal priority, the experiment with the lowest
  level is served first.
- The workers of a group are placed together or not at all. A group that does not fit is skipped until it has waited for
  `reserve_after_s`. From then on it has a reservation: free resources on the nodes that it will use are kept for it.
- An experiment that holds nothing and has waited for `STARVED_S` gets one group before all other experiments,
  regardless of priority.

`docs/sharing.md` explains the rule to users.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from sortedcontainers import SortedList

from tuner.domain.experiment import Scaling
from tuner.trials.groups.cluster.growth import is_there

HALF_LIFE_S = 3600.0
"""The half-life of past usage, in seconds."""

STARVED_S = 600.0
"""Seconds after which a waiting experiment that holds no group is served before experiments of higher priority."""

EQUAL_AFTER_S = 60.0
"""Seconds after which a waiting experiment without a group preempts an experiment of equal priority with a larger share."""

_SHORT_S = 1.0  # the minimum number of seconds that a group is expected to run

_TINY = 1e-9

Resources = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Gang:
    """The resources that one worker group needs. bundle: (resource, amount) for each worker, sorted by resource."""

    bundle: tuple[tuple[str, float], ...]
    workers: int = 1
    strategy: str = "PACK"

    @classmethod
    def of(cls, scaling: Scaling) -> Gang:
        return cls(tuple(sorted(scaling.bundle().items())), scaling.num_workers, scaling.placement_strategy)

    def total(self) -> dict[str, float]:
        """Return the resources of all workers together."""
        return {name: amount * self.workers for name, amount in self.bundle}


@dataclass(frozen=True, slots=True)
class Claim:
    """An experiment's request for a worker group.

    since: when the group was requested. pending: True if the claim was granted, but Ray has not placed the group yet,
        because other programs use the cluster.
    """

    experiment: str
    gang: Gang
    since: float
    priority: int = 0
    weight: float = 1.0
    pending: bool = False


class Room:
    """The free and the total resources of each node.

    elsewhere: the resources that other programs use, on unknown nodes.
    """

    def __init__(self, nodes: Mapping[str, Resources], elsewhere: Resources | None = None) -> None:
        self.total = {node: dict(resources) for node, resources in nodes.items()}
        self.free = {node: dict(resources) for node, resources in nodes.items()}
        self.elsewhere = dict(elsewhere or {})
        self._fits: dict[tuple[tuple[str, float], ...], _Fits] = {}  # the nodes for workers of each kind, by bundle
        self._holds: dict[Gang, bool] = {}

    def copy(self) -> Room:
        """Return a copy whose free resources can be changed independently."""
        other = Room({}, self.elsewhere)
        other.total = self.total
        other.free = {node: dict(resources) for node, resources in self.free.items()}
        return other

    def is_of(self, nodes: Mapping[str, Resources], elsewhere: Resources) -> bool:
        """Return whether this room was computed from these node totals and this usage by other programs."""
        return self.total == nodes and self.elsewhere == elsewhere

    def sums(self) -> dict[str, float]:
        """Return the resources of all nodes together."""
        sums: dict[str, float] = {}
        for resources in self.total.values():
            for name, amount in resources.items():
                sums[name] = sums.get(name, 0.0) + amount
        return sums

    def place(self, gang: Gang) -> tuple[str, ...] | None:
        """Return a node for each worker, or None if the gang does not fit into the free resources."""
        for name, amount in gang.total().items():
            used = self.elsewhere.get(name, 0.0)
            if used > _TINY and sum(node.get(name, 0.0) for node in self.free.values()) - used < amount - _TINY:
                return None
        if not gang.bundle:
            return _placed(gang, self.free)
        if (fits := self._fits.get(gang.bundle)) is None:
            fits = self._fits[gang.bundle] = _Fits(gang, self.free)
        return _chosen(gang, fits.nodes(), smallest=True)

    def count(self, bundle: Mapping[str, float]) -> int:
        """Return how many workers with these resources fit into the free resources of the nodes that have joined."""
        found = sum(
            min(int((resources.get(name, 0.0) + _TINY) // amount) for name, amount in bundle.items())
            for node, resources in self.free.items()
            if is_there(node)
        )
        taken = max((math.ceil(self.elsewhere.get(name, 0.0) / amount - _TINY) for name, amount in bundle.items()))
        return max(0, found - taken)

    def holds(self, gang: Gang) -> bool:
        """Return whether the gang would fit if all resources of the cluster were free."""
        if (held := self._holds.get(gang)) is None:
            held = self._holds[gang] = _placed(gang, self.total) is not None
        return held

    def fits_at(self, gang: Gang, nodes: Sequence[str]) -> bool:
        """Return whether the gang fits into the free resources of these nodes."""
        for node in set(nodes):
            free, workers = self.free.get(node, {}), nodes.count(node)
            if any(free.get(name, 0.0) < amount * workers - _TINY for name, amount in gang.bundle):
                return False
        return True

    def take(self, gang: Gang, nodes: Collection[str], times: int = 1) -> None:
        """Subtract the gang's resources from the free resources of these nodes; with times=-1, add them back.

        Unknown nodes are ignored.
        """
        for node in nodes:
            free = self.free.get(node)
            if free is not None:
                for name, amount in gang.bundle:
                    free[name] = free.get(name, 0.0) - times * amount
        for fits in self._fits.values():
            for node in set(nodes):
                fits.update(node, self.free)

    def reserve(self, gang: Gang) -> None:
        """Reserve free resources for a gang that does not fit now, on the nodes that it will get once they are free.

        Nodes with room for more of its workers are preferred. Do nothing if it would not fit on an empty cluster either.
        """
        wanted = _placed(gang, self.total, self.free)
        for node in wanted or ():
            free = self.free[node]
            for name, amount in gang.bundle:
                if free.get(name, 0.0) > 0:
                    free[name] = max(0.0, free[name] - amount)
        self._fits.clear()


class _Fits:
    """The nodes, in the order in which they get workers of one kind. Without this, each placement would scan all nodes."""

    def __init__(self, gang: Gang, free: Mapping[str, Resources]) -> None:
        self._gang = gang
        self._counts = {node: _times(gang, resources) for node, resources in free.items()}
        # the nodes that have joined, and those that may join
        self._orders: dict[bool, SortedList[tuple[int, str]]] = {
            there: SortedList((-count, node) for node, count in self._counts.items() if is_there(node) is there)
            for there in (True, False)
        }

    def update(self, node: str, free: Mapping[str, Resources]) -> None:
        """Recount how many workers fit into the free resources of a node. Ignore an unknown node."""
        before = self._counts.get(node)
        if before is not None and (count := _times(self._gang, free[node])) != before:
            order = self._orders[is_there(node)]
            order.remove((-before, node))
            order.add((-count, node))
            self._counts[node] = count

    def nodes(self) -> Iterator[tuple[str, int]]:
        """Yield (node, how many workers fit) for each node on which any worker fits, most workers first.

        The nodes that have joined come before those that may join.
        """
        for order in self._orders.values():
            for negative, node in order:
                if not negative:
                    break
                yield node, -negative


def _placed(
    gang: Gang, room: Mapping[str, Resources], prefer: Mapping[str, Resources] | None = None
) -> tuple[str, ...] | None:
    """Return a node for each worker of the gang, or None if the gang does not fit.

    room: the resources of each node that the gang can use. prefer: the resources of each node that determine the order,
        by default `room`: a node comes earlier if more workers fit into these.
    """
    counts = {node: _times(gang, resources) for node, resources in room.items()}
    first = {node: _times(gang, resources) for node, resources in prefer.items()} if prefer is not None else counts
    nodes = sorted(
        (node for node, count in counts.items() if count),
        key=lambda node: (not is_there(node), -first.get(node, 0), node),
    )
    return _chosen(gang, ((node, counts[node]) for node in nodes), smallest=prefer is None)


def _chosen(gang: Gang, nodes: Iterable[tuple[str, int]], *, smallest: bool) -> tuple[str, ...] | None:
    """Return a node for each worker of the gang, or None if the gang does not fit.

    nodes: (node, how many workers fit on it), preferred nodes first. Only as many are read as needed.
    smallest: True to place a STRICT_PACK gang on the last node that is large enough, which is the smallest one.
    """
    match gang.strategy:
        case "STRICT_PACK":
            enough = [node for node, count in nodes if count >= gang.workers]
            enough = [node for node in enough if is_there(node)] or enough
            return (enough[-1 if smallest else 0],) * gang.workers if enough else None
        case "STRICT_SPREAD":
            found = [node for node, _ in islice(nodes, gang.workers)]
        case "SPREAD":
            some = dict(islice(nodes, gang.workers))
            found = list(_in_turn(list(some), some, gang.workers))
        case _:
            found = []
            for node, count in nodes:
                found += [node] * min(count, gang.workers - len(found))
                if len(found) == gang.workers:
                    break
    return tuple(found) if len(found) == gang.workers else None


def _times(gang: Gang, resources: Resources) -> int:
    """Return how many workers of the gang fit into these resources."""
    fits = (int((resources.get(name, 0.0) + _TINY) / amount) for name, amount in gang.bundle)
    return max(0, min(fits, default=gang.workers))


def _in_turn(nodes: Sequence[str], counts: Mapping[str, int], workers: int) -> Iterator[str]:
    """Yield `workers` nodes in all, round-robin, each node at most as many times as `counts` says."""
    for turn in range(workers):
        for node in nodes:
            if counts[node] > turn:
                if workers == 0:
                    return
                workers -= 1
                yield node


@dataclass(frozen=True, slots=True)
class Running:
    """A running group that could end to make room. name: its segment. ending: whether it has already been told to end."""

    name: str
    experiment: str
    gang: Gang
    nodes: tuple[str, ...]
    since: float
    priority: int = 0
    weight: float = 1.0
    ending: bool = False


def _fewest(gang: Gang, candidates: Sequence[Running], room: Room) -> list[Running] | None:
    """Return the candidates that must end to make room for the gang, and no more than necessary. Prefer early candidates.

    Return None if all candidates together would not make enough room.
    """
    room, chosen = room.copy(), list[Running]()
    for one in candidates:
        room.take(one.gang, one.nodes, -1)
        chosen.append(one)
        if room.place(gang) is not None:
            break
    else:
        return None
    for one in chosen[:-1]:
        room.take(one.gang, one.nodes)
        if room.place(gang) is not None:
            chosen.remove(one)
        else:
            room.take(one.gang, one.nodes, -1)
    return chosen


@dataclass(slots=True)
class _Account:
    held: dict[str, float] = field(default_factory=dict)
    groups: int = 0
    used: float = 0.0  # the moving average of the share
    at: float = 0.0
    mean_s: float | None = None  # the moving average of the seconds for which it held a group


@dataclass(frozen=True, slots=True)
class Holding:
    """A group that holds resources. nodes: the node of each worker."""

    experiment: str
    gang: Gang
    nodes: tuple[str, ...]
    since: float


class Shares:
    """The shares of all experiments, and the order in which the experiments get groups.

    The methods take the current time as an argument, which must not decrease from call to call.
    """

    def __init__(self, half_life_s: float = HALF_LIFE_S, starved_s: float = STARVED_S) -> None:
        self._half_life_s, self._starved_s = half_life_s, starved_s
        self.room = Room({})
        self._sums: dict[str, float] = {}
        self._accounts: dict[str, _Account] = {}
        self.holdings: dict[Hashable, Holding] = {}

    def set_nodes(self, nodes: Mapping[str, Resources], elsewhere: Resources | None = None) -> None:
        """Set the resources of each live node, and the amounts that other programs use in the whole cluster."""
        if self.room.is_of(nodes, elsewhere or {}):
            return
        self.room = Room(nodes, elsewhere)
        self._sums = self.room.sums()
        for holding in self.holdings.values():
            self.room.take(holding.gang, holding.nodes)

    def place_anew(self, tokens: Collection[Hashable]) -> None:
        """Assign the groups with these tokens, which Ray has not placed yet, to the nodes that are now best for them."""
        for token in tokens:
            self.room.take(self.holdings[token].gang, self.holdings[token].nodes, -1)
        for token in tokens:
            holding = self.holdings[token]
            nodes = self.room.place(holding.gang) or holding.nodes
            self.room.take(holding.gang, nodes)
            self.holdings[token] = replace(holding, nodes=nodes)

    def hold(self, token: Hashable, experiment: str, gang: Gang, nodes: Sequence[str], now: float) -> None:
        """Record that one of an experiment's groups holds resources on these nodes. token: identifies the group for `release`."""
        self.holdings[token] = Holding(experiment, gang, tuple(nodes), now)
        self.room.take(gang, nodes)
        account = self._advance(experiment, now)
        account.groups += 1
        for name, amount in gang.total().items():
            account.held[name] = account.held.get(name, 0.0) + amount

    def release(self, token: Hashable, now: float) -> None:
        """Record that the group with this token no longer holds resources. Ignore an unknown token."""
        holding = self.holdings.pop(token, None)
        if holding is None:
            return
        self.room.take(holding.gang, holding.nodes, -1)
        account = self._advance(holding.experiment, now)
        held_s = now - holding.since
        account.mean_s = held_s if account.mean_s is None else 0.8 * account.mean_s + 0.2 * held_s
        account.groups -= 1
        for name, amount in holding.gang.total().items():
            account.held[name] -= amount
        if not account.groups:
            account.held.clear()

    def make_room(
        self, claims: Iterable[Claim], running: Collection[Running], now: float, *, after_s: float = EQUAL_AFTER_S
    ) -> tuple[Claim, list[Running]] | None:
        """Return a claim and the groups of other experiments that should end for it; None if no group should end.

        Groups of lower priority end for a claim of higher priority. At equal priority, a group ends only for an
        experiment that holds nothing and has waited for `after_s` seconds, and only if the experiment that loses the
        group does not end up with the smaller share. Groups of the lowest priority end first, then those of the
        experiment with the highest level, then the newest. No more groups end than necessary.

        Args:
            claims: the waiting claims. A claim that fits, or that would not fit even if other groups ended, is skipped.
            running: groups that can end without losing work, and groups that are already ending.
            now: the time.
            after_s: seconds that a claim waits before groups of equal priority end for it.
        """
        room = self.room.copy()
        for one in running:
            if one.ending:
                room.take(one.gang, one.nodes, -1)
        for claim in self.in_order(claims, now):
            if room.place(claim.gang) is not None:
                continue
            candidates = [one for one in running if not one.ending and self._must_yield(one, claim, now, after_s)]
            candidates.sort(key=lambda one: (one.priority, -self.level(one.experiment, one.weight, now), -one.since))
            if (found := _fewest(claim.gang, candidates, room)) is not None:
                return claim, found
        return None

    def _must_yield(self, one: Running, claim: Claim, now: float, after_s: float) -> bool:
        if one.experiment == claim.experiment:
            return False
        if one.priority != claim.priority:
            return one.priority < claim.priority
        if self.groups(claim.experiment) or now - claim.since < after_s:
            return False
        left = (self.share(one.experiment) - self.share_of(one.gang)) / one.weight
        return left >= self.share_of(claim.gang) / claim.weight - _TINY

    def forget(self, experiment: str) -> None:
        """Forget the past usage of an experiment that no longer holds groups."""
        if experiment in self._accounts and not self._accounts[experiment].groups:
            del self._accounts[experiment]

    def groups(self, experiment: str) -> int:
        """Return how many groups the experiment holds."""
        account = self._accounts.get(experiment)
        return account.groups if account is not None else 0

    def share(self, experiment: str) -> float:
        """Return the experiment's current dominant share."""
        account = self._accounts.get(experiment)
        return self._share(account.held) if account is not None else 0.0

    def share_of(self, gang: Gang) -> float:
        """Return the dominant share that an experiment with only this group would have."""
        return self._share(gang.total())

    def level(self, experiment: str, weight: float, now: float) -> float:
        """Return the usage that an experiment is expected to have when its current groups end, divided by its weight."""
        if experiment not in self._accounts:
            return 0.0
        account = self._advance(experiment, now)
        ahead = 1.0 if account.mean_s is None else 1.0 - 0.5 ** (max(account.mean_s, _SHORT_S) / self._half_life_s)
        return (account.used + self._share(account.held) * ahead) / weight

    def in_order(self, claims: Iterable[Claim], now: float) -> list[Claim]:
        """Sort claims into the order in which they are served."""
        return sorted(claims, key=lambda claim: self._place(claim, now))

    def next_grant(
        self,
        claims: Collection[Claim],
        now: float,
        *,
        reserve_after_s: float,
        warm: Mapping[str, Sequence[Sequence[str]]] | None = None,
    ) -> tuple[Claim, tuple[str, ...]] | None:
        """Return the next claim to serve, and a node for each of its workers; None if none can be served.

        A pending claim is served only with an idle group, because Ray is already trying to place a new one.

        Args:
            claims: the pending claims, and in addition at most one claim per experiment.
            now: the time.
            reserve_after_s: seconds that a claim waits before it gets a reservation.
            warm: for each experiment, the nodes of the idle groups that its claim can use. These groups are used first.
        """
        room = self.room
        held_back = {claim.experiment for claim in claims if claim.pending}
        for claim in self.in_order(claims, now):
            idle = (warm or {}).get(claim.experiment, ())
            if claim.pending and (at := next((at for at in idle if room.fits_at(claim.gang, at)), None)) is not None:
                return claim, tuple(at)
            nodes = self._fitting(claim, room, idle)
            if nodes is not None and not claim.pending and claim.experiment not in held_back:
                return claim, nodes
            if nodes is None and now - claim.since < reserve_after_s:
                continue
            room = room.copy() if room is self.room else room
            if nodes is not None:
                if claim.pending:  # Ray is about to place it
                    room.take(claim.gang, nodes)
            else:
                room.reserve(claim.gang)
        return None

    @staticmethod
    def _fitting(claim: Claim, room: Room, warm: Sequence[Sequence[str]]) -> tuple[str, ...] | None:
        for nodes in warm:
            if room.fits_at(claim.gang, nodes):
                return tuple(nodes)
        return room.place(claim.gang)

    def _place(self, claim: Claim, now: float) -> tuple[bool, int, float, float]:
        starved = now - claim.since >= self._starved_s and not self.groups(claim.experiment)
        level = self.level(claim.experiment, claim.weight, now)
        return not starved, 0 if starved else -claim.priority, level, claim.since

    def _advance(self, experiment: str, now: float) -> _Account:
        account = self._accounts.get(experiment)
        if account is None:
            account = self._accounts[experiment] = _Account(at=now)
        if now > account.at:
            kept = 0.5 ** ((now - account.at) / self._half_life_s)
            account.used = account.used * kept + self._share(account.held) * (1.0 - kept)
            account.at = now
        return account

    def _share(self, held: Resources) -> float:
        return max(
            (amount / total for name, amount in held.items() if (total := self._sums.get(name, 0.0))), default=0.0
        )
