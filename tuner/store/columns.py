"""Sort and filter the trials of one experiment by any column, including parameters and metrics by name.

No index can sort by a value inside JSON text. Nor can it sort by the expected value or the front, since a new result of one
trial may change these for all trials. So the columns by which trials were sorted or filtered are kept in memory. When the
log has grown, only the trials named in its new entries are read again.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Boolean

from tuner.domain.fronts import Fronts
from tuner.errors import SpecError
from tuner.names import did_you_mean
from tuner.store.expected import Expected
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.paging import Place, decoded, encoded
from tuner.store.sql.stored import readable, stored_objectives
from tuner.store.sql.tables import JsonText, dumps, trial

MAX_TRIALS = 500_000  # the maximum number of trials kept in memory, over all experiments
MAX_TEXT_IN_TOKEN = 150  # longer texts are truncated in page tokens, which have to fit into a URL
READ_ALL_FROM = 5_000  # if the log has more new entries than this, all trials are read again

Operator = Literal["=", "!=", "<=", ">=", "<", ">", "~", "?="]
OPERATORS: tuple[Operator, ...] = ("!=", "<=", ">=", "?=", "=", "<", ">", "~")  # longer operators first
_LONG = ("reason", "waiting")
_SORTED = [c.name for c in trial.c if not isinstance(c.type, JsonText | Boolean) and not c.name.endswith("id")]
EXPECTED = "expected_value"
"""The column with the expected value of a trial's configuration, given all its runs; without repeats, the trial's best value."""
FRONT = "front"
"""The column of the trial's front by the newest values of all objectives: 1 for the Pareto front. None if an
objective is missing or the trial violates the constraints."""
NAMES = (*(name for name in _SORTED if name not in _LONG), EXPECTED, FRONT, *_LONG)
"""The columns by which trials can be sorted and filtered, besides parameters and metrics."""

_JUDGED = ("best_value", EXPECTED)  # the first trial in the order of these columns is the best one
_OBJECTS = ("params", "last")  # columns with JSON objects; a name such as params.lr selects one of their values
_CHANGED = """
SELECT trial_number, kind FROM event WHERE experiment_id = ? AND event_seq > ? AND event_seq <= ?
UNION SELECT trial_number, 'decision' FROM decision WHERE experiment_id = ? AND event_seq > ? AND event_seq <= ?"""
_ABOUT_ALL = frozenset({"driver_started", "commanded", "budget_spent"})

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition. `name` is one of NAMES, ``params.NAME`` or ``last.NAME`` (the newest value of a metric)."""

    name: str
    operator: Operator
    value: str

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Parse a condition such as ``best_value>=0.5``, ``params.optimizer/lr<0.01`` or ``params.width?=[16, 32, null]``."""
        found = [(text.find(op), -len(op), op) for op in OPERATORS if op in text]
        if not found or min(found)[0] < 1:
            raise SpecError(f"expected NAME OPERATOR VALUE with one of {' '.join(OPERATORS)}, got {text!r}", "/where")
        at, _, operator = min(found)
        return cls(check_name(text[:at].strip(), "/where"), operator, text[at + len(operator) :].strip())

    def others(self) -> list[Filter]:
        """Return the conditions with longer names that have the same text, the one with the longest name first.

        The name of a parameter or a metric may contain an operator: ``params.opt~1lr<0.01`` is about the parameter "opt/lr".
        """
        text, first = f"{self.name}{self.operator}{self.value}", len(self.name) + len(self.operator)
        starts = [(at, op) for at in range(len(text) - 1, first, -1) for op in OPERATORS if text.startswith(op, at)]
        return [Filter(text[:at].strip(), op, text[at + len(op) :].strip()) for at, op in starts]


def check_name(name: str, pointer: str) -> str:
    """Return the name, or raise SpecError if there is no such column."""
    if name in NAMES or (name.partition(".")[0] in ("params", "last") and name.partition(".")[2]):
        return name
    expected = f"; expected one of {', '.join(NAMES)}, params.NAME, last.METRIC"
    raise SpecError(f"unknown column {name!r}{did_you_mean(name, NAMES) or expected}", pointer)


@dataclass(frozen=True, slots=True)
class Column:
    """The values of one column, encoded as numbers that sort in the same order. NaN stands for a missing value.

    words: the distinct texts in sorted order, if the values are texts; each value is encoded as its index in this list. None if
        the values are numbers.
    quoted: a mask of the values that are texts, if others become texts only here: a choice may have 1 and "1".
    """

    keys: Floats
    words: Sequence[str] | None = None
    quoted: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, values: Sequence[Any]) -> Column:
        # Without a value, a condition may be about numbers or texts, and no trial meets it.
        if all(value is None for value in values):
            return cls(np.full(len(values), math.nan), ())
        if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
            with contextlib.suppress(OverflowError):  # an integer too large for a float: all are texts then
                return cls(np.array([math.nan if value is None else value for value in values], np.float64))
        # An array of texts would take the memory of its longest text for each of them.
        texts = [v if v is None or isinstance(v, str) else dumps(v) for v in values]
        words = sorted({text for text in texts if text is not None})
        codes = {word: code for code, word in enumerate(words)}
        keys = np.array([math.nan if text is None else codes[text] for text in texts], np.float64)
        quoted = np.array([isinstance(value, str) for value in values])
        return cls(keys, words, None if (quoted == ~np.isnan(keys)).all() else quoted)

    def key(self, value: str | float) -> float:
        """Return the number that encodes a value. A text that no trial has gets a number between those of its neighbors."""
        if self.words is None:
            return float(value)
        at = bisect_left(self.words, str(value))
        return float(at) if at < len(self.words) and self.words[at] == value else at - 0.5

    def value(self, at: int) -> str | float | None:
        key = self.keys[at]
        if np.isnan(key):
            return None
        return float(key) if self.words is None else self.words[int(key)]

    def fits(self, condition: Filter) -> NDArray[np.bool_]:
        if condition.operator == "~":
            if self.words is None:
                raise SpecError(f"{condition.name} is a number; ~ works only on text", "/where")
            wanted = condition.value.lower()
            return np.isin(self.keys, [code for code, word in enumerate(self.words) if wanted in word.lower()])
        if condition.operator == "?=":
            return self._among(condition)
        try:
            key = self.key(condition.value)
        except ValueError:
            raise SpecError(f"{condition.name} is a number, got {condition.value!r}", "/where") from None
        compare: dict[str, Callable[[Any, Any], Any]] = {
            "=": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
        }  # fmt: skip
        found: NDArray[np.bool_] = compare[condition.operator](self.keys, key)
        return found & ~np.isnan(self.keys) if condition.operator == "!=" else found

    def _among(self, condition: Filter) -> NDArray[np.bool_]:
        """Return a mask of the values that are in the condition's JSON list. A null in the list matches missing values."""
        try:
            wanted = json.loads(condition.value)
        except (ValueError, RecursionError):
            wanted = None
        if not isinstance(wanted, list):
            raise SpecError(f"expected a JSON list after {condition.name}?=, got {condition.value!r}", "/where")
        found = np.isnan(self.keys) if None in wanted else np.zeros(len(self.keys), np.bool_)
        for value in wanted:
            if value is None:
                continue
            text = value if isinstance(value, str) else dumps(value)
            try:
                same = np.isin(self.keys, [self.key(one) for one in (text, *_also_written(value))])
            except ValueError:
                raise SpecError(f"{condition.name} is a number, got {text!r}", "/where") from None
            if self.quoted is not None and len({*self.quoted[same].tolist()}) == 2:
                same &= self.quoted if isinstance(value, str) else ~self.quoted
            found |= same
        return found


