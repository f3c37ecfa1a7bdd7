"""The sandboxes of this node: found by id or key, listed in pages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from skerry.errors import Conflict, InvalidRequest, NotFound
from skerry.node.life.sandbox import Sandbox
from skerry.spec import ids
from skerry.spec.sandbox import State
from skerry.wire.http import SandboxPage


class Sandboxes:
    """Every sandbox by id, oldest first, and by its idempotency key.

    Invariant: a key names at most one sandbox, and that one is in `by_id`.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.by_id: dict[str, Sandbox] = {}
        self.by_key: dict[str, Sandbox] = {}
        self.held: dict[str, tuple[str, ...]] = {}  # layers of what outlives its sandbox, by name

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(tuple(self.by_id.values()))

    def add(self, sandbox: Sandbox) -> None:
        """Makes it findable; Conflict if its key is taken."""
        key = sandbox.spec.key
        if key is not None:
            if key in self.by_key:
                raise Conflict(f"the key {key!r} is taken by {self.by_key[key].id}")
            self.by_key[key] = sandbox
        self.by_id[sandbox.id] = sandbox

    def remove(self, sandbox: Sandbox) -> None:
        """Forgets it and frees its key; idempotent."""
        self.by_id.pop(sandbox.id, None)
        key = sandbox.spec.key
        if key is not None and self.by_key.get(key) is sandbox:
            del self.by_key[key]

    def find(self, sandbox_id: str) -> Sandbox | None:
        """Returns it, or None; InvalidRequest if that is no id."""
        sandbox = self.by_id.get(sandbox_id)
        if sandbox is None:
            ids.check_sandbox_id(sandbox_id)
        return sandbox

    def get(self, sandbox_id: str) -> Sandbox:
        """Returns it; NotFound (or InvalidRequest if that is no id)."""
        sandbox = self.by_id.get(sandbox_id)
        if sandbox is not None:
            return sandbox
        ids.check_sandbox_id(sandbox_id)
        if sandbox_id[1:6] != self.node:
            raise NotFound(f"sandbox {sandbox_id} belongs to node {sandbox_id[1:6]}")
        raise NotFound(f"there is no sandbox {sandbox_id}; it may have been deleted")

    def digests(self) -> set[str]:
        """Returns the layers that sandboxes are made of, and their parts: these must stay."""
        used = {
            digest
            for sandbox in self.by_id.values()
            for digest in (*sandbox.digests, *(one.digest for one in sandbox.mounts))
        }
        return used.union(*self.held.values())

    def page(
        self,
        *,
        states: Collection[State],
        labels: Mapping[str, str],
        key: str | None,
        job: str | None = None,
        limit: int,
        cursor: str | None,
    ) -> SandboxPage:
        """Returns at most `limit` sandboxes that match everything given, oldest first."""
        after = _parse_cursor(cursor)
        matches = _filter(states, labels, job)
        if key is not None:
            one = self.by_key.get(key)
            return SandboxPage((one.info(),) if one is not None and matches(one) else ())
        found: list[Sandbox] = []
        for sandbox in self.by_id.values():
            if after is not None and (sandbox.created, sandbox.id) <= after:
                continue
            if matches(sandbox):
                found.append(sandbox)
                if len(found) > limit:
                    break
        items = tuple(sandbox.info() for sandbox in found[:limit])
        more = len(found) > limit
        return SandboxPage(items, f"{found[limit - 1].created!r}_{items[-1].id}" if more else None)


def _filter(
    states: Collection[State], labels: Mapping[str, str], job: str | None
) -> Callable[[Sandbox], bool]:
    def matches(sandbox: Sandbox) -> bool:
        if job is not None and sandbox.spec.job != job:
            return False
        if states and sandbox.state not in states:
            return False
        own = sandbox.spec.labels
        return all(own.get(name) == value for name, value in labels.items())

    return matches


def _parse_cursor(cursor: str | None) -> tuple[float, str] | None:
    if cursor is None:
        return None
    created, _, sandbox_id = cursor.partition("_")
    try:
        return float(created), ids.check_sandbox_id(sandbox_id)
    except ValueError as error:
        raise InvalidRequest("cursor: not one that this node gave out") from error
