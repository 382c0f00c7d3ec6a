"""Values that JSON can represent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Return the value with None in place of NaN and infinities, which JSON does not have."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return value
