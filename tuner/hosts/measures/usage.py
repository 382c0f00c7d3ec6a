"""Sample the CPU, memory and GPU usage of ranks, and store the samples as time series.

No decision depends on the samples, so they are not events and the core does not see them. They are requested over the
existing connections between the host and the ranks. A sample costs a rank about a millisecond, in a separate thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tuner.errors import Retryable
from tuner.store.records import UsageSample

log = logging.getLogger(__name__)

SAMPLES = 720
"""The maximum number of samples of a rank in a segment: enough for two hours at one sample every ten seconds.

Longer series are thinned.
"""


SLICE = 25
"""The maximum number of segments that are asked at once. Thousands of answers at once would delay verdicts."""

SPREAD = 0.8
"""The fraction of the time between two samples over which the requests are spread."""


class Place(NamedTuple):
    """The experiment, the trial and the ordinal of a segment."""

    experiment: int
    trial: int
    segment: int


class RankMeters(Protocol):
    async def measure(self, segment_ids: Iterable[str]) -> dict[str, dict[int, dict[str, float]]]:
        """Return the resource usage (`process_stats.usage`) of the ranks that answer, by segment and rank."""


class SampleStore(Protocol):
    def add_usage(self, experiment_id: int, samples: list[UsageSample], *, keep: Mapping[tuple[int, int], int]) -> None:
        """Append samples to the stored series, and thin those in `keep`.

        `keep` maps (trial, segment) to n: only samples whose number is a multiple of n are kept.
        """


@dataclass(slots=True)
class _Pace:
    """Thins the samples of a segment evenly: takes all samples at first, later every second sample, then every fourth, ..."""

    looked: int = 0
    every: int = 1

    def due(self) -> bool:
        self.looked += 1
        return self.looked % self.every == 0

    def full(self) -> bool:
        """Return whether the segment has too many samples. If it has, halve the rate of samples from now on."""
        if self.looked // self.every <= SAMPLES:
            return False
        self.every *= 2
        return True


class UsageKeeper:
    """Takes samples of the resource usage of ranks, and stores them.

    meters: measures the resource usage of ranks.
    store: stores the samples.
    running: a function that returns the segments that are running, by id.
    """

    def __init__(self, meters: RankMeters, store: SampleStore, running: Callable[[], Mapping[str, Place]]) -> None:
        self._meters, self._store, self._running = meters, store, running
        self._paces: dict[str, _Pace] = {}

    async def keep(self, every_s: float) -> None:
        """Take samples every `every_s` seconds until cancelled. Samples that cannot be stored are lost; training continues."""
        took, failing = 0.0, False
        while True:
            await asyncio.sleep(max(0.0, every_s - took))
            begun = time.monotonic()
            try:
                await self.sample(SPREAD * every_s)
                failing = False
            except Exception as error:
                if not failing:  # log an outage only once, since it may last
                    unexpected = not isinstance(error, Retryable)
                    log.warning("could not store the resource usage of ranks: %s", error, exc_info=unexpected)
                failing = True
            took = time.monotonic() - begun

    async def sample(self, spread_s: float = 0.0) -> None:
        """Take a sample of each running rank, and store the samples.

        spread_s: if many segments run, they are asked in slices, which are spread evenly over this many seconds. Each slice is
            stored in one transaction for each experiment.
        """
        places = self._running()
        self._paces = {name: self._paces.get(name) or _Pace() for name in places}
        due = [name for name, pace in self._paces.items() if pace.due()]
        slices = [due[first : first + SLICE] for first in range(0, len(due), SLICE)]
        asked = []
        try:
            for number, names in enumerate(slices):
                if number:
                    await asyncio.sleep(spread_s / len(slices))
                # A slice does not wait for the previous one, because a rank of that one may not answer.
                asked.append(asyncio.create_task(self._sample_some(names, places)))
            await asyncio.gather(*asked)
        finally:
            for task in asked:
                task.cancel()

    async def _sample_some(self, names: Sequence[str], places: Mapping[str, Place]) -> None:
        answers = await self._meters.measure(names)
        samples: dict[int, list[UsageSample]] = {}
        keep: dict[int, dict[tuple[int, int], int]] = {}
        for name, ranks in answers.items():
            place, pace = places[name], self._paces[name]
            number = pace.looked
            if pace.full():
                keep.setdefault(place.experiment, {})[place.trial, place.segment] = pace.every
            if number % pace.every == 0:
                found = [_sample(place, number, rank, values) for rank, values in ranks.items()]
                samples.setdefault(place.experiment, []).extend(found)
        for experiment in samples.keys() | keep.keys():
            await asyncio.to_thread(
                self._store.add_usage, experiment, samples.get(experiment, []), keep=keep.get(experiment, {})
            )


def _sample(place: Place, number: int, rank: int, values: Mapping[str, float]) -> UsageSample:
    def whole(name: str) -> int | None:
        return int(values[name]) if name in values else None

    return UsageSample(
        trial=place.trial,
        segment=place.segment,
        rank=rank,
        sample_no=number,
        time=values["time"],
        cpu_s=values["cpu_s"],
        rss_bytes=int(values["rss_bytes"]),
        gpu_bytes=whole("gpu_bytes"),
        gpu_reserved_bytes=whole("gpu_reserved_bytes"),
        gpu_percent=values.get("gpu_percent"),
    )
