"""Which model requests of a rollout are new, and which are earlier ones once more. Pure.

A frozen sandbox, a lost host and an impatient client all look alike: the same body comes again. It must
get the answer that was asked for already, and never a second sampling; but a scaffold that asks the same
twice, one after the other or at once, wants two samplings. In this order:

1. The node relays a request under a name of its own, and sends it again under that name.
2. An earlier one, equal, whose client has left before its answer was handed over: the oldest.
3. One whose answer was handed over while its sandbox was paused, if nothing new was asked since: its
   client may have stopped waiting. Once.
4. The client says that it tries again (`X-Stainless-Retry-Count`): the newest that is equal.
5. Else it is new.

An answer that is an error to be tried again is nobody's answer but its own client's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from skerry.errors import Conflict, Overloaded
from skerry.worker.model.book import Again, Asked, Call, Handed, Note

REQUESTS_MAX = 100_000  # of one rollout


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the node relays it, and what the node knows of the sandbox's others."""

    call: Call
    digest: str
    relay: str
    body: bytes
    stream: bool = False
    usage: bool = False
    retry: bool = False  # the client says that it tries again
    waiting: frozenset[str] = frozenset()  # relays whose clients are there and have no whole answer
    handed: tuple[Handed, ...] = ()


@dataclass(slots=True)
class Known:
    """One ordinal."""

    ordinal: int
    digest: str
    relay: str  # the newest under which it came
    handed: bool = False
    doubt_at: int = -1  # how many ordinals there were when it was handed to a paused sandbox
    failed: bool = False


class Ordinals:
    """The ordinals of one rollout. `place` decides, `apply` is what follows from a decision."""

    def __init__(self, notes: Iterable[Note] = ()) -> None:
        self._known: list[Known] = []
        self._by_digest: dict[str, list[Known]] = {}
        self._by_relay: dict[str, Known] = {}
        self.apply(notes)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, relay: str) -> int | None:
        """Returns the ordinal of a relayed request; None if it never came."""
        known = self._by_relay.get(relay)
        return None if known is None else known.ordinal

    def failed(self, ordinal: int) -> bool:
        """Whether its answer is on record as an error to be tried again."""
        return self._known[ordinal].failed

    def news(self, handed: Iterable[Handed]) -> list[Note]:
        """Returns what of it is not on record yet; what is nobody's newest relay says nothing."""
        found: dict[str, Note] = {}
        for one in handed:
            known = self._by_relay.get(one.relay)
            if known is not None and known.relay == one.relay and not known.handed:
                found[one.relay] = one
        return list(found.values())

    def place(self, incoming: Incoming, at: float) -> tuple[int, list[Note]]:
        """Returns the request's ordinal, and the notes to be recorded and then applied.

        Changes nothing. Raises Overloaded beyond REQUESTS_MAX, Conflict for a relayed request that
        comes again with another body.
        """
        notes = self.news(incoming.handed)
        same = self._by_relay.get(incoming.relay)
        if same is not None:
            if same.digest != incoming.digest:
                raise Conflict("the node relays another body under the name of this one")
            return same.ordinal, notes
        handed_now = {note.relay: note for note in notes if isinstance(note, Handed)}
        found = self._earlier(incoming, handed_now)
        if found is not None:
            notes.append(Again(ordinal=found.ordinal, relay=incoming.relay, at=at))
            return found.ordinal, notes
        ordinal = len(self._known)
        if ordinal >= REQUESTS_MAX:
            raise Overloaded(
                f"{REQUESTS_MAX} model requests in one rollout", limit="model_requests"
            )
        notes.append(
            Asked(
                ordinal=ordinal,
                call=incoming.call,
                digest=incoming.digest,
                relay=incoming.relay,
                body=incoming.body,
                at=at,
                stream=incoming.stream,
                usage=incoming.usage,
            )
        )
        return ordinal, notes

    def apply(self, notes: Iterable[Note]) -> None:
        """Takes what is on record."""
        for note in notes:
            if isinstance(note, Asked):
                known = Known(note.ordinal, note.digest, note.relay)
                self._known.append(known)
                self._by_digest.setdefault(note.digest, []).append(known)
                self._by_relay[note.relay] = known
            elif isinstance(note, Again):
                known = self._known[note.ordinal]
                known.relay, known.handed, known.doubt_at = note.relay, False, -1
                self._by_relay[note.relay] = known
            elif isinstance(note, Handed):
                known = self._by_relay[note.relay]
                known.handed = True
                known.doubt_at = len(self._known) if note.held else -1
            else:
                self._known[note.ordinal].failed = True

    def _earlier(self, incoming: Incoming, handed_now: dict[str, Handed]) -> Known | None:
        equal = [one for one in self._by_digest.get(incoming.digest, ()) if not one.failed]
        for one in equal:
            handed = one.handed or one.relay in handed_now
            if not handed and one.relay not in incoming.waiting:
                return one
        for one in equal:
            late = handed_now.get(one.relay)
            at = one.doubt_at if late is None else (len(self._known) if late.held else -1)
            if at == len(self._known):
                return one
        return equal[-1] if incoming.retry and equal else None
