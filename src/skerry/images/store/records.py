"""What lies in a layer store besides blobs and manifests; each record carries its version."""

from __future__ import annotations

import datetime as dt
from typing import TypeVar

import msgspec

from skerry.errors import LayerDamaged
from skerry.spec.layers import Damage, LayerManifest

ROUND_BYTES_MAX = 64 << 20
_T = TypeVar("_T")


class Tag(msgspec.Struct, frozen=True):
    """What a name stands for. It holds the manifest: a name that is found is found whole."""

    digest: str
    manifest: LayerManifest
    version: int = 2


class Pin(msgspec.Struct, frozen=True):
    """A layer that stays whatever its names do. `why` is "user", or names a snapshot."""

    digest: str
    blobs: tuple[str, ...]
    name: str
    why: str
    version: int = 1


class Use(msgspec.Struct, frozen=True):
    """One layer of a lease, and all blobs that it needs."""

    digest: str
    blobs: tuple[str, ...]
    live: bool = False  # a live sandbox uses it; else it is being made, or was until just now


class Lease(msgspec.Struct, frozen=True):
    """What one process needs, for `ttl_s` seconds from when it was written."""

    holder: str
    ttl_s: float
    uses: tuple[Use, ...]
    version: int = 1


class Agreed(msgspec.Struct, frozen=True):
    """The terms that all clients of the store keep: `store.leases.Timing` says what they are."""

    lag_s: float
    margin_s: float
    window_s: float
    version: int = 1


class Round(msgspec.Struct, frozen=True):
    """What one collector has condemned. It never changes: its time would not fit its content."""

    holder: str
    digests: tuple[str, ...]
    version: int = 1


class Checked(msgspec.Struct, frozen=True):
    """What a scrub found of one layer; when, says the object's own time."""

    digest: str
    name: str
    holder: str
    bytes_read: int
    damage: tuple[Damage, ...] = ()
    mended: tuple[Damage, ...] = ()
    version: int = 1


class Suspect(msgspec.Struct, frozen=True):
    """A layer with damaged bytes. Once an object of `objects` has another version it is mended."""

    digest: str
    name: str
    holder: str
    damage: tuple[Damage, ...]
    objects: dict[str, str]  # the version of each that was damaged; "": it was gone
    version: int = 1


class Claim(msgspec.Struct, frozen=True):
    """Who scrubs a layer, for `ttl_s` from when this was written, and what needs not be read again."""

    holder: str  # "": nobody, since it was laid down half done
    token: str  # of one try
    ttl_s: float
    next_chunk: int = 0
    damaged: int = 0
    bad: tuple[int, ...] = ()
    version: int = 1


def decode(data: bytes, kind: type[_T], where: str) -> _T:
    """Returns the record; raises LayerDamaged if it is damaged or of a version not known."""
    try:
        record = msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise LayerDamaged(f"{where} is damaged: {error}") from error
    return record


def rfc3339(seconds: float) -> str:
    """Returns a moment as manifests tell it, in UTC."""
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
