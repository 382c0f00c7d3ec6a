"""Pages of lists that are ordered by a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Select

from tuner.errors import SpecError
from tuner.store.records import Page

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
