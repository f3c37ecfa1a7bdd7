"""Bodies of model requests: read with suspicion, and one spelling of each. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec.values import check_value
from skerry.worker.model.book import Call

BODY_BYTES_MAX = 32 << 20
_encode = msgspec.json.Encoder(order="deterministic").encode


def parse(call: Call, body: bytes) -> dict[str, Any]:
    """Returns the body of a call; raises InvalidRequest for what is none.

    Looked at are only the fields on which serving it depends; all others are the trainer's business.
    """
    if len(body) > BODY_BYTES_MAX:
        raise InvalidRequest(f"the body has {len(body)} bytes, at most {BODY_BYTES_MAX}")
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is no JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise InvalidRequest("the body is no JSON object")
    check_value(found, "the body")
    if not isinstance(found.get("model", ""), str):
        raise InvalidRequest("model: not a string")
    if found.get("stream") not in (None, True, False):
        raise InvalidRequest("stream: neither true nor false")
    if call is Call.CHAT and not isinstance(found.get("messages"), list):
        raise InvalidRequest("messages: missing, or no list")
    if call is Call.RESPONSES and found.get("background"):
        raise InvalidRequest("background: answers are not kept for later here")
    options = found.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise InvalidRequest("stream_options: no object")
    return found


def digest(call: Call, body: dict[str, Any]) -> str:
    """Returns the sha256 of a call's one spelling: sorted names, no spaces. Raises InvalidRequest."""
    try:
        data = _encode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise InvalidRequest(f"the body has no spelling in JSON: {error}") from None
    return hashlib.sha256(call.encode() + b"\n" + data).hexdigest()
