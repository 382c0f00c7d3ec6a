"""Show what the ranks print, while they print it, each line with its trial and rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from tuner.domain.keys import segment_id

_ORDINALS = 200


class Echo:
    """Follows the log files of an experiment's ranks on this machine, from their present ends.

    A progress bar overwrites its line. Only the last state of such a line is shown, once the line is complete.
    """

    def __init__(self, folder: Path, experiment: str) -> None:
        self._folder, self._experiment = folder, experiment
        self._read: dict[Path, int] = {path: path.stat().st_size for path in self._files()}
        self._left: dict[Path, bytes] = {}
        self._trials: dict[str, int] = {}

    def lines(self, trials: int) -> Iterator[str]:
        """Return ``(trial 3, rank 0) text`` for every line completed since the last call. `trials`: how many there are."""
        for path in self._files():
            start = self._read.get(path, 0)
            if path.stat().st_size <= start:
                continue
            with path.open("rb") as file:
                file.seek(start)
                content = file.read()
            self._read[path] = start + len(content)
            *whole, self._left[path] = (self._left.get(path, b"") + content).split(b"\n")
            number = self._trial(path.parent.name, trials)
            for line in whole:
                text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
                yield f"({'trial ?' if number is None else f'trial {number}'}, {_rank(path)}) {text}"

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("seg_*/rank*.log"))

    def _trial(self, segment: str, trials: int) -> int | None:
        if segment not in self._trials:
            for ordinal, number in itertools.product(range(1, _ORDINALS), range(trials)):
                if segment_id(self._experiment, number, ordinal) == segment:
                    self._trials[segment] = number
                    break
        return self._trials.get(segment)


def _rank(path: Path) -> str:
    return f"rank {path.stem.removeprefix('rank')}"
