"""Write what commands print or export as JSON."""

from __future__ import annotations

import json
from typing import Any

from tuner.domain.json_values import plain


def dumps(value: Any, indent: int | None = None) -> str:
    """Return the value as JSON text, with null in place of NaN and infinities, which JSON does not have, as in the API."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)
