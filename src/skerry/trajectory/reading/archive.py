"""All trajectories within reach: of this node's own log, and of all that nodes shipped to a store.

A sandbox's id names its node, so that finding one opens one log. Everything here blocks and is for
one thread at a time.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from skerry.errors import InvalidRequest, NotFound, SkerryError
from skerry.spec.ids import SANDBOX_PATTERN, check_sandbox_id
from skerry.spec.trajectory import (
    EVENTS_PAGE_MAX,
    Event,
    EventPage,
    TrajectoryInfo,
    TrajectoryPage,
)
from skerry.trajectory.format.store import Shelf
from skerry.trajectory.reading.blobs import Blobs
from skerry.trajectory.reading.log import Log
from skerry.trajectory.reading.sightings import Seen
from skerry.trajectory.reading.sources import Both, Directory, Shipped, Source, nodes_in

LOGS_KEPT: Final = 4  # of other nodes
NODES_FRESH_S: Final = 30.0
_CURSOR: Final = re.compile(r"([0-9]{1,20})\.(s[a-z2-7]{20})")


class Wanted(NamedTuple):
    """Which trajectories are asked for; None: any."""

    rollout: str | None = None
    job: str | None = None
    sandbox: str | None = None

    def covers(self, seen: Seen) -> bool:
        """Whether that one is among them."""
        return (
            self.rollout in (None, seen.rollout)
            and self.job in (None, seen.job)
            and self.sandbox in (None, seen.sandbox)
        )


class Archive:
    """Trajectories by sandbox. `own` is the log of a node that lives here, `shelf` a store."""

    def __init__(
        self,
        own: Directory | None,
        shelf: Shelf | None,
        now: Callable[[], float],
        *,
        own_blobs: str | None = None,
        breathe: Callable[[], None] = lambda: None,
    ) -> None:
        self.blobs = Blobs(own_blobs, shelf)
        self._shelf = shelf
        self._now = now
        self.breathe = breathe
        self._local = Log(own, breathe) if own is not None else None
        whole: Source | None = own
        if own is not None and shelf is not None:
            whole = Both(own, Shipped(shelf, own.node, now), now)
        self._whole = Log(whole, breathe) if whole is not None else None
        self._others: OrderedDict[str, Log] = OrderedDict()
        self._nodes: tuple[float, list[str]] = (-NODES_FRESH_S, [])

    def log_of(self, sandbox: str) -> Log:
        """Returns the log with a sandbox's trajectory; NotFound if there can be none."""
        check_sandbox_id(sandbox)
        node = sandbox[1:6]
        if self._whole is None or self._whole.node != node:
            return self._other(node)
        if self._local is not None and self._local is not self._whole:
            try:
                outline = self._local.outline(sandbox)
                if outline.began and outline.unbroken:  # the store need not be asked
                    return self._local
            except NotFound:
                pass
        return self._whole

    def rest(self) -> None:
        """Lets go of what is quickly read again: nobody has asked for anything for a while."""
        for log in (self._local, self._whole, *self._others.values()):
            if log is not None:
                log.rest()

    def whole_log_of(self, sandbox: str) -> Log:
        """Returns the log with everything there is of a sandbox, and what the store says of it."""
        check_sandbox_id(sandbox)
        if self._whole is not None and self._whole.node == sandbox[1:6]:
            return self._whole
        return self._other(sandbox[1:6])

    def info(self, sandbox: str) -> TrajectoryInfo:
        """Returns what is known of a trajectory; NotFound."""
        return self.log_of(sandbox).info(sandbox)

    def page(self, sandbox: str, start: int = 0, limit: int = EVENTS_PAGE_MAX) -> EventPage:
        """Returns events of a sandbox from an ordinal on; NotFound."""
        return self.log_of(sandbox).page(sandbox, start, limit)

    def events(self, sandbox: str) -> Iterator[Event]:
        """Yields all events of a sandbox, in order; NotFound."""
        return self.log_of(sandbox).events(sandbox)

    def select(self, wanted: Wanted, limit: int, cursor: str | None = None) -> TrajectoryPage:
        """Returns a page of trajectories, oldest first."""
        after = _after(cursor)
        seen = [
            (one.from_ns, one.sandbox, one, log)
            for log in self._logs(wanted)
            for one in log.sightings().all()
            if wanted.covers(one) and (one.from_ns, one.sandbox) > after
        ]
        seen.sort(key=lambda found: found[:2])
        page = seen[:limit]
        by_log: dict[str, tuple[Log, list[Seen]]] = {}
        for _, _, one, log in page:
            by_log.setdefault(log.node, (log, []))[1].append(one)
        infos = {info.sandbox: info for log, some in by_log.values() for info in log.infos(some)}
        items = tuple(infos[sandbox] for _, sandbox, _, _ in page)
        more = len(seen) > len(page)
        return TrajectoryPage(items, "{}.{}".format(*page[-1][:2]) if more else None)

    def logs(self) -> list[Log]:
        """Returns the logs of all nodes."""
        nodes = {} if self._whole is None else {self._whole.node: self._whole}
        return [
            *nodes.values(),
            *(self._other(node) for node in self._known() if node not in nodes),
        ]

    def _logs(self, wanted: Wanted) -> list[Log]:
        if wanted.sandbox is None:
            return self.logs()
        if SANDBOX_PATTERN.fullmatch(wanted.sandbox) is None:
            return []
        try:
            return [self.log_of(wanted.sandbox)]
        except NotFound:
            return []

    def _other(self, node: str) -> Log:
        """Returns the log of a node that is elsewhere, or was."""
        if self._shelf is None:
            raise NotFound(f"the node {node} is another one, and there is no store to look in")
        log = self._others.pop(node, None)
        if log is None:
            log = Log(Shipped(self._shelf, node, self._now), self.breathe)
        self._others[node] = log
        while len(self._others) > LOGS_KEPT:
            self._others.popitem(last=False)
        return log

    def _known(self) -> list[str]:
        """Returns the nodes that shipped something; those known before if the store is away."""
        if self._shelf is None:
            return []
        at, nodes = self._nodes
        if self._now() - at >= NODES_FRESH_S:
            try:
                nodes = nodes_in(self._shelf)
            except SkerryError:
                if self._whole is None:
                    raise
            self._nodes = (self._now(), nodes)
        return nodes


def _after(cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return (-1, "")
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise InvalidRequest(f"cursor: {cursor[:80]!r} is of no page")
    return int(found[1]), found[2]
