"""What a Dreamer run keeps in memory, worked out from its configuration before anything is compiled."""

from __future__ import annotations

from typing import Any


def check_dreamer_memory(parts: Any, row: Any) -> None:
    pass
