from __future__ import annotations

import json
import math
from types import MappingProxyType

import numpy as np
import pytest

from tuner.store.sql.tables import dumps


def test_json_takes_what_python_code_has_for_it() -> None:
    value = {
        "tuple": (1, 2),
        "mapping": MappingProxyType({"a": {3, 1}}),
        "number": np.float64(0.5),
        "count": np.int64(3),
    }
    assert json.loads(dumps(value)) == {"tuple": [1, 2], "mapping": {"a": [1, 3]}, "number": 0.5, "count": 3}
    assert math.isnan(json.loads(dumps(math.nan)))
    assert dumps("\ud800\0").isascii()


def test_json_refuses_anything_else() -> None:
    with pytest.raises(TypeError, match="cannot be stored as JSON"):
        dumps({"a": object()})