class Columns:
    """The columns of one experiment's trials."""

    def __init__(self, experiment: int) -> None:
        self._experiment = experiment
        self._public_id = ""
        self._seq = 0
        self._positions: dict[int, int] = {}  # trial number -> position in each list of values
        self._values: dict[str, list[Any]] = {}  # column of the table -> its values
        self._columns: dict[str, Column] = {}
        self._orders: dict[str, NDArray[np.intp]] = {}
        self._objectives: list[tuple[str, str]] = []  # the metric and the mode of each objective
        self._kept_fronts = Fronts()
        self.expected: Expected | None = None  # the expected values of the trials; None before the first repeat

    def __len__(self) -> int:
        return len(self._positions)

    def refresh(self, cursor: Cursor, needed: Sequence[str]) -> None:
        """Bring the kept columns up to date with the log, and read the `needed` columns that are not kept yet."""
        query = "SELECT public_id, last_event_seq FROM experiment WHERE id = ?"
        [(public_id, last)] = cursor.rows(query, (self._experiment,)) or [("", 0)]
        if public_id != self._public_id:  # after a backup is restored, another experiment can have this internal id
            self._forget()
            self._public_id = public_id
        if FRONT in needed and not self._objectives:
            self._objectives = stored_objectives(cursor, self._experiment)
        if last != self._seq:
            self._columns.clear()
            self._orders.clear()
            changed = self._changed(cursor, last)
            if changed is None:
                self._values.clear()
                self._positions.clear()
            else:
                self._read(cursor, list(self._values), changed)
            [(best,)] = cursor.rows("SELECT best FROM experiment WHERE id = ?", (self._experiment,)) or [(None,)]
            self.expected = Expected.of(readable(best, "best"))
            self._seq = last
        stored = dict.fromkeys(each for name in ("number", *needed) for each in _read_for(name))
        if missing := [name for name in stored if name not in self._values]:
            self._values |= {name: [None] * len(self._positions) for name in missing}
            self._read(cursor, missing, None)

    def _forget(self) -> None:
        self._seq = 0
        self._positions.clear()
        self._values.clear()
        self._columns.clear()
        self._orders.clear()
        self._objectives = []
        self._kept_fronts = Fronts()
        self.expected = None

    def _changed(self, cursor: Cursor, last: int) -> list[int] | None:
        """Return the numbers of the trials named in new log entries, or None if all trials must be read again."""
        if not self._seq or last - self._seq > READ_ALL_FROM:
            return None
        span = (self._experiment, self._seq, last)
        rows = cursor.rows(_CHANGED, (*span, *span))
        if any(number is None and kind in _ABOUT_ALL for number, kind in rows):
            return None
        return sorted({number for number, _ in rows if number is not None})

    def _read(self, cursor: Cursor, names: Sequence[str], numbers: list[int] | None) -> None:
        """Read these columns of the trials with these numbers, or of all trials if `numbers` is None."""
        sql = f"SELECT number, {', '.join(names)} FROM trial WHERE experiment_id = ?"
        parameters: tuple[Any, ...] = (self._experiment,)
        if numbers is not None:
            in_list = "(SELECT value FROM json_each(?))" if cursor.backend == "sqlite" else "ANY(?::int[])"
            sql += f" AND number {'IN' if cursor.backend == 'sqlite' else '='} {in_list}"
            parameters += (dumps(numbers) if cursor.backend == "sqlite" else numbers,)
        rows = cursor.rows(f"{sql} ORDER BY number", parameters)
        places = [self._positions.setdefault(row[0], len(self._positions)) for row in rows]
        for values in self._values.values():
            values.extend([None] * (len(self._positions) - len(values)))
        for at, name in enumerate(names, 1):
            kept, is_object = self._values[name], name in _OBJECTS
            for place, row in zip(places, rows, strict=True):
                kept[place] = json.loads(row[at]) if is_object else row[at]

    def column(self, name: str) -> Column:
        found = self._columns.get(name)
        if found is None:
            made = {EXPECTED: self._expected, FRONT: self._fronts}.get(name)
            found = self._columns[name] = self._read_column(name) if made is None else made()
        return found

    def _fronts(self) -> Column:
        last = self._values["last"]
        rows = [[(kept or {}).get(metric) for metric, _ in self._objectives] for kept in last]
        # A metric can be null, which becomes NaN, or a text.
        numbers = [[one if isinstance(one, int | float) else math.nan for one in row] for row in rows]
        values = np.array(numbers, np.float64).reshape(len(rows), len(self._objectives))
        values[self._violating()] = math.nan
        return Column(self._kept_fronts.of(values, [mode for _, mode in self._objectives]))

    def _violating(self) -> NDArray[np.bool_]:
        """Return a mask of the trials whose results violate the constraints."""
        return np.array([feasible is not None and not feasible for feasible in self._values["feasible"]], np.bool_)

    def _read_column(self, name: str) -> Column:
        stored = _stored(name)
        values = self._values[stored]
        if stored != name:
            inner = name.partition(".")[2]
            values = [None if kept is None else kept.get(inner) for kept in values]
        return Column.of([_plain(value) for value in values])

    def _expected(self) -> Column:
        best = self.column("best_value")
        if self.expected is None:
            return best
        return Column(self.expected.values(self.numbers(), best.keys, self.column("repeat_of").keys))

    def numbers(self) -> NDArray[np.int64]:
        return self.column("number").keys.astype(np.int64)

    def fit(self, where: Sequence[Filter]) -> NDArray[np.bool_]:
        """Return a mask, by position, of the trials that meet all conditions."""
        fits = np.ones(len(self), np.bool_)
        for condition in where:
            meant = self._meant(condition)
            fits &= self.column(meant.name).fits(meant)
        return fits

    def _meant(self, condition: Filter) -> Filter:
        """Return the condition. If a trial has a parameter or a metric with a longer name that the text may mean, it is meant."""
        stored = _stored(condition.name)
        if stored == condition.name:
            return condition
        others = condition.others()
        known = {f"{stored}.{inner}" for kept in self._values[stored] for inner in kept or ()} if others else set()
        return next((other for other in others if other.name in known), condition)

    def order(self, sort: str) -> NDArray[np.intp]:
        """Return the positions of the trials, ordered by the column `sort`. A minus before its name means descending order.

        Trials with equal values are ordered by number. Trials that are `outside` come after all others that have a value, and
        trials without a value come last.
        """
        found = self._orders.get(sort)
        if found is None:
            name = sort.removeprefix("-")
            keys = self.column(name).keys
            signed = -keys if sort.startswith("-") else keys
            found = self._orders[sort] = np.lexsort((self.numbers(), signed, self.outside(name), np.isnan(keys)))
        return found

    def outside(self, name: str) -> NDArray[np.bool_]:
        """Return a mask of the trials that have a value but sort after the others, because none of them can be the best trial.

        Their results violate the constraints, or after repeats a run of their configuration was bad. Only `best_value` and
        `expected_value` make this distinction, because the first trial in their order has to be the best one.
        """
        if name not in _JUDGED:
            return np.zeros(len(self), np.bool_)
        outside = self._violating()
        if name == EXPECTED and self.expected is not None:
            outside |= self.expected.is_dropped(self.numbers(), self.column("repeat_of").keys)
        return outside & ~np.isnan(self.column(name).keys)

    def ranks(self, sort: str) -> NDArray[np.intp]:
        """Return the rank of each place in the order of `sort`, from 1.

        After repeats, the runs of one configuration share a rank, as all trials with equal values do. The trials of a front also
        share a rank.
        """
        order = self.order(sort)
        places = np.arange(1, len(order) + 1, dtype=np.intp)
        name = sort.removeprefix("-")
        if not len(order) or (name != FRONT and (name != EXPECTED or self.expected is None)):
            return places
        keys, outside = self.column(name).keys[order], self.outside(name)[order]
        equal = (keys[1:] == keys[:-1]) & (outside[1:] == outside[:-1])
        return np.maximum.accumulate(np.where(np.append(False, equal), 0, places))


