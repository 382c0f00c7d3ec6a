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
    """Raise EntrypointError if this process imports the user's code. `call` starts a search or continues one.

    Each trial of that search would import the code and call it again, without end.
    """
    if _imported:
        raise EntrypointError(
            f"{call} is called while a trial or a check imports {_imported[-1]}, so each trial would call it again, without end: "
            f'put the call of {call} below `if __name__ == "__main__":`',
            "/trainable",
        )
