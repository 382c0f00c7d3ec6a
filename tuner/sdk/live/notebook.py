"""Show an area that is updated in place, and tables as HTML, in a notebook.

All text is escaped, since names and messages may come from anyone. The colors suit both light and dark notebooks.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Protocol, TypeVar

from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tuner.names import printable
from tuner.space.words import unescape

ROWS = 30
"""The maximum number of rows in a table of trials or experiments. A line below the table counts the other rows."""

MOST_SHOWN = 50
"""The maximum number of a configuration's parameters that are shown on one line."""

_ROW = "border-top:1px solid rgba(128,128,128,.25)"
_CELL = (
    "padding:2px 12px 2px 0;text-align:{align};white-space:nowrap;max-width:36em;overflow:hidden;text-overflow:ellipsis"
)
_MIDDLE = (127, 127, 127)
_THEME = TerminalTheme(
    _MIDDLE,
    _MIDDLE,
    [_MIDDLE, (211, 47, 47), (56, 142, 60), (191, 129, 0), (25, 118, 210), (142, 36, 170), (0, 131, 143), _MIDDLE],
)


def is_here() -> bool:
    """Return True in the kernel of a notebook, and False in a terminal, even with IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class Area:
    """A part of a cell's output that each update replaces."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, page: str, plain: str) -> None:
        """Show this HTML. Front ends that cannot show HTML show the plain text instead."""
        from IPython.display import display  # the kernel has loaded this module already

        data = {"text/html": page, "text/plain": plain}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def lines(text: Text) -> str:
    """Return styled text as HTML, with its line breaks."""
    parts = []
    for piece in text.render(Console(file=sys.stderr, width=10_000)):
        if piece.text:
            css = piece.style.get_html_style(_THEME) if isinstance(piece.style, Style) else ""
            shown = html.escape(piece.text).replace("\n", "<br>")
            parts.append(f'<span style="{css}">{shown}</span>' if css else shown)
    return "".join(parts).removesuffix("<br>")


def bar(done: int, total: int) -> str:
    """Return a progress bar for `done` of `total`, as HTML."""
    share = 100 * min(done, total) / total
    return (
        '<div style="height:4px;max-width:48em;margin:4px 0;background:rgba(128,128,128,.25)">'
        f'<div style="height:4px;width:{share:.1f}%;background:rgb(56,142,60)"></div></div>'
    )


Columns = Sequence[tuple[str, bool]]
"""The name of each column, and True if its values are numbers."""


def table(columns: Columns, rows: Iterable[Sequence[object]]) -> str:
    """Return a table as HTML. The cells may be styled text."""
    aligns = ["right" if numbers else "left" for _, numbers in columns]
    head = "".join(
        f'<th style="{_CELL.format(align=align)};font-weight:normal;opacity:.6">{_cell(name)}</th>'
        for (name, _), align in zip(columns, aligns, strict=True)
    )
    body = "".join(
        f'<tr style="{_ROW}">'
        + "".join(
            f'<td style="{_CELL.format(align=align)}">{_cell(value)}</td>'
            for value, align in zip(row, aligns, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        '<table style="font-size:90%;border-collapse:collapse;margin:4px 0">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Return a table of names and values as HTML, without empty values."""
    rows = "".join(
        f'<tr><th style="{_CELL.format(align="left")};font-weight:normal;opacity:.6;vertical-align:top">{_cell(name)}</th>'
        f'<td style="text-align:left;white-space:pre-wrap">{_cell(value)}</td></tr>'
        for name, value in pairs
        if value not in (None, "")
    )
    return f'<table style="font-size:90%;border-collapse:collapse;margin:4px 0"><tbody>{rows}</tbody></table>'


def box(*parts: str) -> str:
    """Return the parts as HTML, one below the other."""
    return '<div style="line-height:1.5">' + "".join(parts) + "</div>"


def left_out(shown: int, total: int, where: str) -> str:
    """Return a line that says how many rows are not shown, and where to find them. Return "" if all rows are shown."""
    if shown >= total:
        return ""
    return f'<div style="opacity:.6;font-size:90%">and {total - shown:,} more: {html.escape(where)}</div>'


def number(value: float | None) -> str:
    """Return a number as text, or an empty string for None."""
    return "" if value is None else f"{value:.6g}"


def short(params: Mapping[str, Any]) -> str:
    """Return a configuration as ``lr=0.0123 width=32``. If it is large, its last parameters are only counted."""
    shown = [
        f"{unescape(path)}={value:.4g}" if isinstance(value, float) else f"{unescape(path)}={_cut(value)}"
        for path, value in islice(params.items(), MOST_SHOWN)
    ]
    if len(params) > MOST_SHOWN:
        shown.append(f"... ({len(params) - MOST_SHOWN} more)")
    return printable(" ".join(shown))


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _cell(value: object) -> str:
    return lines(value) if isinstance(value, Text) else html.escape(printable(str(value)))


class Row(Protocol):
    """An object that a table shows as a row."""

    COLUMNS: ClassVar[Columns]

    def cells(self) -> Sequence[object]:
        """Return the values of the row, in the order of the columns."""


R = TypeVar("R", bound=Row)


class Rows(list[R]):
    """A list of trials or experiments, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        if not self:
            return "<em>none</em>"
        shown = self[:ROWS]
        return box(
            table(type(self[0]).COLUMNS, (item.cells() for item in shown)),
            left_out(len(shown), len(self), f"[{ROWS}:] shows them"),
        )