def _stored(name: str) -> str:
    """Return the table column that holds the values with this name."""
    first, dot, _ = name.partition(".")
    return first if dot and first in _OBJECTS else name


def _read_for(name: str) -> list[str]:
    """Return the table columns that are needed to sort and filter by a column."""
    needed = {EXPECTED: ["best_value", "repeat_of"], FRONT: ["last"]}.get(name, [_stored(name)])
    return [*needed, "feasible"] if name in (*_JUDGED, FRONT) else needed


def _also_written(value: Any) -> list[str]:
    """Return the other texts of a whole number: 1 and 1.0 are the same number, and JavaScript writes both as 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= 2**53 or value % 1:
        return []
    return [dumps(int(value)), dumps(float(value))]


def _plain(value: Any) -> Any:
    """Return None for a number that is not finite, and any other value unchanged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Sorter:
    """Sorts and filters trials, and keeps the columns of the most recently used experiments. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[threading.Lock, Columns]] = OrderedDict()

    def page(
        self,
        cursor: Cursor,
        experiment: int,
        sort: str,
        where: Sequence[Filter],
        size: int,
        token: str | None,
        with_fronts: bool = False,
    ) -> tuple[dict[int, int | None], str | None, int]:
        """Return (trials on the page, token of the next page, total number of trials that match).

        The trials are a dict from number to front, in order. Without `with_fronts`, every front is None.
        """
        name = check_name(sort.removeprefix("-"), "/sort")
        lock, columns = self._columns(experiment)
        with lock:
            columns.refresh(cursor, [name, *(condition.name for condition in where), *([FRONT] if with_fronts else ())])
            column, numbers, order = columns.column(name), columns.numbers(), columns.order(sort)
            outside = columns.outside(name)
            fits = columns.fit(where)
            fronts = columns.column(FRONT).keys if with_fronts else None
        self._forget()
        order = order[fits[order]]
        total = len(order)
        if token is not None:
            last = _whole(column, numbers, decoded(token, sort))
            order = order[_behind(column, numbers, outside, order, sort.startswith("-"), last)]
        page = order[:size]
        more = len(order) > size
        following = encoded(sort, _place(column, numbers, outside, int(page[-1]))) if more else None
        return dict(zip(numbers[page].tolist(), _at(fronts, page), strict=True)), following, total

    def matching(self, cursor: Cursor, experiment: int, where: Sequence[Filter]) -> list[int]:
        """Return the numbers of all trials that meet the conditions, in ascending order."""
        lock, columns = self._columns(experiment)
        with lock:
            columns.refresh(cursor, [condition.name for condition in where])
            found = columns.numbers()[columns.fit(where)]
        self._forget()
        return sorted(found.tolist())

    def sample(
        self, cursor: Cursor, experiment: int, sort: str, size: int
    ) -> tuple[dict[int, tuple[int, int | None]], int]:
        """Return at most `size` trials as a dict from number to (rank in the order, front), and the total number of trials.

        Half of them are the first trials in the order. The other half is spread evenly over the remaining places. Unless the
        order is that of the fronts, every front is None.
        """
        name = check_name(sort.removeprefix("-"), "/sort")
        lock, columns = self._columns(experiment)
        with lock:
            columns.refresh(cursor, [name])
            numbers, order, ranks = columns.numbers(), columns.order(sort), columns.ranks(sort)
            fronts = columns.column(FRONT).keys if name == FRONT else None
        self._forget()
        total = len(order)
        first = min((size + 1) // 2, total)
        rest = np.linspace(first, total - 1, min(size - first, total - first)).round().astype(np.intp)
        places = np.concatenate([np.arange(first, dtype=np.intp), rest])
        found = zip(ranks[places].tolist(), _at(fronts, order[places]), strict=True)
        return dict(zip(numbers[order[places]].tolist(), found, strict=True)), total

    def _columns(self, experiment: int) -> tuple[threading.Lock, Columns]:
        with self._lock:
            found = self._kept.setdefault(experiment, (threading.Lock(), Columns(experiment)))
            self._kept.move_to_end(experiment)
            return found

    def _forget(self) -> None:
        with self._lock:
            while len(self._kept) > 1 and sum(len(columns) for _, columns in self._kept.values()) > MAX_TRIALS:
                self._kept.popitem(last=False)


def _at(fronts: Floats | None, positions: NDArray[np.intp]) -> list[int | None]:
    """Return the fronts at these positions; None for a trial on none, and everywhere if there are no fronts."""
    if fronts is None:
        return [None] * len(positions)
    return [None if math.isnan(front) else int(front) for front in fronts[positions].tolist()]


def _place(column: Column, numbers: NDArray[np.int64], outside: NDArray[np.bool_], at: int) -> Place:
    """Return the place of the trial at a position. A long text is truncated."""
    value = column.value(at)
    if isinstance(value, str):
        value = value[:MAX_TEXT_IN_TOKEN]
    return Place(value, int(numbers[at]), bool(outside[at]))


def _whole(column: Column, numbers: NDArray[np.int64], place: Place) -> Place:
    """Return the place with its full text, if `_place` may have truncated it and the trial's text still begins with it."""
    if isinstance(place.value, str) and len(place.value) == MAX_TEXT_IN_TOKEN:
        for at in np.flatnonzero(numbers == place.number).tolist():
            value = column.value(at)
            if isinstance(value, str) and value.startswith(place.value):
                return Place(value, place.number, place.outside)
    return place


def _behind(
    column: Column,
    numbers: NDArray[np.int64],
    outside: NDArray[np.bool_],
    order: NDArray[np.intp],
    descending: bool,
    last: Place,
) -> NDArray[np.bool_]:
    """Return a mask of the trials in `order` that come after `last`, the place of the last trial of the previous page."""
    keys, after, out = column.keys[order], numbers[order] > last.number, outside[order]
    nothing = np.isnan(keys)
    if last.value is None:
        return np.logical_and(nothing, after)
    if isinstance(last.value, str) != (column.words is not None):
        raise SpecError("the column's type has changed since that page; start with the first page", "/page_token")
    key = column.key(last.value)
    further = keys < key if descending else keys > key
    later = further | ((keys == key) & after)
    found: NDArray[np.bool_] = nothing | (out & ~np.bool_(last.outside)) | ((out == last.outside) & later)
    return found


def parsed(where: Sequence[str], state: str | None) -> list[Filter]:
    found = [Filter.parse(text) for text in where]
    return found if state is None else [Filter("state", "=", state), *found]
