"""Network partitions: links between the nodes of a cluster are cut in the middle of a search with real Ray and real DDP."""

from __future__ import annotations

import random
import time

from tests.faults.campaign import Counts
from tests.nodes.cluster import Cluster
from tests.nodes.watching import Search, training, until

STEPS = 60
SHORT_S, LONG_S = (1.0, 6.0), (14.0, 25.0)
"""The shortest and the longest time in seconds that a partition lasts. A link that is silent for 12 s counts as cut."""


def part_nodes(counts: Counts, link: str, duration_s: tuple[float, float], seed: int) -> None:
    """Let a partition begin at a random report of a DDP search on three nodes, and end after a while.

    The search must complete with all invariants, every trial must have each report once, and a partition that no rank noticed
    must have cost nothing.

    Args:
        counts: where faults are counted.
        link: "node": a node is cut off. "pair": two nodes cannot reach each other. "driver": the node with the driver is cut off.
        duration_s: the shortest and the longest time that the partition lasts.
        seed: the seed of what is drawn.
    """
    draw = random.Random(f"{link} {duration_s} {seed}")
    with Cluster(4) as cluster:
        cluster.start_head()
        for number in (1, 2, 3):
            cluster.start_node(number, 1)
        search = Search(cluster)
        script = cluster.search("one", steps=STEPS, pause=0.2)
        try:
            training(search, trials=1, iterations=draw.randint(1, STEPS // 3))
            [used] = [sorted(nodes) for nodes in search.trained_on(0)[-1:]]
            first, second = (cluster.network.addresses.index(address) for address in used)
            lasts = draw.uniform(*duration_s)
            if link == "pair":
                cluster.network.part(first, second)
            else:
                cut = 0 if link == "driver" else draw.choice((first, second))
                cluster.network.cut(cut)
            time.sleep(lasts)  # the length of the partition
            if link == "pair":
                cluster.network.join(first, second)
            else:
                cluster.network.mend(cut)
            counts.faults["network partitions"] += 1
            until("the script to go on", lambda: script.poll() is not None or search.iterations()[0] > STEPS // 2)
            search.completes(script, iterations=STEPS)
            counts.reports += search.reports_once(STEPS)
            counts.invariants += 1
        finally:
            script.kill()
            script.wait()
