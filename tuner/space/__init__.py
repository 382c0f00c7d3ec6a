"""Search spaces: the primitives under Ray Tune's names, their JSON form, and `Space`, the one compiled form of both.

    {"lr": loguniform(1e-4, 1e-1), "model": {"width": choice([16, 32, 64])}, "epochs": 27}

    {"lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
     "model": {"width": {"type": "choice", "categories": [16, 32, 64]}}, "epochs": 27}

A parameter is named by its path, ``model/width``. A configuration travels as *flat params*: path -> JSON value, for the
parameters that are active in it. A choice of JSON scalars has the category as its value, any other choice the index of
its category. A category may be a space of its own; its parameters are active only there and are named by branch:
``optimizer/1/momentum`` is in force where ``optimizer`` has index 1.

JSON is data only. A Python object in a space (a class to choose from, a function of `sample_from`) is a place-holder in
the JSON form and travels in `blob()`, which REST cannot send.
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
