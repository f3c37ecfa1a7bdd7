"""Bodies of requests that bring images from registries, take layers there, and collapse layers."""

from __future__ import annotations

import msgspec

from skerry.spec.layers import ImageConfig


class RegistryBody(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """An image of a registry, fetched by the node. `auth` is the content of an auth file."""

    reference: str  # HOST[:PORT]/NAME[:TAG][@DIGEST]
    platform: str | None = None  # os/architecture[/variant]; None: the node's
    auth: str | None = None  # None: the node's own, if its operator gave it one
    tls_verify: bool = True


class PushBody(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Takes a layer, and `layers` above it, to a registry as one image."""

    reference: str
    layers: tuple[str, ...] = ()
    auth: str | None = None
    tls_verify: bool = True


class CollapseBody(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Makes one layer of several, which show the same together.

    `scrub` names rules of skerry.spec.residue, all but git; what they match is left out. `config`
    is what the layer says of itself; None: what the layers say together. `recipe` is kept.
    """

    layers: tuple[str, ...]
    threshold_bytes: int | None = None  # of files in a part; None: 3 GiB
    scrub: tuple[str, ...] = ()
    config: ImageConfig | None = None
    recipe: dict[str, str] = {}
