"""Files in an experiment's storage: checkpoints, and the objects and packages that the training code needs.

`storage` reads and writes folders at a path or a URI. `checkpoints` turns a folder into a committed checkpoint. `saver`
saves a rank's checkpoints in a background thread. `transfer` copies checkpoints from one node's disk to another's.
`objects` stores the objects passed to `tuner.with_parameters`, and `packages` the directories of a `runtime_env`.
"""

from typing import TYPE_CHECKING

from tuner.trials import moved

if not TYPE_CHECKING:  # for old pickles, which refer to the class `Checkpoint` in a module of this name
    __getattr__ = moved.names_of(__name__)
