"""Pages of lists that are ordered by a number, or by a column that users choose."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, and_, or_

from tuner.errors import SpecError
from tuner.store.records import Page

T = TypeVar("T")

SORT_IN_TOKEN = 40  # in a token, a longer sort order is replaced with its hash


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a row in a sorted list."""

    value: str | float | None
    """The row's value in the column by which the list is sorted; None if it has none."""

    number: int
    """The number of the row, by which rows with equal values are ordered."""

    outside: bool = False
    """True if the row violates the constraints and therefore comes after those that do not."""


def page(
    connection: Connection, query: Select[Any], size: int, build: Callable[[Any], T], key: Callable[[T], int]
) -> Page[T]:
    """Return one page of a query. Read one item more than fits on it, to find out whether there is a next page."""
    items = [build(row) for row in connection.execute(query.limit(size + 1)).mappings()]
    return Page(tuple(items[:size]), str(key(items[size - 1])) if len(items) > size else None)


def number(token: str) -> int:
    """Return the number that a page token encodes; the page starts after it. Raise SpecError if `token` is not a page token."""
    try:
        found = int(token)
    except ValueError:
        found = -1
    if not _is_number(found):
        raise SpecError("not a page token; use next_page_token", "/page_token")
    return found


def encoded(sort: str, place: Place) -> str:
    """Return the token of the page that starts after this place."""
    parts = [_made_for(sort), place.value, place.number, *([True] if place.outside else [])]
    # Text that is not ASCII is not escaped. The escaped form of a long name would be too long for a URL.
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def decoded(token: str, sort: str, kind: type | None = None) -> Place:
    """Return the place that `encoded` has put into a token.

    Args:
        token: the token, which a client may have changed.
        sort: the sort order.
        kind: the type of the column's values: str, int or float. None: any of these.

    Raises:
        SpecError: the token was not made for this sort order.
    """
    try:
        made_for, value, number, *outside = json.loads(base64.urlsafe_b64decode(token))
        fits = value is None or _fits(value, kind or type(value))
    except (ValueError, TypeError, OverflowError, RecursionError):
        made_for = value = number = None
        fits, outside = False, []
    if made_for != _made_for(sort) or not fits or not _is_number(number) or outside not in ([], [True]):
        raise SpecError("not a page token for this sort order; use next_page_token", "/page_token")
    return Place(float(value) if kind is float and value is not None else value, number, bool(outside))


def _made_for(sort: str) -> str:
    return sort if len(sort) <= SORT_IN_TOKEN else hashlib.sha256(sort.encode()).hexdigest()[:SORT_IN_TOKEN]


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _fits(value: Any, kind: type) -> bool:
    """Return whether both databases can compare a column of this type with the value."""
    if kind is str:
        return isinstance(value, str) and "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)
    if isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, int) and abs(value) < 2**31
    return kind is float and isinstance(value, int | float) and math.isfinite(value)


def behind(column: ColumnElement[Any], descending: bool, tie: ColumnElement[int], last: Place) -> ColumnElement[bool]:
    """Return a condition for the rows after the place `last`, which has a value of `column` and of `tie`.

    Rows without a value come last in either direction. Rows with equal values are ordered by `tie`, largest first.
    """
    nothing = column.is_(None)
    if last.value is None:
        return and_(nothing, tie < last.number)
    further = column < last.value if descending else column > last.value
    return or_(nothing, further, and_(column == last.value, tie < last.number))
