"""Search spaces: primitives with Ray Tune's names, their JSON form, and `Space`, into which both are compiled.

    {"lr": loguniform(1e-4, 1e-1), "model": {"width": choice([16, 32, 64])}, "epochs": 27}

    {"lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
     "model": {"width": {"type": "choice", "categories": [16, 32, 64]}}, "epochs": 27}

A parameter is named by its path, ``model/width``. A configuration is stored as *flat params*: path -> JSON value, for
the parameters that are active in it. The value of a choice among JSON scalars is the category; the value of any other
choice is the index of its category. A category may be a space of its own. The parameters of such a branch are active
only if it is chosen, and their paths include its index: ``optimizer/1/momentum`` is active if ``optimizer`` has index
1.

The JSON form contains data only. A Python object in a space (a class to choose, a function of `sample_from`) is
replaced by a placeholder in the JSON form and stored in `blob()`, which cannot be sent over REST.
"""

from tuner.space.nodes import Opaque
from tuner.space.parameter import Branch, Parameter
from tuner.space.primitives import (
    Domain,
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from tuner.space.space import Space

__all__ = [
    "Branch",
    "Domain",
    "Opaque",
    "Parameter",
    "Space",
    "choice",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "uniform",
]
