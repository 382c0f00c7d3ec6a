"""Pages of lists that are ordered by a number, or by a column that users choose."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, and_, or_

from tuner.errors import SpecError
from tuner.store.records import Page
from tuner.store.sql.tables import dumps

T = TypeVar("T")


def page(
    connection: Connection, query: Select[Any], size: int, build: Callable[[Any], T], key: Callable[[T], int]
) -> Page[T]:
    """Return one page of a query. Read one item more than the page needs, to find out whether there is a next page."""
    items = [build(row) for row in connection.execute(query.limit(size + 1)).mappings()]
    return Page(tuple(items[:size]), str(key(items[size - 1])) if len(items) > size else None)


def number(token: str) -> int:
    """Return the number in a page token, after which the page begins. Raise SpecError if `token` is not a page token."""
    try:
        found = int(token)
    except ValueError:
        found = -1
    if not 0 <= found < 2**62:
        raise SpecError("not a page token; use next_page_token", "/page_token")
    return found


def encoded(sort: str, value: Any, number: int) -> str:
    """Return the token of the page behind the row with this value of the column `sort` and this number."""
    return base64.urlsafe_b64encode(dumps([sort, value, number]).encode()).decode()


def decoded(token: str, sort: str) -> tuple[Any, int]:
    """Return the value and the number in a token of `encoded`. Raise SpecError if it was not made for this sort order."""
    try:
        made_for, value, number = json.loads(base64.urlsafe_b64decode(token))
        if made_for != sort or not isinstance(number, int) or not isinstance(value, str | float | int | None):
            raise ValueError
    except (ValueError, TypeError):
        raise SpecError("not a page token for this sort order; use next_page_token", "/page_token") from None
    return value, number


def behind(
    column: ColumnElement[Any], descending: bool, tie: ColumnElement[int], last: tuple[Any, int]
) -> ColumnElement[bool]:
    """Return a condition for the rows after `last`, a value of `column` and of `tie`.

    Rows without a value come last in either direction. Rows with equal values are ordered by `tie`, the largest first.
    """
    value, number = last
    nothing = column.is_(None)
    if value is None:
        return and_(nothing, tie < number)
    further = column < value if descending else column > value
    return or_(nothing, further, and_(column == value, tie < number))
