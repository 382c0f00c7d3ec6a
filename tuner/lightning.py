"""`from tuner.lightning import ...`; see `tuner.trials.lightning`."""

from tuner.trials.lightning import *  # noqa: F403
from tuner.trials.lightning import __all__ as __all__
