"""The route by which a harness adds to the record of a sandbox."""

from __future__ import annotations

import msgspec

from skerry.errors import InvalidRequest
from skerry.node.ledger import Did
from skerry.node.node import Node
from skerry.node.server.bodies import EVENTS
from skerry.node.server.exchange import Exchange
from skerry.spec.trajectory import blobs_of
from skerry.spec.values import check_value
from skerry.wire.events import EVENTS_MAX, EventsTaken, PostedEvent

_as_json = msgspec.json.Encoder().encode


async def post(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/events: on record, as durable as the sandbox asks for, or none of them."""
    exchange.allow("op")
    sandbox = node.sandboxes.get(exchange.path("id"))
    events = (await exchange.body(EVENTS)).events
    if not 1 <= len(events) <= EVENTS_MAX:
        raise InvalidRequest(f"events: {len(events)}, not 1 to {EVENTS_MAX}")
    now = node.clock.wall()
    entries = [_entry(event, now) for event in events]
    taken = await node.trail.posted(sandbox, entries, op=exchange.param("op"))
    await exchange.reply(EventsTaken(len(entries), taken))


def _entry(event: PostedEvent, now: float) -> Did:
    event.check()
    said = [event.request, event.result, event.usage, event.error and event.error.fields]
    check_value([*said, event.started, event.ended], "event", finite=True)
    if next(blobs_of(said), None) is not None:  # what nobody keeps would read as lost
        raise InvalidRequest(
            "event: it names a content of the record (`blob`): say it, or its sha256"
        )
    try:
        _as_json(event)  # msgpack holds more than a reader could write down
    except (
        TypeError,
        ValueError,
        UnicodeEncodeError,
        RecursionError,
        msgspec.MsgspecError,
    ) as error:
        raise InvalidRequest(f"event: {str(error)[:200]}") from error
    result = event.result
    if result is None and event.error is None:
        result = {}
    started = now if event.started is None else event.started
    ended = now if event.ended is None else event.ended
    return Did(
        event.action,
        event.request,
        result=result,
        error=event.error,
        started=started,
        ended=ended,
        usage=event.usage,
    )
