"""The Python zygote of a function container: how it is started, asked and understood.

A zygote is the image's own interpreter with the named modules imported; it forks for each call. What
runs there is in `inside/` (sent as text, never imported here) and native/zygote/ (an extension module).
Everything that comes back is hostile.
"""

from __future__ import annotations

from skerry.guest.zygote.answers import Answer, Failure, Report, read_answer, read_report
from skerry.guest.zygote.starting import (
    ALLOWANCES,
    PAYLOAD_BYTES_MAX,
    ZygoteStart,
    payload,
    start,
)

__all__ = [
    "ALLOWANCES",
    "PAYLOAD_BYTES_MAX",
    "Answer",
    "Failure",
    "Report",
    "ZygoteStart",
    "payload",
    "read_answer",
    "read_report",
    "start",
]
