"""`from tuner.torch import ...`; see `tuner.trials.torch`."""

from tuner.trials.torch import *  # noqa: F403
from tuner.trials.torch import __all__ as __all__
