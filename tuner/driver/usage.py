"""The time series of what ranks use: they are asked now and then, and their answers are written beside the log.

Nothing is decided from them, so they are neither events nor in the core. They come over the connections that the host has to its
ranks anyway, and cost a rank about a millisecond on a thread that waits for such questions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tuner.store.records import UsageSample

log = logging.getLogger(__name__)

SAMPLES = 720
"""So many samples of each rank and segment are kept at most: two hours at one each ten seconds, then coarser ones."""


class Place(NamedTuple):
    """Whose segment it is."""

    experiment: int
    trial: int
    segment: int


class Meters(Protocol):
    async def measure(self, segment_ids: Iterable[str]) -> dict[str, dict[int, dict[str, float]]]:
        """segment -> rank -> its figures now, see `process_stats.usage`; those that do not answer are left out."""


class Shelf(Protocol):
    def add_usage(self, experiment_id: int, samples: list[UsageSample], *, keep: Mapping[tuple[int, int], int]) -> None:
        """Append, and of the segments (trial, segment) in `keep` drop all numbers that are no multiples of it."""


@dataclass(slots=True)
class _Pace:
    """Which samples of a segment are kept: each at first, later each second, each fourth: evenly spaced at any time."""

    looked: int = 0
    every: int = 1

    def due(self) -> bool:
        self.looked += 1
        return self.looked % self.every == 0

    def full(self) -> bool:
        """Whether there are too many by now; from here on half as many are kept."""
        if self.looked // self.every <= SAMPLES:
            return False
        self.every *= 2
        return True


class UsageKeeper:
    """`running` says what runs at the moment: segment -> whose it is."""

    def __init__(self, meters: Meters, shelf: Shelf, running: Callable[[], Mapping[str, Place]]) -> None:
        self._meters, self._shelf, self._running = meters, shelf, running
        self._paces: dict[str, _Pace] = {}

    async def keep(self, every_s: float) -> None:
        """Take samples for ever. What cannot be written is lost, and training goes on."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.sample()
            except Exception:
                log.warning("what the ranks use could not be kept", exc_info=True)

    async def sample(self) -> None:
        """Ask all ranks that train, and write what they answer: one transaction an experiment."""
        places = self._running()
        self._paces = {name: self._paces.get(name) or _Pace() for name in places}
        due = [name for name, pace in self._paces.items() if pace.due()]
        answers = await self._meters.measure(due)
        samples: dict[int, list[UsageSample]] = {}
        keep: dict[int, dict[tuple[int, int], int]] = {}
        for name, ranks in answers.items():
            place, pace = places[name], self._paces[name]
            number = pace.looked
            if pace.full():
                keep.setdefault(place.experiment, {})[place.trial, place.segment] = pace.every
            if number % pace.every == 0:
                found = [_sample(place, number, rank, figures) for rank, figures in ranks.items()]
                samples.setdefault(place.experiment, []).extend(found)
        for experiment in samples.keys() | keep.keys():
            await asyncio.to_thread(
                self._shelf.add_usage, experiment, samples.get(experiment, []), keep=keep.get(experiment, {})
            )


def _sample(place: Place, number: int, rank: int, figures: Mapping[str, float]) -> UsageSample:
    def whole(name: str) -> int | None:
        return int(figures[name]) if name in figures else None

    return UsageSample(
        trial=place.trial,
        segment=place.segment,
        rank=rank,
        sample_no=number,
        time=figures["time"],
        cpu_s=figures["cpu_s"],
        rss_bytes=int(figures["rss_bytes"]),
        gpu_bytes=whole("gpu_bytes"),
        gpu_reserved_bytes=whole("gpu_reserved_bytes"),
        gpu_percent=figures.get("gpu_percent"),
    )
