"""Names, references and manifests of layers, and the plan of a root file system.

A layer is named `kind/name[:tag][@sha256:...]` (decision 24); `image="debian:12"` is short for
`base/debian:12`. The tag defaults to `latest`. What a sandbox runs is always pinned by digest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec.residue import Scrubbed


class LayerKind(StrEnum):
    """What a layer is for; it also fixes the order of composition. A disk is no part of a root."""

    BASE = "base"
    WORKSPACE = "workspace"
    TOOLKIT = "toolkit"
    DISK = "disk"


_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}(?:/[a-z0-9][a-z0-9._-]{0,127})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Says whether it is a sha256 as all names of blobs are."""
    return _DIGEST.fullmatch(text) is not None


class LayerName(msgspec.Struct, frozen=True):
    """A parsed layer name."""

    kind: LayerKind
    name: str
    tag: str = "latest"
    digest: str | None = None

    def __str__(self) -> str:
        pin = f"@{self.digest}" if self.digest else ""
        return f"{self.kind}/{self.name}:{self.tag}{pin}"


def parse_layer_name(text: str, default_kind: LayerKind | None = None) -> LayerName:
    """Returns the parsed name; a text without a kind takes `default_kind`; raises InvalidRequest."""
    rest, at, digest = text.partition("@")
    if at and _DIGEST.fullmatch(digest) is None:
        raise InvalidRequest(
            f"{text!r}: {digest!r} is no digest (sha256: and 64 hexadecimal digits)"
        )
    kind_text, slash, name = rest.partition("/")
    if slash and kind_text in LayerKind.__members__.values():
        kind = LayerKind(kind_text)
    elif default_kind is not None:
        kind, name = default_kind, rest
    else:
        kinds = ", ".join(LayerKind)
        raise InvalidRequest(
            f"{text!r} is no layer name: write kind/name[:tag], kind one of {kinds}"
        )
    name, colon, tag = name.partition(":")
    if _NAME.fullmatch(name) is None or (colon and _TAG.fullmatch(tag) is None):
        raise InvalidRequest(
            f"{text!r} is no layer name: write kind/name[:tag], the name of a-z, 0-9, and ._-/ between"
        )
    return LayerName(kind, name, tag if colon else "latest", digest if at else None)


def commit_name(text: str) -> LayerName:
    """Returns the name of a layer that shall be made of a difference; raises InvalidRequest."""
    name = parse_layer_name(text, LayerKind.BASE)
    if name.digest:
        raise InvalidRequest(f"{text!r}: the digest of a new layer is not chosen")
    if name.kind in {LayerKind.BASE, LayerKind.DISK}:
        raise InvalidRequest("a commit holds only what changed: name it workspace/ or toolkit/")
    return name


def disk_name(text: str) -> LayerName:
    """Returns the name of a block disk, which may be written without its kind; raises InvalidRequest."""
    name = parse_layer_name(text, LayerKind.DISK)
    if name.kind is not LayerKind.DISK:
        raise InvalidRequest(f"{text!r} is no disk: its name begins with disk/")
    return name


class MountMode(StrEnum):
    """How the bytes of a mounted layer are checked (decision 30)."""

    TRUSTED = "trusted"  # the kernel reads the store in place; checked at publication and by scrub
    VERIFIED = "verified"  # each chunk is checked when it is first read


class ImageConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an image says of how to run in it. Sandboxes take env, workdir and user as defaults.

    The other fields are kept for whoever looks, and for a push. `user` is a name, a number, or
    `uid:gid`.
    """

    env: dict[str, str] = {}
    workdir: str | None = None
    user: str | None = None
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: dict[str, str] = {}

    def over(self, below: ImageConfig) -> ImageConfig:
        """Returns both together: this one's values win, name by name in env and labels."""
        # As docker does it: who sets an entry point does not want the command of below.
        cmd = self.cmd if self.cmd or self.entrypoint else below.cmd
        return ImageConfig(
            below.env | self.env,
            self.workdir or below.workdir,
            self.user or below.user,
            self.entrypoint or below.entrypoint,
            cmd,
            below.labels | self.labels,
        )


class LayerManifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the store knows of a layer. `digest` is the sha256 of the metadata blob.

    Version 2 knows data blobs. `data_digest` is the content digest of `skerry.images.format.chunks`; the
    metadata blob holds it too, so that `digest` stands for every byte. Without it the metadata
    blob is the whole layer. Of a block disk `digest` is the sha256 of its map
    (`skerry.images.format.diskmap`), and `parts` are the snapshots whose data blobs it still needs.
    """

    name: str  # kind/name:tag
    digest: str
    size_bytes: int  # of the metadata blob
    created: str  # RFC 3339, UTC
    creator: str  # "debian", "import", "directory", "commit", "build", "disk", "snapshot"
    data_digest: str | None = None  # of the data blob, where metadata and data are apart
    recipe: dict[str, str] = {}
    compression: str = "none"  # inside the metadata blob, by EROFS
    files: int = 0
    version: int = 1
    data_bytes: int = 0  # of the content of the data blob
    data_codec: str = "none"  # how the data blob is stored: none, zstd
    stored_bytes: int = 0  # of the data blob as it is stored
    parents: tuple[
        str, ...
    ] = ()  # digests of the layers below when it was made: a hint, lowest first
    config: ImageConfig | None = None
    parts: tuple[LayerManifest, ...] = ()  # layers below that belong to it, lowest first
    scrubbed: tuple[Scrubbed, ...] = ()  # residue that a commit left out
    below: tuple[LayerManifest, ...] = ()  # of a commit: what it was made on, lowest first
    disk_bytes: int = 0  # of a block disk: how large it appears

    @property
    def pinned(self) -> str:
        """Its name and digest: what stands for this layer also when the tag stands for another."""
        return f"{self.name}@{self.digest}"

    @property
    def total_bytes(self) -> int:
        """What the layer takes in the store, its parts included."""
        return sum(one.size_bytes + one.stored_bytes for one in self.layers())

    def layers(self) -> tuple[LayerManifest, ...]:
        """Returns what is mounted for this name, lowest first: its parts and itself."""
        return (*self.parts, self)

    def chain(self) -> tuple[LayerManifest, ...]:
        """Returns what a sandbox that is restored from this commit lies on, lowest first."""
        return (*self.below, self)

    def alone(self) -> LayerManifest:
        """Returns what there is to know of it where it lies below a commit: enough to mount it."""
        return msgspec.structs.replace(self, recipe={}, parents=(), scrubbed=(), below=())

    def blobs(self) -> set[str]:
        """Returns the digests of everything in the store that it needs, to be restored too."""
        of_all = {one.digest for one in self.layers()}
        of_all |= {one.data_digest for one in self.layers() if one.data_digest}
        return of_all.union(*(one.blobs() for one in self.below))

    @property
    def chain_id(self) -> str | None:
        """What names its chain as a whole, where it is one."""
        return chain_id(one.digest for one in self.chain()) if self.below else None

    def needs(self) -> set[str]:
        """Returns the same with the chain's own id, for whoever holds it against collections."""
        return self.blobs() | ({self.chain_id} if self.chain_id else set())


def chain_id(digests: Iterable[str]) -> str:
    """Returns the name of a chain of layers, lowest first; it has the form of a digest."""
    return f"sha256:{hashlib.sha256(' '.join(digests).encode()).hexdigest()}"


def composed_config(manifests: Iterable[LayerManifest]) -> ImageConfig:
    """Returns what layers say together; they are given lowest first, and upper ones win."""
    config = ImageConfig()
    for manifest in manifests:
        if manifest.config is not None:
            config = manifest.config.over(config)
    return config


class LayerFile(msgspec.Struct, frozen=True):
    """Where a node finds one layer's blobs.

    `id` is the digest's first 32 hexadecimal digits, with "-v" behind them for a verified mount: one
    layer may be mounted in both ways.
    """

    id: str
    digest: str
    path: str
    device: str | None = None  # the data blob, for layers that have one
    mode: MountMode = MountMode.TRUSTED


class MountedLayer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One layer of a root file system as it was mounted."""

    digest: str
    mode: MountMode = MountMode.TRUSTED
    damaged: bool = False  # a scrub found so since, and nothing checks what is read of it


class RootfsPlan(msgspec.Struct, frozen=True):
    """The layers of a root file system, lowest first: base, workspaces, toolkits."""

    layers: tuple[LayerFile, ...]

    def mounts(self) -> tuple[MountedLayer, ...]:
        """Returns what there is to say of the layers once they are mounted."""
        return tuple(MountedLayer(one.digest, one.mode) for one in self.layers)


class Collected(msgspec.Struct, frozen=True):
    """One blob of a collection. `why` it stays: "tag NAME", "pin", "sandbox on NODE", "lease of ..."."""

    digest: str
    size_bytes: int
    why: tuple[str, ...] = ()


class CollectReport(msgspec.Struct, frozen=True):
    """What a garbage collection removed, or would remove, and what stays."""

    dry_run: bool
    removed: tuple[Collected, ...]
    kept: tuple[Collected, ...]
    freed_bytes: int
    kept_bytes: int
    torn_uploads: int = 0  # broken off long ago, removed too


class Damage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a check found wrong with one blob of a layer."""

    digest: str
    part: str  # metadata, chunk list, data; manifest: it does not belong to the metadata
    problem: str
    chunks: tuple[int, ...] = ()  # damaged ones of a data blob, the first 1,000
    files: tuple[str, ...] = ()  # that have bytes there, the first 100


class LayerCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a layer's bytes in the store are worth."""

    name: str
    digest: str
    bytes_read: int
    damage: tuple[Damage, ...] = ()
    removed: bool = False  # damaged blobs were removed, so that making the layer again stores them
    mended: tuple[Damage, ...] = ()  # were damaged or gone, and could be made again
    checked: str = ""  # RFC 3339, UTC: when; of several parts the oldest; "": some never were


class RecordProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of a layer store that is damaged, and what to do about it."""

    key: str  # where it lies in the store
    kind: str  # name, manifest, pin, lease, chain, profile, ...
    name: str  # what it is of, as far as its key tells
    problem: str
    advice: str = ""  # "" for what was written anew


class RecordsCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the records of a layer store are worth."""

    read: int  # whole ones
    problems: tuple[RecordProblem, ...] = ()
    mended: tuple[RecordProblem, ...] = ()
