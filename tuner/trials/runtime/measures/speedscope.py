"""Write profiles in the file format of https://www.speedscope.app."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
MOST_STACKS = 5000
"""The maximum number of stacks in a profile. The smallest stacks are merged into one that is called "(other stacks)"."""


class Frame(NamedTuple):
    """A line of code that was being executed."""

    name: str
    file: str
    line: int


Stack = tuple[Frame, ...]
"""The frames of a call, the outermost first."""

OTHER: Stack = (Frame("(other stacks)", "", 0),)


@dataclass(frozen=True, slots=True)
class Part:
    """The weights of the stacks of one thread, or of one kind of memory."""

    name: str
    unit: Literal["seconds", "bytes"]
    weights: Mapping[Stack, float]


def document(name: str, exporter: str, parts: Iterable[Part]) -> dict[str, Any]:
    """Return the file as JSON. The stacks of each part are sorted, the largest first; their order in time is lost."""
    frames: dict[Frame, int] = {}
    profiles = []
    for part in parts:
        kept = _largest(part.weights)
        profiles.append(
            {
                "type": "sampled",
                "name": part.name,
                "unit": part.unit,
                "startValue": 0,
                "endValue": round(sum(weight for _, weight in kept), 6),
                "samples": [[frames.setdefault(frame, len(frames)) for frame in stack] for stack, _ in kept],
                "weights": [round(weight, 6) for _, weight in kept],
            }
        )
    return {
        "$schema": SCHEMA,
        "name": name,
        "exporter": exporter,
        "activeProfileIndex": 0,
        "shared": {"frames": [frame._asdict() for frame in frames]},
        "profiles": profiles,
    }


def _largest(weights: Mapping[Stack, float]) -> list[tuple[Stack, float]]:
    kept = sorted(((stack, weight) for stack, weight in weights.items() if weight > 0), key=lambda one: -one[1])
    if len(kept) > MOST_STACKS:
        kept[MOST_STACKS - 1 :] = [(OTHER, sum(weight for _, weight in kept[MOST_STACKS - 1 :]))]
    return kept
