"""The JSON documents of OCI images and docker archives, as far as they matter here.

Whatever else they hold is ignored, as both specifications ask for. What is decoded is only checked
for its form; what it means, and whether a digest fits, is for the reader to judge.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from skerry.errors import ImageBroken

JSON_BYTES_MAX = 4 << 20
DESCRIPTORS_MAX = 1000  # of one document
LAYERS_MAX = 500  # docker makes at most 127
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
REF_NAME = "org.opencontainers.image.ref.name"
IMAGE_NAME = "io.containerd.image.name"  # as docker save says it
# What is pushed; both families are read.
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
CONFIG_TYPES = (CONFIG_TYPE, "application/vnd.docker.container.image.v1+json")
LAYER_TYPES = re.compile(
    r"application/vnd\.oci\.image\.layer\.(?:nondistributable\.)?v1\.tar(?:\+gzip|\+zstd)?"
    r"|application/vnd\.docker\.image\.rootfs\.diff\.tar(?:\.gzip|\.zstd)?"
)

_T = TypeVar("_T")


class BlobDamaged(ImageBroken):
    """A blob is missing, or not what its digest says; `digest` is in the fields."""


class Platform(msgspec.Struct, omit_defaults=True):
    """What machines an image is for."""

    architecture: str = ""
    os: str = ""
    variant: str = ""

    def __str__(self) -> str:
        parts = (self.os, self.architecture, self.variant)
        return "/".join(part[:40] for part in parts if part)  # an image may say anything


class Descriptor(msgspec.Struct, rename="camel", omit_defaults=True):
    """A reference to a blob."""

    media_type: str
    digest: str
    size: int
    platform: Platform | None = None
    annotations: dict[str, str] | None = None

    def notes(self) -> dict[str, str]:
        """Returns its annotations."""
        return self.annotations or {}


class Index(msgspec.Struct, rename="camel"):
    """A list of images: the top of a layout, or the same image for several platforms."""

    manifests: list[Descriptor] | None
    schema_version: int = 2
    media_type: str = INDEX_TYPE


class Manifest(msgspec.Struct, rename="camel"):
    """One image: its config and its layers, lowest first."""

    config: Descriptor
    layers: list[Descriptor] | None
    schema_version: int = 2
    media_type: str = MANIFEST_TYPE


class RunConfig(msgspec.Struct, rename="pascal", omit_defaults=True):
    """How to run in an image."""

    env: list[str] | None = None
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    working_dir: str | None = None
    user: str | None = None
    labels: dict[str, str] | None = None


class Rootfs(msgspec.Struct):
    """The layers once more, by the digests of what they hold unpacked."""

    diff_ids: list[str] | None
    type: str = "layers"


class Config(msgspec.Struct, omit_defaults=True):
    """The config of an image."""

    rootfs: Rootfs
    architecture: str = ""
    os: str = ""
    variant: str = ""
    config: RunConfig | None = None
    created: str | None = None


class DockerImage(msgspec.Struct, rename="pascal"):
    """One entry of a docker archive's manifest.json; names of files in it."""

    config: str
    layers: list[str] | None
    repo_tags: list[str] | None = None


def decode(raw: bytes, kind: type[_T], what: str) -> _T:
    """Returns the document; raises ImageBroken, which names `what`, if it is none of that kind."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ImageBroken(f"{what} of the image is damaged: {error}") from error


def check_digest(digest: str) -> str:
    """Returns the digest if it is a sha256; raises ImageBroken."""
    if DIGEST.fullmatch(digest) is None:
        raise ImageBroken(f"{digest[:100]!r} in the image is no digest of a kind that is known")
    return digest


def blob_name(digest: str) -> str:
    """Returns where a layout keeps a blob."""
    algorithm, _, digits = check_digest(digest).partition(":")
    return f"blobs/{algorithm}/{digits}"
