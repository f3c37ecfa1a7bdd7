"""Which of the images of a layout or archive is meant, and what it consists of."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterator
from typing import NamedTuple

from skerry.errors import ImageBroken, InvalidRequest, NotFound
from skerry.images.oci.bundle import Bundle, read_all
from skerry.images.oci.model import (
    CONFIG_TYPES,
    DESCRIPTORS_MAX,
    IMAGE_NAME,
    JSON_BYTES_MAX,
    LAYER_TYPES,
    LAYERS_MAX,
    REF_NAME,
    BlobDamaged,
    Config,
    Descriptor,
    DockerImage,
    Index,
    Manifest,
    Platform,
    blob_name,
    check_digest,
    decode,
)

_DEPTH_MAX = 4  # of lists in lists
_SHOWN_MAX = 20
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_PLATFORM = re.compile(r"[a-z0-9]{1,32}/[a-z0-9_]{1,32}(?:/[a-z0-9.]{1,32})?")


class LayerBlob(NamedTuple):
    """One layer of an image: a file of the bundle, and what is known of it."""

    name: str
    diff_id: str  # digest of the plain tar
    digest: str | None = None  # of the file; a docker archive does not say
    size: int | None = None


class Image(NamedTuple):
    """An image of which everything but the layers was read and checked."""

    digest: str  # of its manifest, or of its config in a docker archive
    config: Config
    layers: tuple[LayerBlob, ...]  # lowest first


def parse_platform(text: str | None) -> Platform:
    """Returns the platform that `os/architecture[/variant]` names; None: this machine's."""
    if text is None:
        machine = platform.machine()
        return Platform(_MACHINES.get(machine, machine), "linux")
    if _PLATFORM.fullmatch(text) is None:
        raise InvalidRequest(f"platform: {text[:80]!r} is not like linux/amd64 or linux/arm/v7")
    system, architecture, *variant = text.split("/")
    return Platform(architecture, system, *variant)


def choose(bundle: Bundle, tag: str | None, wanted: Platform) -> Image:
    """Returns the one image that is meant; without a tag there must be only one.

    Raises NotFound (no such tag or platform), InvalidRequest (several), ImageBroken.
    """
    index = read_all(bundle, "index.json", JSON_BYTES_MAX)
    if index is not None:
        return _of_layout(bundle, decode(index, Index, "index.json"), tag, wanted)
    archive = read_all(bundle, "manifest.json", JSON_BYTES_MAX)
    if archive is not None:
        return _of_archive(bundle, decode(archive, list[DockerImage], "manifest.json"), tag, wanted)
    raise ImageBroken(
        "this is no image: it has neither the index.json of an OCI layout nor the manifest.json "
        "of a docker archive"
    )


# --- OCI layouts ---


def _of_layout(bundle: Bundle, index: Index, tag: str | None, wanted: Platform) -> Image:
    found = _bounded(index.manifests)
    if tag is not None:
        found = [one for one in found if _is_named(one, tag)]
    if not found:
        names = sorted({name for one in _bounded(index.manifests) for name in _names(one)})
        raise NotFound(f"the layout has no image {tag or ''!r}{_list(names)}")
    manifest = _pick(bundle, found, wanted, tag)
    raw = _read_blob(bundle, manifest)
    return _image(bundle, manifest.digest, decode(raw, Manifest, "the manifest"), wanted)


def _pick(bundle: Bundle, found: list[Descriptor], wanted: Platform, tag: str | None) -> Descriptor:
    """Returns the one manifest for the platform, looking into lists."""
    images = list(_manifests(bundle, found, _DEPTH_MAX))
    fitting = [one for one in images if one.platform is not None and _fits(one.platform, wanted)]
    if not fitting:
        unknown = [one for one in images if one.platform is None]
        fitting = unknown  # the config says what it is for
    if not fitting:
        there = sorted({str(one.platform) for one in images if _is_real(one)})
        raise NotFound(
            f"the image is not made for {wanted}{_list(there)}; choose one with platform"
        )
    if len({one.digest for one in fitting}) > 1:
        if tag is None:
            names = sorted({name for one in found for name in _names(one)})
            raise InvalidRequest(
                f"there are several images: say which one by its tag{_list(names)}"
            )
        fitting = fitting[:1]  # variants of one platform: the first is the one to prefer
    return fitting[0]


def _manifests(bundle: Bundle, found: list[Descriptor], depth: int) -> Iterator[Descriptor]:
    for one in found:
        raw = _read_blob(bundle, one)
        lists = decode(raw, dict[str, object], "a manifest").keys()
        if "manifests" not in lists:
            if one.platform is None or _is_real(one):
                yield one
        elif depth == 0:
            raise ImageBroken("the image's lists of manifests are too deep")
        else:
            nested = _bounded(decode(raw, Index, "a list of manifests").manifests)
            there = [inner for inner in nested if _has(bundle, inner)]
            yield from _manifests(bundle, there, depth - 1)


