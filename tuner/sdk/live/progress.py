"""The live table of `tuner.run` in a terminal or a notebook, and plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tuner.domain.segments import what_to_do
from tuner.domain.states import ExperimentState, TrialState
from tuner.errors import Retryable, ServiceError, StoreError
from tuner.names import printable
from tuner.plurals import counted
from tuner.sdk.live import notebook
from tuner.sdk.live.echo import Echo
from tuner.sdk.live.notebook import short
from tuner.sdk.live.terminal import LastingConsole, tell
from tuner.space.revisions import Revisions
from tuner.store import Store
from tuner.store.records import ExperimentRecord, TrialRecord

ROWS = 16
PLAIN_EVERY_S = 5.0
NEWS_EVERY_S, CLOCK_EVERY_S = 0.5, 2.0
"""The minimum seconds between two updates in a notebook: if there is news, and if only the clock has changed."""
FAILED = 50
TOLD_FAILURES = 3
"""The number of different failures that are shown in full while a search runs. Further failures are only counted."""

_STYLE = {
    "running": "cyan",
    "pending": "dim",
    "paused": "yellow",
    "completed": "green",
    "stopped": "dim",
    "failed": "bold red",
    "cancelled": "dim",
}


class Source(Protocol):
    """A source of one experiment's progress."""

    def experiment(self) -> ExperimentRecord:
        """Return the experiment as it is now."""

    def warnings(self, after: int) -> Sequence[Warned]:
        """Return the notes after this event_seq that warn of a likely mistake, oldest first."""

    def trials(self, state: str, count: int) -> Sequence[TrialRecord]:
        """Return the first trials in this state, at most `count` of them."""

    def newest(self, count: int) -> Sequence[TrialRecord]:
        """Return the newest trials, that is, those with the highest numbers."""


class Warned(Protocol):
    """A decision that warns of a likely mistake."""

    @property
    def seq(self) -> int: ...
    @property
    def reason(self) -> str: ...


class Stored:
    """A source that reads the database."""

    def __init__(self, store: Store, experiment_id: str) -> None:
        self._store, self._experiment_id = store, experiment_id
        self._id = store.experiments.get(experiment_id).id

    def experiment(self) -> ExperimentRecord:
        return self._store.experiments.get(self._experiment_id)

    def warnings(self, after: int) -> Sequence[Warned]:
        return self._store.log.warnings(self._id, after)

    def trials(self, state: str, count: int) -> Sequence[TrialRecord]:
        return self._store.trials.page(self._id, state=state, page_size=count).items

    def newest(self, count: int) -> Sequence[TrialRecord]:
        return self._store.trials.newest(self._id, count)


