"""Read the curves that the page asks for, as the description of the answer says."""

from __future__ import annotations

import json
import math
import struct
from typing import Any


def from_columns(body: bytes) -> dict[str, Any]:
    """Return what is in an answer of curves as columns, in the form of the JSON answer."""
    (length,) = struct.unpack_from("<I", body)
    found: dict[str, Any] = json.loads(body[4 : 4 + length])
    assert length % 8 == 4, "the numbers behind the head are aligned"
    segments = [segment for series in found["series"] for segment in series["segments"]]
    total = sum(segment["count"] for segment in segments)
    y = struct.unpack_from(f"<{total}d", body, 4 + length)
    kind = {"int32": "i", "float64": "d"}[found.pop("x_type")]
    x = struct.unpack_from(f"<{total}{kind}", body, 4 + length + 8 * total)
    assert len(body) == 4 + length + 8 * total + struct.calcsize(f"<{total}{kind}")
    at = 0
    for segment in segments:
        end = at + segment.pop("count")
        segment["x"], segment["y"] = list(x[at:end]), [value if math.isfinite(value) else None for value in y[at:end]]
        at = end
    return found
