"""Bases by the names that others give them: a layer that there is, or an image of a registry."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from skerry.errors import InvalidRequest, NotFound
from skerry.spec.layers import LayerKind, LayerManifest, parse_layer_name
from skerry.spec.reference import DOCKER_HUB, Reference, parse_reference

Inspect = Callable[[str], Awaitable[LayerManifest]]
# Makes a layer of this name of the image at that docker:// address.
Fetch = Callable[[str, str], Awaitable[LayerManifest]]
_PREFIX = f"{LayerKind.BASE}/"


class ImageSources(msgspec.Struct, frozen=True):
    """Where bases come from that are no layers yet.

    `aliases` give other names to layers: {"ubuntu:24.04": "debian:12"}. Of `registries` the first is
    asked for names that name none (`docker.io`, or a mirror); others may come from them alone.
    `authfile` is like ~/.docker/config.json.
    """

    aliases: Mapping[str, str] = {}
    registries: Sequence[str] = ()
    authfile: str | os.PathLike[str] | None = None
    tls_verify: bool = True


async def find_base(
    text: str, sources: ImageSources, inspect: Inspect, fetch: Fetch
) -> LayerManifest:
    """Returns the base that a name stands for; what is fetched is there for the next one who asks.

    Raises NotFound, saying what would help, InvalidRequest for no name, and what `fetch` raises.
    """
    plain = text.removeprefix(_PREFIX)
    aliases = {name.removeprefix(_PREFIX): base for name, base in sources.aliases.items()}
    if plain in aliases:
        return await inspect(aliases[plain])
    names = []
    try:
        names.append(str(parse_layer_name(plain, LayerKind.BASE)))
    except InvalidRequest:
        parse_reference(plain)  # then it must be one of those
    try:
        reference = parse_reference(plain)
        names.append(str(reference.layer()))
    except InvalidRequest:
        reference = None
    for name in dict.fromkeys(names):
        try:
            return await inspect(name)
        except NotFound:
            continue
    if reference is None or not _open(reference, sources.registries):
        raise NotFound(_missing(plain, names[-1], reference, sources.registries))
    return await fetch(str(reference.layer()), reference.at(sources.registries[0]))


def _open(reference: Reference, registries: Sequence[str]) -> bool:
    return bool(registries) and (reference.host is None or reference.host in registries)


def _missing(text: str, name: str, reference: Reference | None, registries: Sequence[str]) -> str:
    told = f"there is no image {text!r} here: no layer {name}"
    if reference is not None and registries:
        allowed = ", ".join(registries)
        told += (
            f", and {reference.host} is none of the registries that it may come from ({allowed})"
        )
    host = DOCKER_HUB if reference is None or reference.host is None else reference.host
    # A Debian of a number is built without a recipe: what most who begin have to type.
    recipe = "" if re.fullmatch(r"base/debian:\d+", name) else " -f Dockerfile"
    return (
        f"{told}. Make one (skerry image build {name}{recipe}, skerry image import {name} SOURCE), let "
        f"another take its place (images), or let it be fetched (registries: {host})"
    )