class Progress:
    """Shows the progress of an experiment, read from the database or the service. The driver is not involved."""

    def __init__(
        self,
        source: Source,
        *,
        show: bool = True,
        console: Console | None = None,
        echo: Echo | None = None,
        reopens: bool = False,
    ) -> None:
        """Show an experiment. reopens: True if it has ended but is about to run again, so that its earlier end is not shown."""
        self._reopens = reopens
        self.source, self.show = source, show
        self._area = notebook.Area() if show and console is None and notebook.is_here() else None
        if self._area is not None:  # a console that detects the notebook would put each line into a separate block
            console = LastingConsole(force_jupyter=False, force_terminal=False, width=120)
        self.console = console or LastingConsole(stderr=False)
        self._echo = echo
        self._live: Live | None = None
        self._begun = time.monotonic()
        self._printed = 0.0  # when the line was last printed, if there is no table
        self._latest: tuple[ExperimentRecord, list[TrialRecord]] | None = None  # the data that the table shows
        self._seen_seq = -1
        self._behind = False  # True: something new is not shown yet
        self._warned_seq = 0
        self._space: Revisions | None = None
        self._said_budget = self._away = False
        self._failed = 0  # the number of failed trials at the last update
        self._told: set[str] = set()  # the failures that have been shown
        self._referred: set[str] = set()  # the lines that name a section of the docs and have been shown

    def __enter__(self) -> Progress:
        if self.show and self._area is None and self.console.is_terminal:
            # a thread draws the table, so that its clock runs while this thread starts Ray
            self._live = Live(console=self.console, get_renderable=self._picture, refresh_per_second=8, transient=False)
        self.update()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.update(last=True)
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line that the table does not overwrite."""
        if self.show:
            self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)
        else:
            tell(printable(text), sys.stderr)

    def update(self, last: bool = False) -> None:
        """Show what is new. While the database or the service is unreachable, show nothing new; the search continues."""
        try:
            if self.show:
                self._update(last)
            else:
                self._only_warn(last)
            self._away = False
        except (StoreError, ServiceError) as error:
            if not isinstance(error, Retryable):
                raise
            if not self._away:
                self._away = True
                away = isinstance(error, ServiceError)
                what = (
                    "the search continues there"
                    if away
                    else "the database does not answer, and the search waits for it"
                )
                self.say(f"{what}: {error}")

    def _only_warn(self, last: bool) -> None:
        """Print what warns of a likely mistake, and nothing else."""
        record = self.source.experiment()
        if record.last_event_seq != self._seen_seq:
            self._warn(record)
            self._seen_seq = record.last_event_seq
        if last and record.state.ended and (warning := _nothing_finished(record)):
            self.say(f"warning: {warning}")

    def _update(self, last: bool) -> None:
        record = self.source.experiment()
        if self._space is None or self._space.newest != len(record.spec.former_spaces):  # a user may change the space
            self._space = Revisions.of(record.spec)
        self._reopens = self._reopens and record.state.ended and not last
        if self._reopens:
            record = replace(record, state=ExperimentState.PENDING, reason="", error=None)
        if self._echo is not None:
            for line in self._echo.lines():
                self.console.print(line, highlight=False, markup=False, soft_wrap=True)
        now, new = time.monotonic(), record.last_event_seq != self._seen_seq
        if new:
            self._warn(record)
            self._tell_failures(record)
        self._seen_seq = record.last_event_seq
        if not self._said_budget:
            self._said_budget = True
            if words := record.spec.resolved.get("budget"):
                self.console.print(f"Budget: {words}", highlight=False, markup=False, soft_wrap=True)
        if self._area is not None:
            self._replace(self._area, record, last, new, now)
        elif self._live is not None:
            if last or new:
                self._latest = record, self._trials(record)
        elif last or now - self._printed > PLAIN_EVERY_S:
            self._printed = now
            headline = self._headline(record, self.source.trials("pending", ROWS))
            self.console.print(headline, highlight=False, soft_wrap=True)

    def _replace(self, area: notebook.Area, record: ExperimentRecord, last: bool, new: bool, now: float) -> None:
        """Replace what the notebook shows, unless it was replaced a moment ago."""
        self._behind = self._behind or new
        if not last and now - self._printed < (NEWS_EVERY_S if self._behind else CLOCK_EVERY_S):
            return
        if last or self._behind or self._latest is None:
            self._latest = record, self._trials(record)
        self._printed, self._behind = now, False
        trials = self._latest[1]
        headline = self._headline(record, trials)
        area.show(
            notebook.box(
                notebook.lines(headline),
                _done(record),
                notebook.table(self._columns(record), map(self._row, trials)) if trials else "",
            ),
            headline.plain,
        )

    def _warn(self, record: ExperimentRecord) -> None:
        if self._seen_seq < 0 and (self._reopens or record.state is ExperimentState.PAUSED):
            return  # they were told when it ran, and may say that it is paused, although it is about to run again
        for note in self.source.warnings(max(self._warned_seq, self._seen_seq)):
            self._warned_seq = note.seq
            if not self.show:
                self.say(f"warning: {note.reason}")
                continue
            self.console.print(Text.assemble(("warning: ", "bold yellow"), printable(note.reason)), soft_wrap=True)

    def _tell_failures(self, record: ExperimentRecord) -> None:
        """Print the traceback of a failed rank at once, unless another trial has failed in the same way."""
        failed = record.counts.get("failed", 0)
        if failed == self._failed or len(self._told) == TOLD_FAILURES:
            return
        self._failed = failed
        for trial in self.source.trials("failed", FAILED):
            failure = trial.failure or {}
            what = str(failure.get("message") or trial.reason)
            if what not in self._told and len(self._told) < TOLD_FAILURES:
                self._told.add(what)
                self.console.print(Text.assemble(("failed: ", "bold red"), printable(trial.reason)), soft_wrap=True)
                if text := str(failure.get("traceback") or "").rstrip():
                    self.console.print(Text(printable(text), "dim"), soft_wrap=True)
                line = what_to_do(failure.get("cause"))
                if failure.get("cause") != "exception" and line not in self._referred:  # a traceback says enough
                    self._referred.add(line)
                    self.console.print(line, highlight=False, soft_wrap=True)

    def _headline(self, record: ExperimentRecord, trials: Sequence[TrialRecord]) -> Text:
        """Return the lines above the table. trials: at least the first pending trials."""
        counts = ", ".join(f"{n} {state}" for state, n in record.counts.items() if n)
        started, samples = sum(record.counts.values()), record.spec.num_samples
        many = counted(started, "trial")
        # For a grid, num_samples counts runs of the grid.
        if samples is not None and started <= samples:
            many = f"{started}/{counted(samples, 'trial')}"
        text = Text.assemble(
            (f"{printable(record.name)} ", "bold"),
            f"{record.public_id}  {record.state}, {many}",
            f" ({counts})" if counts else "",
            f", {record.spec.method}, {time.monotonic() - self._begun:.0f} s",
            (f"  {stage}" if (stage := _stage(record, trials)) else "", "cyan"),
        )
        if record.best is not None:
            text.append(f"\nbest {record.spec.objective.metric} {record.best['value']:.6g}", "bold green")
            text.append(f"{_of_whom(record.best)}: {short(self._readable(record.best['params']))}")
            text.append(_finished(record), "green")
        elif record.no_best and not record.state.ended:
            text.append(f"\nno best trial yet: {record.no_best}", "yellow")
        if record.reason and record.state.ended:
            text.append(f"\nended: {printable(record.reason)}{_left_out(record)}", "dim")
        if record.error and not (record.state.ended and record.error in record.reason):
            text.append(f"\n{printable(record.error)}", "red")
        if record.state.ended and (failed := record.counts.get("failed")):
            what = f"{counted(failed, 'trial')} failed"
            text.append(f"\n{what}; see result.errors, or tuner explain {record.public_id} NUMBER", "red")
        if record.state.ended and (warning := _nothing_finished(record)):
            text.append(f"\nwarning: {warning}", "bold yellow")
        return text

    def _readable(self, params: Mapping[str, Any], revision: int | None = None) -> dict[str, Any]:
        """Return the configuration with each choice's value in place of its index.

        revision: the revision of the space that `params` are from; None if it is not known.
        """
        assert self._space is not None
        return self._space.holding(params, revision).readable(params)

    def _picture(self) -> RenderableType:
        """Return what the terminal shows. The thread that draws calls this eight times a second, so this asks for no data."""
        if self._latest is None:
            return Text()
        record, trials = self._latest
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name, numbers in self._columns(record):
            # In a narrow terminal, rich first makes those columns narrower that it may wrap.
            long = name in ("parameters", "why")
            table.add_column(_on_one_line(name), justify="right" if numbers else "left", no_wrap=not long)
        for trial in trials:
            table.add_row(*map(_on_one_line, self._row(trial)))
        return Group(self._headline(record, trials), Text(), table)

    @staticmethod
    def _columns(record: ExperimentRecord) -> list[tuple[str, bool]]:
        """Return the columns of the table of trials, each with True if its values are numbers."""
        names = ("trial", "state", "iter", record.spec.objective.metric, "parameters", "why")
        return list(zip(names, (True, False, True, True, False, False), strict=True))

    def _row(self, trial: TrialRecord) -> list[str | Text]:
        why = printable(trial.waiting or trial.reason)
        if trial.state is TrialState.PENDING and not trial.waiting:
            why = f"starting workers: {why}"
        return [
            str(trial.number),
            Text(str(trial.state), _STYLE.get(str(trial.state), "")),
            str(trial.iteration),
            "" if trial.last_value is None else f"{trial.last_value:.5g}",
            short(self._readable(trial.params, trial.space_revision)),
            Text(why, "dim"),
        ]

    def _trials(self, record: ExperimentRecord) -> list[TrialRecord]:
        """Return the running trials, and then the newest other trials."""
        rows: list[TrialRecord] = []
        for state in ("running", "pending"):
            rows += self.source.trials(state, ROWS)
        if len(rows) < ROWS:
            known = {row.number for row in rows}
            newest = self.source.newest(ROWS)
            rows += [row for row in newest if row.number not in known][: ROWS - len(rows)]
        return sorted(rows, key=lambda row: row.number)


def _on_one_line(cell: str | Text) -> Text:
    """Return the text of a cell, which is cut and not wrapped if its column is too narrow."""
    text = cell if isinstance(cell, Text) else Text(cell)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _done(record: ExperimentRecord) -> str:
    """Return a progress bar of the trials that have ended, if the total number of trials is known."""
    total = max(record.spec.num_samples or 0, sum(record.counts.values()))
    if record.spec.num_samples is None or not total:
        return ""
    ended = sum(n for state, n in record.counts.items() if TrialState(state).ended)
    return notebook.bar(ended, total)


def _stage(record: ExperimentRecord, trials: Sequence[TrialRecord]) -> str:
    """Return a phrase that says what the search is waiting for while no trial is training, or "" if one is."""
    if record.state is ExperimentState.PENDING:
        return "starting the driver"
    states = {state for state, n in record.counts.items() if n}
    if record.state is not ExperimentState.RUNNING or "running" in states:
        return ""
    for trial in trials:
        if trial.state is TrialState.PENDING and trial.waiting:
            return f"trial {trial.number} {printable(trial.waiting)}"
    return "starting workers" if states <= {"pending"} else ""


def _left_out(record: ExperimentRecord) -> str:
    """Return a phrase about the trials that an ended search has not started, or "" if it has started all of them."""
    samples, started = record.spec.num_samples or 0, sum(record.counts.values())
    search = record.spec.resolved.get("search") or record.spec.search
    if started >= samples or search.get("type") == "grid":  # then num_samples is the number of runs of the grid
        return ""
    return f"; {samples - started} of {counted(samples, 'trial')} {'was' if samples - started == 1 else 'were'} not started"


def _of_whom(best: Mapping[str, Any]) -> str:
    """Say which trial has the best value. After repeats, the value is a mean, so also say how many runs there were."""
    number, runs = best["trial_number"], best.get("runs")
    if not runs or len(runs["trials"]) < 2:
        return f" by trial {number} at iteration {best['iteration']}"
    of = f"{len(runs['trials'])} runs of the configuration of trial {number}"
    return f", the mean of {of}, whose expected value has the standard deviation {runs['error']:.2g}"


def _finished(record: ExperimentRecord) -> str:
    """Return a line about the best trial that was trained to completion."""
    finished = (record.best or {}).get("finished")
    if finished is None:
        return ""
    name, number = record.spec.objective.metric, finished["trial_number"]
    return (
        f"\nbest finished {name} {finished['value']:.6g} by trial {number}, trained to iteration "
        f"{finished['iteration']}"
    )


def _nothing_finished(record: ExperimentRecord) -> str | None:
    """Return a line to show if the best trial was stopped early and no trial was trained to its end."""
    if record.best is None or "finished" not in record.best or record.best["finished"] is not None:
        return None
    return (
        "no trial was trained to its end, so the best value may not hold: train the best configuration to the end "
        "before you rely on it"
    )
