"""Large objects that belong to a training function, sent to the ranks through Ray's object store.

Each object is stored in a file in the experiment's storage, so that another process can continue the experiment. The
file is named by a hash of its content. The driver host reads the file once and puts the object into the object store.
All ranks on a node share that copy, and arrays are not copied at all.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import EntrypointError, TunerError
from tuner.names import name_of
from tuner.trials.checkpoints.storage import join, place
from tuner.usercode.pickling import dumps


@dataclass(frozen=True, slots=True)
class Stored:
    """An object in a separate file, at a path or any pyarrow.fs URI."""

    uri: str

    def get(self) -> Any:
        """Return the object, with the function that `fetch_by` has set if there is one, else from its file."""
        return _fetch(self) if _fetch is not None else self.load()

    def load(self) -> Any:
        content = place(self.uri).read()
        if content is None:
            raise TunerError(f"an object that belongs to the training function is gone: {self.uri}")
        return pickle.loads(content)


Fetch = Callable[[Stored], Any]
_fetch: Fetch | None = None


def fetch_by(fetch: Fetch | None) -> None:
    """Set the function that gets stored objects in this process. If it is None, objects are read from their files."""
    global _fetch
    _fetch = fetch


KEEP_S = 3600.0
"""Objects stored within the last KEEP_S seconds are kept, because their experiment may not be in the database yet."""
SUFFIX = b".pkl"
"""The end of the name of each object's file."""
_FILE = re.compile(rb"[0-9a-f]{32}\.pkl")


def folder_of(storage: str, database: str) -> str:
    """Return the folder with the objects of the experiments in one database.

    Databases that share storage have separate folders, because a database does not know which objects the experiments
    in another database need.
    """
    key = hashlib.blake2b(database.encode(), digest_size=8).hexdigest()
    return join(storage, "objects", key)


def store(name: str, value: Any, storage: str, database: str = "") -> Stored:
    """Write the object to `storage`, unless it is already stored there. Raise EntrypointError if it cannot be pickled."""
    try:
        content = dumps(value, protocol=5)
    except Exception as error:
        raise EntrypointError(
            f"the object {name!r} ({type(value).__name__}) cannot be sent to other processes: {type(error).__name__}: {error}",
            "/trainable",
        ) from error
    file = f"{hashlib.blake2b(content, digest_size=16).hexdigest()}.pkl"
    folder = folder_of(storage, database)
    uri = join(folder, file)
    written = place(folder).modified().get(file, 0.0)
    if written and place(folder).local:
        os.utime(place(uri).path)
    elif time.time() - written > KEEP_S / 2:
        place(uri).write(content)
    return Stored(uri)


def sweep(storage: str, database: str, needed: Callable[[], Iterable[bytes]]) -> list[str]:
    """Delete the objects to which no experiment in this database refers, and return their names.

    Those of an experiment that has ended are kept, because users may continue, retry or fork it.

    needed: a function that yields the pickled training functions of all experiments, at least those that name an object. It is
        called only if there is an object that is old enough to be deleted.
    """
    folder = place(folder_of(storage, database))
    old = {name for name, written in folder.modified().items() if time.time() - written > KEEP_S}
    if not old:
        return []
    for blob in needed():
        old -= {name.decode() for name in _FILE.findall(blob)}
    for name in old:
        (folder / name).unlink()
    return sorted(old)


@dataclass(frozen=True)
class Parameterized:
    """A trainable with the objects that were passed to `tuner.with_parameters`.

    Calling it passes the objects to the trainable as keyword arguments.
    """

    trainable: Callable[..., Any]
    objects: Mapping[str, Any]

    @property
    def __name__(self) -> str:
        return name_of(self.trainable)

    @property
    def inner(self) -> Callable[..., Any]:
        return self.trainable

    def __call__(self, config: dict[str, Any]) -> Any:
        return self.trainable(config, **self.given())

    def given(self) -> dict[str, Any]:
        return {name: value.get() if isinstance(value, Stored) else value for name, value in self.objects.items()}


def with_parameters(trainable: Callable[..., Any], **objects: Any) -> Parameterized:
    """Pass large objects to a training function, or to the `setup` of a class, as keyword arguments.

    tuner.run(tuner.with_parameters(train, data=images), space, ...)

    The objects are not sent with each trial: they are stored once, and ranks get them through Ray's object store. The
    ranks on a node share the arrays in these objects, so the arrays are read-only.
    """
    if isinstance(trainable, Parameterized):
        return Parameterized(trainable.trainable, {**trainable.objects, **objects})
    return Parameterized(trainable, objects)
