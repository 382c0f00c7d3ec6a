"""What is kept in the storage of an experiment: checkpoints first of all, and the objects and packages that code needs.

Files and folders at a path or a URI belong here (`storage`), what makes a folder a committed checkpoint (`checkpoints`), the
thread in which a rank saves (`saver`), the copying between the disks of nodes (`transfer`), the objects of
`tuner.with_parameters` (`objects`), and the packed directories of a `runtime_env` (`packages`).
"""

from typing import TYPE_CHECKING

from tuner.trials import moved

if not TYPE_CHECKING:  # for pickles only: `Checkpoint` was in a module of this name
    __getattr__ = moved.names_of(__name__)
