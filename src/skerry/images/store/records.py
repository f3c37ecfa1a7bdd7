"""What lies in a layer store besides blobs; each record carries its version and its own digest.

A record is a JSON object whose last member, `sum`, is the sha256 of what it would be without that:
a flipped bit in an environment or a digest must not become another environment or layer. Records
of before have none, and readers of before pass over it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from skerry.errors import ImageBroken, InvalidRequest, LayerDamaged
from skerry.images.objects.api import Objects
from skerry.spec.layers import Damage, LayerManifest, is_digest, parse_layer_name
from skerry.spec.sandbox import check_env

ROUND_BYTES_MAX = 64 << 20
_SUM = re.compile(rb',"sum":"([0-9a-f]{64})"\}\Z')
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


class Chain(msgspec.Struct, frozen=True):
    """A chain of commits, lowest first, and a shorter one that shows the same.

    It is collected as a blob named `id` would be, and is of use while the chain is.
    """

    id: str  # `spec.layers.chain_id` of the digests
    digests: tuple[str, ...]
    layers: tuple[LayerManifest, ...]
    version: int = 1

    def blobs(self) -> set[str]:
        """Returns what the shorter chain needs."""
        return set().union(*(one.blobs() for one in self.layers))


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


def encode(record: msgspec.Struct) -> bytes:
    """Returns the record as it is stored."""
    data = msgspec.json.encode(record)
    return b'%b,"sum":"%b"}' % (data[:-1], hashlib.sha256(data).hexdigest().encode())


def decode(data: bytes, kind: type[_T], where: str) -> _T:
    """Returns the record; raises LayerDamaged if it is damaged, or says what no record can."""
    found = _SUM.search(data)
    if found is not None:
        whole = data[: found.start()] + b"}"
        if hashlib.sha256(whole).hexdigest().encode() != found[1]:
            raise LayerDamaged(f"{where} is damaged: it is not what its digest says")
    try:
        record = msgspec.json.decode(data, type=kind)
        wrong = next((one for one in _digests(record) if not is_digest(one)), None)
    except (msgspec.DecodeError, InvalidRequest, RecursionError) as error:
        raise LayerDamaged(f"{where} is damaged: {error}") from error
    if wrong is not None:
        raise LayerDamaged(f"{where} is damaged: {wrong[:80]!r} is no digest")
    return record


def rfc3339(seconds: float) -> str:
    """Returns a moment as manifests tell it, in UTC."""
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def read_record(objects: Objects, key: str, kind: type[_T], bytes_max: int) -> _T | None:
    """Returns the record of a key, None if there is none; raises LayerDamaged, StorageFailed."""
    where = f"{key} in {objects.where}"
    try:
        data = objects.get(key, bytes_max)
    except ImageBroken as error:  # too large: no fault of whoever wants to use it
        raise LayerDamaged(error.message) from error
    return None if data is None else decode(data, kind, where)


def _digests(record: object) -> Iterator[str]:
    """Gives all digests of a record; raises InvalidRequest for what else none can say."""
    if isinstance(record, LayerManifest):
        parse_layer_name(record.name)
        yield from record.blobs()
        if min(record.size_bytes, record.data_bytes, record.stored_bytes, record.files) < 0:
            raise InvalidRequest("a size below nothing")
        if record.config is not None:
            check_env(record.config.env)
        for one in record.below:
            yield from _digests(one)
    elif isinstance(record, Tag):
        if record.digest != record.manifest.digest:
            raise InvalidRequest("it names one layer and describes another")
        yield from _digests(record.manifest)
    elif isinstance(record, Pin):
        yield from (record.digest, *record.blobs)
    elif isinstance(record, Chain):
        yield from (record.id, *record.digests)
        for one in record.layers:
            yield from _digests(one)
    elif isinstance(record, Lease):
        for use in record.uses:
            yield from (use.digest, *use.blobs)
    elif isinstance(record, Round):
        yield from record.digests
