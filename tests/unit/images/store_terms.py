"""Terms for stores that no other process uses: nothing has to be waited for."""

from __future__ import annotations

from skerry.images.objects.api import Objects
from skerry.images.store.leases import Leases, Timing


def impatient(objects: Objects) -> Leases:
    return Leases(objects, timing=Timing(lag_s=0.0, margin_s=0.0, window_s=60.0, keep_s=0.0))
