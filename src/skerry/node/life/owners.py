"""Owner connections (decision 21): undetached sandboxes live as long as their owner does.

An owner is a random name that a client chose or was given. It lives while a connection holds it,
and `lease_s` seconds longer if that connection is lost; an orderly close ends it at once. In the
embedded mode the daemon ends when no owner and no sandbox is left.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from skerry.errors import Bug, Conflict, InvalidRequest, Overloaded, Unavailable
from skerry.node.life.sandbox import Sandbox
from skerry.node.timers import Timer, Timers

RETRY_S: Final = 0.2
OWNER: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")


@dataclass(slots=True, eq=False)
class Owner:
    """Invariant: `lease` is set exactly while no connection holds the owner."""

    name: str
    connections: int = 0
    lease: Timer | None = None
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)


class Owners:
    """Who owns what, and what happens when an owner is gone.

    `abandon(sandbox)` is called for every sandbox of an owner that ended; `idle()` whenever the
    last owner has ended or the last sandbox has gone.
    """

    def __init__(self, timers: Timers, *, lease_s: float, owners_max: int, required: bool) -> None:
        self.lease_s = lease_s
        self.abandon: Callable[[Sandbox], None] = _unset
        self.idle: Callable[[], None] = lambda: None
        self._timers = timers
        self._owners: dict[str, Owner] = {}
        self._owners_max = owners_max
        self._required = required
        self._expecting_until = float("-inf")

    def __len__(self) -> int:
        return len(self._owners)

    def expect(self) -> None:
        """The node has just started: for the time of a lease, owners of earlier may come back.

        One that had no sandbox is in no journal. Its connection and its requests race for the new
        node, and a request that comes first must be asked again, not refused.
        """
        self._expecting_until = self._timers.now() + self.lease_s

    def connect(self, name: str | None) -> Owner:
        """Returns the owner, held by one more connection; a new one if the name is new or None."""
        if name is None:
            name = secrets.token_hex(16)
        check_name(name)
        owner = self._owners.get(name)
        if owner is None:
            if len(self._owners) >= self._owners_max:
                raise Overloaded(
                    f"owners: {len(self._owners)} of {self._owners_max} are connected",
                    limit="owners",
                    retry_after_s=self.lease_s,
                )
            owner = self._owners[name] = Owner(name)
        owner.connections += 1
        if owner.lease is not None:
            owner.lease.cancel()
            owner.lease = None
        return owner

    def disconnect(self, owner: Owner, *, orderly: bool) -> None:
        """One connection less. The last one starts the lease, or ends the owner if it was orderly."""
        owner.connections -= 1
        if owner.connections:
            return
        if orderly:
            self._end(owner)
        else:
            owner.lease = self._timers.after(self.lease_s, lambda: self._end(owner))

    def admit(self, name: str | None, *, detached: bool) -> str | None:
        """Returns the owner for a new sandbox; raises if it would have none and needs one."""
        if name is not None:
            check_name(name)
        if detached:
            return None
        if name is None:
            if self._required:
                raise InvalidRequest(
                    "this node is an embedded one: what is not detached ends with its client, who "
                    "has to hold an owner connection (GET /v1/connection), as the SDK of this "
                    "version does; or make it detached"
                )
            return None
        if name not in self._owners:
            if self._timers.now() < self._expecting_until:
                raise Unavailable(
                    "the node has restarted and the owner's connection is not here yet: ask again",
                    retry_after_s=RETRY_S,
                )
            raise Conflict(f"the owner {name} is not connected, or its lease ran out")
        return name

    def add(self, sandbox: Sandbox) -> None:
        """Puts a sandbox under its owner; one that ended meanwhile abandons it at once."""
        if sandbox.owner is None:
            return
        owner = self._owners.get(sandbox.owner)
        if owner is None:
            self.abandon(sandbox)
            return
        owner.sandboxes[sandbox.id] = sandbox

    def recover(self, sandbox: Sandbox) -> None:
        """Puts a recovered sandbox under its owner, whose lease begins now unless it is here."""
        if sandbox.owner is None:
            return
        owner = self._owners.get(sandbox.owner)
        if owner is None:
            owner = self._owners[sandbox.owner] = Owner(sandbox.owner)
            started = owner
            owner.lease = self._timers.after(self.lease_s, lambda: self._end(started))
        owner.sandboxes[sandbox.id] = sandbox

    def remove(self, sandbox: Sandbox) -> None:
        """A sandbox is gone."""
        if sandbox.owner is not None and sandbox.owner in self._owners:
            self._owners[sandbox.owner].sandboxes.pop(sandbox.id, None)
        self.idle()

    def _end(self, owner: Owner) -> None:
        if self._owners.get(owner.name) is not owner or owner.connections:
            return
        del self._owners[owner.name]
        if owner.lease is not None:
            owner.lease.cancel()
        for sandbox in tuple(owner.sandboxes.values()):
            self.abandon(sandbox)
        self.idle()

    def check_invariants(self) -> None:
        """Raises Bug unless every owner is held by a connection or by a lease."""
        for owner in self._owners.values():
            if (owner.lease is None) != (owner.connections > 0):
                raise Bug(f"owner {owner.name}: {owner.connections} connections, {owner.lease}")


def check_name(name: str) -> None:
    """Raises InvalidRequest unless that may be an owner's name."""
    if OWNER.fullmatch(name) is None:
        raise InvalidRequest("owner: 16 to 64 characters of letters, digits, - and _")


def _unset(_sandbox: Sandbox) -> None:
    raise Bug("nobody was told what to do with abandoned sandboxes")


class Exit:
    """Ends an embedded daemon once it has no owner and no sandbox for a short while."""

    def __init__(
        self,
        timers: Timers,
        *,
        busy: Callable[[], bool],
        leave: Callable[[], None],
        grace_s: float,
        first_owner_s: float,
    ) -> None:
        self._timers = timers
        self._busy = busy
        self._leave = leave
        self._grace_s = grace_s
        self._timer: Timer | None = timers.after(first_owner_s, self._look)

    def consider(self) -> None:
        """Something ended: perhaps that was the last."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._busy():
            self._timer = self._timers.after(self._grace_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._busy():
            self._leave()
