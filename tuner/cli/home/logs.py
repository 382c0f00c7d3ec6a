"""Print the logs of a trial's ranks in the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from tuner.errors import NotFound, SpecError
from tuner.experiment.logs import POLL_S, LogReader, trial_logs
from tuner.experiment.operations.usecases import id_of, numbered
from tuner.settings import Settings
from tuner.store import LogQuery, Store


def logs_of(settings: Settings, public_id: str, number: int | None, query: LogQuery, *, follow: bool) -> Iterator[str]:
    """Yield the log of a trial, in pieces of text that include their line breaks.

    Args:
        settings: where the database is.
        public_id: the id of the trial, or the id or name of its experiment.
        number: the number of the trial if `public_id` names an experiment.
        query: which ranks and lines to yield. If it names no segment, the newest segment is shown.
        follow: True to yield the whole log of one rank, by default rank 0, and then what the rank prints until it ends.
    """
    with Store.open(settings.database_url) as store:
        store.migrate()
        trial = id_of(store, public_id)
        if trial.startswith("exp_"):
            if number is None:
                raise SpecError(f"{public_id} is an experiment: also give the number of one of its trials")
            trial = numbered(store, trial, number)
        record = store.trials.get(trial)
        ordinal = segment_of(query, record.segments)
        if follow:
            yield from with_line_feeds(_followed(LogReader(store, settings.home, trial, ordinal, query.rank or 0)))
            return
        newest = LogQuery(rank=query.rank, segment=ordinal, tail=query.tail, search=query.search)
        found = trial_logs(store, settings.home, trial, newest)
        yield from not_stored(found, record.segments, newest)
        yield from rank_by_rank(found, query)


class Segment(Protocol):
    """A segment of a trial, from the database or from a service."""

    @property
    def ordinal(self) -> int: ...
    @property
    def started_at(self) -> object: ...
    @property
    def ended_at(self) -> object: ...


def segment_of(query: LogQuery, segments: Sequence[Segment]) -> int:
    """Return the number of the segment whose output to show. Raise NotFound if the trial has no segment of this number."""
    newest = max((part.ordinal for part in segments), default=0)
    if query.segment is not None and query.segment > newest:
        raise NotFound(
            f"the trial has no segment {query.segment}; " + (f"its newest is {newest}" if newest else "it has none yet")
        )
    return query.segment or newest or 1


class Output(Protocol):
    """The last part of a rank's output, from the database or from a service."""

    @property
    def rank(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def start(self) -> int: ...


def not_stored(logs: Sequence[Output], segments: Sequence[Segment], query: LogQuery) -> Iterator[str]:
    """Yield a line if a segment has run, and no output of it is stored. A rank that has printed nothing has an empty output."""
    ran = any(part.ordinal == query.segment and part.started_at and part.ended_at for part in segments)
    if ran and not logs and query.rank is None:
        yield (
            f"[no output of segment {query.segment} is stored: it was deleted after TUNER_LOG_DAYS, or never stored, "
            "as with TUNER_LOG_BYTES=0]\n"
        )


def rank_by_rank(logs: Sequence[Output], query: LogQuery) -> Iterator[str]:
    """Yield the text of each rank in whole lines. Head each with its rank if there are several ranks.

    A line says how much is missing at the beginning, unless `query` asks for certain lines only.
    """
    nothing = "no such line" if query.search else "no output"
    for log in logs:
        rank, text = log.rank, log.text
        if len(logs) > 1:
            yield f"--- rank {rank}\n"
        if log.start and query.tail is None and not query.search:
            are = "byte is" if log.start == 1 else "bytes are"
            yield f"[{log.start:,} earlier {are} not shown; to see the whole output, add --rank {rank} --follow]\n"
        lines = _lines(text)
        if lines:
            yield lines if lines.endswith("\n") else f"{lines}\n"
        elif len(logs) > 1:
            yield f"({nothing})\n"


def _lines(text: str) -> str:
    """Return the text with carriage returns as line feeds, so that each state of a progress bar gets a line of its own."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def with_line_feeds(pieces: Iterable[str]) -> Iterator[str]:
    """Yield pieces of an output with line breaks as in `_lines`. A piece may end between the two characters of a line break."""
    held = ""
    for piece in pieces:
        text = held + piece
        held = "\r" if text.endswith("\r") else ""
        yield _lines(text.removesuffix("\r"))
    if held:
        yield "\n"


def _followed(reader: LogReader) -> Iterator[str]:
    more = True
    while more:
        text, more = reader.next()
        if text:
            yield text
        elif more:
            time.sleep(POLL_S)
