"""What the launcher answers and tells (native/PROTOCOL.md, "Launcher"); `plan` is what it is asked.

A packet from the launcher is a `Reply` or an `Exited` event, told apart by `decode`. Attributes have the
page's names in lower case; repeated fields are tuples of that name.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from skerry.wire.fields import Body, Kind, Part, flag, number, several, text
from skerry.wire.frames import PAYLOAD_BYTES_MAX, LauncherFrame, ProtocolError, Tag, decode_frame

PID_MAX: Final = (1 << 31) - 1
WAIT_STATUS_MAX: Final = 0xFFFF
ERRNO_MAX: Final = 4095


class StatusReply(Body, frozen=True, kw_only=True):
    """What the launcher is and holds."""

    PARTS = (
        number("pid", Tag.PID, 1, PID_MAX),
        number("version", Tag.VERSION),
        several("instance", Tag.INSTANCE, Kind.TEXTS),
        several("layer", Tag.LAYER, Kind.TEXTS),
        several("slot", Tag.SLOT, Kind.NUMBERS),
        text("upper", Tag.UPPER, optional=True),
        number("offset", Tag.OFFSET, optional=True),
    )
    pid: int
    version: int
    instance: tuple[str, ...] = ()
    layer: tuple[str, ...] = ()
    slot: tuple[int, ...] = ()
    upper: str = ""
    offset: int | None = None  # there is more: of the next page


class UpperReply(Body, frozen=True):
    """What the store of uppers can do: "quota", "snapshot"."""

    PARTS = (several("feature", Tag.FEATURE, Kind.TEXTS),)
    feature: tuple[str, ...] = ()


class StartReply(Body, frozen=True, kw_only=True):
    """The instance's first process, as the host sees it, and the time of each stage."""

    PARTS = (
        number("pid", Tag.PID, 1, PID_MAX),
        several("step_us", Tag.STEP_US, Kind.TEXTS),
    )
    pid: int
    step_us: tuple[str, ...] = ()  # "name=us"


class StopReply(Body, frozen=True, kw_only=True):
    """How the first process ended, what was read back, and whether the slot may be reused."""

    PARTS: ClassVar[tuple[Part, ...]] = (
        number("wait_status", Tag.WAIT_STATUS, 0, WAIT_STATUS_MAX),
        several("read", Tag.READ, Kind.RAWS),
        flag("slot_clean", Tag.SLOT_CLEAN),
        text("text", Tag.TEXT, PAYLOAD_BYTES_MAX, optional=True),
    )
    wait_status: int
    read: tuple[bytes, ...] = ()
    slot_clean: bool
    text: str | None = None  # why not clean


class BlobsReply(Body, frozen=True):
    """Whether the session is a new one: then nothing serves it, and layers that had another are gone."""

    PARTS: ClassVar[tuple[Part, ...]] = (flag("state", Tag.STATE),)
    state: bool


class MovedReply(Body, frozen=True):
    """How much was moved; of PREFETCH, how many bytes of addresses were looked at."""

    PARTS: ClassVar[tuple[Part, ...]] = (number("bytes", Tag.BYTES),)
    bytes: int


class Failure(Body, frozen=True, kw_only=True):
    """Why a request failed."""

    PARTS: ClassVar[tuple[Part, ...]] = (
        text("error_step", Tag.ERROR_STEP, PAYLOAD_BYTES_MAX, optional=True),
        number("errno", Tag.ERRNO, 0, ERRNO_MAX, optional=True),
        text("text", Tag.TEXT, PAYLOAD_BYTES_MAX, optional=True),
    )
    error_step: str = ""
    errno: int = 0
    text: str = ""


class Exited(Body, frozen=True, kw_only=True):
    """Event: an instance's first process ended by itself."""

    PARTS = (
        text("instance", Tag.INSTANCE),
        number("wait_status", Tag.WAIT_STATUS, 0, WAIT_STATUS_MAX),
    )
    instance: str
    wait_status: int


class Reply(msgspec.Struct, frozen=True):
    """The answer to one request: a failure, or the payload of its success."""

    request_id: int
    failure: Failure | None
    payload: bytes = b""
    descriptor: int | None = None  # came along; its receiver closes it

    def status(self) -> StatusReply:
        """Returns the success of Status; raises ProtocolError."""
        return StatusReply.parse(self.payload)

    def upper(self) -> UpperReply:
        """Returns the success of UpperOpen; raises ProtocolError."""
        return UpperReply.parse(self.payload)

    def start(self) -> StartReply:
        """Returns the success of StartPlan; raises ProtocolError."""
        return StartReply.parse(self.payload)

    def stop(self) -> StopReply:
        """Returns the success of Stop; raises ProtocolError."""
        return StopReply.parse(self.payload)

    def blobs(self) -> BlobsReply:
        """Returns the success of Blobs; raises ProtocolError."""
        return BlobsReply.parse(self.payload)

    def moved(self) -> MovedReply:
        """Returns the success of Reclaim and Prefetch; raises ProtocolError."""
        return MovedReply.parse(self.payload)


def decode(packet: bytes) -> Reply | Exited:
    """Returns what a packet from the launcher says; raises ProtocolError."""
    frame = decode_frame(packet)
    if frame.type == LauncherFrame.EXITED and frame.stream == 0:
        return Exited.parse(frame.payload)
    if frame.stream != 0 and frame.type == LauncherFrame.OK:
        return Reply(frame.stream, None, frame.payload)
    if frame.stream != 0 and frame.type == LauncherFrame.FAIL:
        return Reply(frame.stream, Failure.parse(frame.payload))
    raise ProtocolError(f"a packet of type {frame.type:#04x} for request {frame.stream}")
