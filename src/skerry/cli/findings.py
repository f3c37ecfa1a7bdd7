"""One finding of `skerry doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Check:
    """One finding. Only `missing` keeps sandboxes from running here."""

    name: str
    status: Literal["ok", "note", "warning", "missing"]
    found: str
    consequence: str = ""
    remedy: str = ""
