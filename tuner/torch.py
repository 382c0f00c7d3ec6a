"""`from tuner.torch import ...`; see `tuner.trials.training.torch`."""

from tuner.trials.training.torch import *  # noqa: F403
from tuner.trials.training.torch import __all__ as __all__
