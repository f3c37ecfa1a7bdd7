"""Opens what a node keeps of what was done: the journal, its contents, and what ships them.

STATE/journal/             segments (trajectory/format/segment.py)
STATE/trajectory/blobs/    contents that are too long for a record (trajectory/shipping/contents.py)
STATE/trajectory/shipped   how far shipping has come (trajectory/shipping/shipper.py)
STATE/trajectory/owner     whose this node's name is in the store (trajectory/shipping/owner.py)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import NamedTuple

from skerry.node.clock import Clock
from skerry.node.ledger import Ledger
from skerry.node.trail.acts import Trail
from skerry.node.trail.levels import Levels
from skerry.node.trail.shipping import Shipping
from skerry.trajectory.format.store import Store
from skerry.trajectory.journal.journal import Journal
from skerry.trajectory.options import TrajectoryOptions
from skerry.trajectory.shipping.contents import Contents
from skerry.trajectory.shipping.owner import Owner
from skerry.trajectory.shipping.shipper import Shipper

log = logging.getLogger("skerry.node")


class Records(NamedTuple):
    """The parts of a node that write and keep records."""

    ledger: Ledger
    trail: Trail
    shipping: Shipping


def open_records(
    state_dir: str,
    options: TrajectoryOptions,
    clock: Clock,
    *,
    node: str,
    store: Callable[[], Store] | None,
) -> Records:
    """Returns the parts; raises StorageFailed. Without a store nothing is shipped."""
    ships = store is not None and options.ship
    place = os.path.join(state_dir, "journal")
    journal = Journal.open(
        place,
        now_ns=lambda: int(clock.wall() * 1e9),
        segment_bytes=options.segment_bytes,
        keep=ships,
    )
    for problem in journal.problems:
        log.warning("journal: %s", problem)
    contents = Contents(
        os.path.join(state_dir, "trajectory", "blobs"),
        inline_bytes=options.inline_bytes,
        # What is not shipped is not kept either: its digest still tells whether it was the same.
        bytes_max=options.content_bytes_max if ships else options.inline_bytes,
    )
    shipper = None
    if store is not None and options.ship:
        shipper = Shipper(
            store,
            node=node,
            journal=place,
            contents=contents,
            progress=os.path.join(state_dir, "trajectory", "shipped"),
            owner=Owner(store, node=node, path=os.path.join(state_dir, "trajectory", "owner")),
        )
    ledger = Ledger(journal)
    levels = Levels(journal, contents, shipper, options.durability)
    trail = Trail(ledger, contents, levels, lambda: journal.mark()[0], clock)
    shipping = Shipping(journal, contents, shipper, levels=levels, options=options, clock=clock)
    return Records(ledger, trail, shipping)
