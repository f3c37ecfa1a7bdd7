"""The keys of a layer store: where blobs, manifests, tags, pins, leases and rounds lie.

    version                              "2": readers refuse what they do not know
    blobs/sha256/aa/HEX                  metadata blobs, and data blobs as they are; aa: two digits
    blobs/sha256/aa/HEX.chunks .zst      the chunk list of a data blob; a data blob by its chunks
    manifests/aa/HEX!KIND!NAME!!TAG      LayerManifest: what HEX was called, for pinned digests
    tags/KIND/NAME!!TAG                  what a name stands for now, with its manifest
    chains/HEX                           Chain: what a chain of commits is mounted as instead
    pins/HEX!WHY                         Pin: what stays though no name stands for it
    leases/HOLDER!EPOCH                  Lease: what is being made, and what sandboxes use
    gc/agreed                            Agreed: how slow the slowest client is
    gc/rounds/ID                         Round: what a collector is about to remove
    gc/rounds/ID!done                    it removes nothing any more
    gc/last                              when the last collection was done
    gc/reserve                           room for a collector on a full disk
    scrub/checked/HEX                    Checked: what the last scrub of a layer found
    scrub/damaged/HEX                    Suspect: a layer that is damaged, until it is mended
    scrub/claims/HEX                     Claim: who scrubs a layer just now, and how far that is

In NAME "/" is written "!". A name too long for a key is written "=" and its sha256: names are read
from what lies there, never from keys. Directories stay few and flat, so that listing a catalogue is
a few calls also on a shared file system.
"""

from __future__ import annotations

import hashlib
from typing import Final

from skerry.images.objects.api import PART_BYTES_MAX, check_key
from skerry.spec.layers import LayerKind, LayerName
from skerry.spec.recipe import BUILD_CACHE_NAME

VERSION: Final = "version"
BLOBS: Final = "blobs/sha256/"
MANIFESTS: Final = "manifests/"
TAGS: Final = "tags/"
BUILD_CACHE: Final = (
    f"{TAGS}{LayerKind.WORKSPACE}/{BUILD_CACHE_NAME}!"  # of what lies below that name
)
PINS: Final = "pins/"
CHAINS: Final = "chains/"
LEASES: Final = "leases/"
ROUNDS: Final = "gc/rounds/"
AGREED: Final = "gc/agreed"
DONE: Final = "!done"
COLLECTED: Final = "gc/last"
RESERVE: Final = "gc/reserve"
CHECKED: Final = "scrub/checked/"
DAMAGED: Final = "scrub/damaged/"
CLAIMS: Final = "scrub/claims/"
# What may follow a blob's digits. The chunk list goes first: without it a data blob is not there.
PARTS: Final = (".chunks", ".profile", ".zst", "")


def hex_of(digest: str) -> str:
    """Returns the digits of a digest."""
    return digest.removeprefix("sha256:")


def blob(digest: str, part: str = "") -> str:
    """Returns the key of a blob, or of what lies beside it."""
    digits = hex_of(digest)
    return f"{BLOBS}{digits[:2]}/{digits}{part}"


def blobs(digest: str) -> tuple[str, ...]:
    """Returns all keys that may lie under a digest, in the order in which they are to go."""
    return tuple(blob(digest, part) for part in PARTS)


def read_blob(key: str) -> str | None:
    """Returns the digest that a key below `BLOBS` names; None for what is not ours."""
    digits, dot, rest = key.rpartition("/")[2].partition(".")
    return f"sha256:{digits}" if len(digits) == 64 and dot + rest in PARTS else None


def tag(name: LayerName) -> str:
    """Returns the key of a name."""
    return f"{TAGS}{name.kind}/{_short(_flat(name), 0)}"


def manifest(name: LayerName, digest: str) -> str:
    """Returns the key of what a digest was called."""
    digits = hex_of(digest)
    return f"{manifests(digest)}{digits}!{_short(f'{name.kind}!{_flat(name)}', 65)}"


def manifests(digest: str) -> str:
    """Returns the prefix below which a digest's manifests lie, among others."""
    return f"{MANIFESTS}{hex_of(digest)[:2]}/"


def chain(chain_id: str) -> str:
    """Returns the key of what stands for a chain of commits."""
    return f"{CHAINS}{hex_of(chain_id)}"


def pin(digest: str, why: str) -> str:
    """Returns the key of a pin; raises Bug if the reason is no part of a key."""
    return check_key(f"{PINS}{hex_of(digest)}!{why}")


def scrub(below: str, digest: str) -> str:
    """Returns the key of what scrubs keep of a layer below one of their three prefixes."""
    return f"{below}{hex_of(digest)}"


def digest_of(key: str) -> str:
    """Returns the digest that a manifest's or a pin's key begins with, or a scrub's is of."""
    return f"sha256:{key.rpartition('/')[2].partition('!')[0]}"


def name_of(rest: str) -> str:
    """Returns the name that a key says behind its prefix: `KIND/NAME!!TAG`; "" for one too long."""
    kind, _, flat = rest.partition("/")
    name, found, tag = flat.partition("!!")
    return f"{kind}/{name.replace('!', '/')}:{tag}" if found and name else ""


def _flat(name: LayerName) -> str:
    return f"{name.name.replace('/', '!')}!!{name.tag}"


def _short(text: str, taken: int) -> str:
    if len(text) + taken <= PART_BYTES_MAX:
        return text
    return f"={hashlib.sha256(text.encode()).hexdigest()}"
