"""Search spaces: primitives with Ray Tune's names, their JSON form, and `Space`, the compiled form of both.

    {"lr": loguniform(1e-4, 1e-1), "model": {"width": choice([16, 32, 64])}, "epochs": 27}

    {"lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
     "model": {"width": {"type": "choice", "categories": [16, 32, 64]}}, "epochs": 27}

A parameter is named by its path, ``model/width``. A configuration is stored as *flat params*: path -> JSON value, for
the parameters that are active in it. The value of a choice among JSON scalars is the category; the value of any other
choice is the index of its category. A category may itself be a space, which is called a *branch*. The parameters of a branch
are active only if the branch is chosen, and their paths include its index: ``optimizer/1/momentum`` is active if the value of
``optimizer`` is 1.

The JSON form contains data only. A placeholder replaces each Python object in a space, such as a class to choose or the function
of a `sample_from`. The objects themselves are in `blob()`, which cannot be sent over REST.
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