def _image(bundle: Bundle, digest: str, manifest: Manifest, wanted: Platform) -> Image:
    layers = _bounded(manifest.layers, LAYERS_MAX)
    if manifest.config.media_type not in CONFIG_TYPES:
        kind = manifest.config.media_type[:100]
        raise ImageBroken(f"this is no image but something else that registries keep: {kind!r}")
    for layer in layers:
        if LAYER_TYPES.fullmatch(layer.media_type) is None:
            raise ImageBroken(
                f"the image has a layer of a type unknown: {layer.media_type[:100]!r}"
            )
    config = decode(_read_blob(bundle, manifest.config), Config, "the config")
    diff_ids = _check_config(config, len(layers), wanted)
    blobs = tuple(
        LayerBlob(blob_name(layer.digest), diff_id, layer.digest, layer.size)
        for layer, diff_id in zip(layers, diff_ids, strict=True)
    )
    return Image(digest, config, blobs)


def _read_blob(bundle: Bundle, blob: Descriptor) -> bytes:
    """Returns a small blob, checked."""
    raw = read_all(bundle, blob_name(blob.digest), JSON_BYTES_MAX)
    if raw is None:
        raise BlobDamaged(f"the image is incomplete: {blob.digest} is missing", digest=blob.digest)
    if len(raw) != blob.size or f"sha256:{hashlib.sha256(raw).hexdigest()}" != blob.digest:
        raise BlobDamaged(
            f"{blob.digest} of the image is damaged: it has another digest or size",
            digest=blob.digest,
        )
    return raw


def _has(bundle: Bundle, blob: Descriptor) -> bool:
    """Layouts made for one platform have lists that name what is not there."""
    opened = bundle.open(blob_name(blob.digest))
    if opened is None:
        return False
    with opened:
        return True


def _names(one: Descriptor) -> set[str]:
    return {one.notes()[key] for key in (REF_NAME, IMAGE_NAME) if key in one.notes()}


def _is_named(one: Descriptor, tag: str) -> bool:
    return any(name == tag or name.endswith((f":{tag}", f"/{tag}")) for name in _names(one))


def _is_real(one: Descriptor) -> bool:
    """Says whether it is an image, not a record about one that builders add to lists."""
    return one.platform is not None and one.platform.os != "unknown"


def _fits(there: Platform, wanted: Platform) -> bool:
    same = (there.os, there.architecture) == (wanted.os, wanted.architecture)
    return same and (not wanted.variant or there.variant == wanted.variant)


def _bounded(found: list[Descriptor] | None, most: int = DESCRIPTORS_MAX) -> list[Descriptor]:
    if found is not None and len(found) > most:
        raise ImageBroken(f"the image lists {len(found)} parts, at most {most}", limit="parts")
    return found or []


# --- docker archives ---


def _of_archive(
    bundle: Bundle, images: list[DockerImage], tag: str | None, wanted: Platform
) -> Image:
    found = images
    if tag is not None:
        found = [one for one in images if _is_tagged(one, tag)]
    tags = sorted({name for one in images for name in one.repo_tags or ()})
    if not found:
        raise NotFound(f"the archive has no image {tag or ''!r}{_list(tags)}")
    if len(found) > 1:
        raise InvalidRequest(f"the archive has several images: say which one{_list(tags)}")
    names = found[0].layers or []
    if len(names) > LAYERS_MAX:
        raise ImageBroken(f"the image has {len(names)} layers, at most {LAYERS_MAX}", limit="parts")
    raw = read_all(bundle, found[0].config, JSON_BYTES_MAX)
    if raw is None:
        raise ImageBroken(f"the archive is incomplete: {found[0].config[:200]!r} is missing")
    config = decode(raw, Config, "the config")
    diff_ids = _check_config(config, len(names), wanted)
    digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    pairs = zip(names, diff_ids, strict=True)
    return Image(digest, config, tuple(LayerBlob(name, diff_id) for name, diff_id in pairs))


def _is_tagged(image: DockerImage, tag: str) -> bool:
    return any(
        name == tag or name.endswith((f":{tag}", f"/{tag}")) for name in image.repo_tags or ()
    )


# --- both ---


def _check_config(config: Config, layers: int, wanted: Platform) -> list[str]:
    """Returns the digests of the unpacked layers."""
    diff_ids = config.rootfs.diff_ids or []
    if len(diff_ids) != layers:
        raise ImageBroken(f"the image has {layers} layers and {len(diff_ids)} digests of them")
    for diff_id in diff_ids:
        check_digest(diff_id)
    there = Platform(config.architecture, config.os, config.variant)
    if there.os and there.architecture and not _fits(there, wanted):
        raise NotFound(f"the image is made for {there}, not for {wanted}; choose one with platform")
    return diff_ids


def _list(names: list[str]) -> str:
    if not names:
        return ""
    shown = ", ".join(name[:200] for name in names[:_SHOWN_MAX])
    return f" (there are: {shown}{', ...' if len(names) > _SHOWN_MAX else ''})"
