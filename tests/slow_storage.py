"""A storage for tests, at URIs such as fsspec+slow:///tmp/x: the local directory of that path, to which uploads can be held up.

Call `install` in every process that uses the storage: in the test, and in the training function.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tuner.trials.checkpoints import storage

_HOLD, _BREAK, _DELAY = "hold", "break", "delay"


class SlowStorage:
    """The switches of a slow storage, for the test that uses it. Any process can use a switch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.uri = folder, f"fsspec+slow://{folder}/kept"
        folder.mkdir(parents=True, exist_ok=True)
        install()

    def hold(self, name: str = "") -> None:
        """Let uploads wait if their path contains this name, until `let_go` is called."""
        (self.folder / _HOLD).write_text(name)

    def let_go(self) -> None:
        """Let all uploads go on."""
        (self.folder / _HOLD).unlink(missing_ok=True)

    def delay(self, seconds: float) -> None:
        """Delay each later upload by this many seconds."""
        (self.folder / _DELAY).write_text(str(seconds))

    def fail(self) -> None:
        """Let every upload fail, those that wait now included."""
        (self.folder / _BREAK).touch()
        self.let_go()


def install() -> None:
    """Let this process understand fsspec+slow:// URIs."""
    if hasattr(storage._filesystem, "slow"):
        return
    from pyarrow import fs

    other, upload = storage._filesystem, storage.Place.upload

    def find(uri: str) -> tuple[Any, str]:
        path = uri.removeprefix("fsspec+slow://")
        return (fs.LocalFileSystem(), path) if path != uri else other(uri)

    def slowly(self: storage.Place, source: str) -> None:
        if self.uri.startswith("fsspec+slow://"):
            folder = Path(self.path.partition("/kept/")[0])
            while _held(folder / _HOLD, self.path):
                time.sleep(0.005)
            if (folder / _DELAY).exists():
                time.sleep(float((folder / _DELAY).read_text()))
            if (folder / _BREAK).exists():
                raise OSError("the bucket is gone")
        upload(self, source)

    find.slow = True  # type: ignore[attr-defined]
    storage._filesystem, storage.Place.upload = find, slowly  # type: ignore[assignment, method-assign]


def _held(switch: Path, path: str) -> bool:
    try:
        return switch.read_text() in path
    except FileNotFoundError:
        return False
