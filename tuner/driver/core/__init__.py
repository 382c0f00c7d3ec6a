"""The pure core of a driver: events go in, log entries and actions come out. It has no clock, no I/O and no Ray.

`Core` (in `core`) has two entry points, which lead to the same state:

* `handle(event)`, in a running driver: apply the event, decide, apply the decisions; return the log entries to commit and the
  actions to carry out after the commit.
* `fold(seq, entry)`, after a restart: apply one committed entry. Nothing is decided, and no action is returned.

`State` (in `state.state`) holds everything that is known about the experiment. Its `apply` is the only function that changes
trials and segments, apart from `set_milestone`. `Decider` (in `decider`) reads the state and returns decisions; it
changes nothing.
"""

from tuner.driver.core.core import Core as Core
from tuner.driver.core.state.effects import Effects as Effects
