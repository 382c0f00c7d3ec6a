"""Big objects that come with a training function: kept in a file, handed to the ranks through Ray's object store.

The file lies under the storage of the experiment and is named by its content, so that another process can take the experiment
up. The driver host reads it once and puts it into the object store; ranks of a node share what they read from there (arrays
are not copied at all).
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import EntrypointError, TunerError
from tuner.pickling import dumps
from tuner.trials.storage import join, place


@dataclass(frozen=True, slots=True)
class Stored:
    """An object in a file of its own: a path or any pyarrow.fs URI."""

    uri: str

    def get(self) -> Any:
        """The object, from the object store where there is a driver to ask, else from its file."""
        return _fetch(self) if _fetch is not None else self.load()

    def load(self) -> Any:
        content = place(self.uri).read()
        if content is None:
            raise TunerError(f"an object that belongs to the training function is gone: {self.uri}")
        return pickle.loads(content)


Fetch = Callable[[Stored], Any]
_fetch: Fetch | None = None


def fetch_by(fetch: Fetch | None) -> None:
    """How this process gets at stored objects; None: from their files."""
    global _fetch
    _fetch = fetch


def store(name: str, value: Any, storage: str) -> Stored:
    """Write the object below `storage`, once for equal content. EntrypointError where it cannot be pickled."""
    try:
        content = dumps(value, protocol=5)
    except Exception as error:
        raise EntrypointError(
            f"the object {name!r} ({type(value).__name__}) cannot be sent to other processes: {type(error).__name__}: {error}",
            "/trainable",
        ) from error
    file = f"{hashlib.blake2b(content, digest_size=16).hexdigest()}.pkl"
    folder = join(storage, "objects")
    uri = join(folder, file)
    if file not in place(folder).sizes():
        place(uri).write(content)
    return Stored(uri)


@dataclass(frozen=True)
class Parameterized:
    """A trainable with objects beside the configuration; what `tuner.with_parameters` gives.

    Called, it calls the function with them as keyword arguments.
    """

    trainable: Callable[..., Any]
    objects: Mapping[str, Any]

    @property
    def __name__(self) -> str:
        return getattr(self.trainable, "__name__", type(self.trainable).__name__)

    @property
    def inner(self) -> Callable[..., Any]:
        return self.trainable

    def __call__(self, config: dict[str, Any]) -> Any:
        return self.trainable(config, **self.given())

    def given(self) -> dict[str, Any]:
        return {name: value.get() if isinstance(value, Stored) else value for name, value in self.objects.items()}


def with_parameters(trainable: Callable[..., Any], **objects: Any) -> Parameterized:
    """Hand big objects to a training function, or to the `setup` of a class, as keyword arguments.

        tuner.run(tuner.with_parameters(train, data=images), space, ...)

    They do not travel with each trial: they are stored once, and ranks get them through Ray's object store. What arrays they
    hold is shared by the ranks of a node and read-only.
    """
    if isinstance(trainable, Parameterized):
        return Parameterized(trainable.trainable, {**trainable.objects, **objects})
    return Parameterized(trainable, objects)
