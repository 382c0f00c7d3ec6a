"""Refuse searches that the user's code would start while this process imports the code for a trial or a check."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tuner.errors import EntrypointError

_imported: list[str] = []


@contextlib.contextmanager
def importing(what: str) -> Iterator[None]:
    """Mark this process as importing `what`, the name of a module or a function, within this block."""
    _imported.append(what)
    try:
        yield
    finally:
        _imported.pop()


def refuse_while_importing(call: str) -> None:
    """Raise EntrypointError if `call` starts a search while this process imports the user's code.

    Each trial of such a search would import the code and start another search, without end.
    """
    if _imported:
        raise EntrypointError(
            f"{call} is called while a trial or a check imports {_imported[-1]}, which would start searches without end: "
            f'put the call of {call} below `if __name__ == "__main__":`',
            "/trainable",
        )
