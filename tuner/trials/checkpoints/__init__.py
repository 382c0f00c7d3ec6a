"""The files in the storage of an experiment: checkpoints, and the objects and packages that code needs.

`storage` reads and writes folders at a path or a URI. `checkpoints` makes a folder a committed checkpoint. `saver` is
the thread in which a rank saves. `transfer` copies between the disks of nodes. `objects` has the objects of
`tuner.with_parameters`, and `packages` the packed directories of a `runtime_env`.
"""

from typing import TYPE_CHECKING

from tuner.trials import moved

if not TYPE_CHECKING:  # only for pickles: `Checkpoint` was in a module of this name
    __getattr__ = moved.names_of(__name__)
