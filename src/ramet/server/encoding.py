"""How answers are written."""

from __future__ import annotations

import json
from typing import Any

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encoded(content: Any) -> bytes:
    """As JSON. Names of files may hold what is no UTF-8."""
    return _ENCODER.encode(content).encode("utf-8", "surrogatepass")
