"""The routes of layers and of the store that they lie in."""

from __future__ import annotations

from typing import Final

from skerry.spec.layers import CollectReport, LayerCheck, LayerManifest, RecordsCheck
from skerry.wire.http import STREAM, DebianBody
from skerry.wire.registry import CollapseBody, PushBody, RegistryBody
from skerry.wire.route import FLAG, STRING, TAR, Param, Route

IMAGE_ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/images", "All layers.", answer=list[LayerManifest]),
    Route(
        "GET", "/v1/images/{name}", "One layer; the name may hold slashes.", answer=LayerManifest
    ),
    Route(
        "DELETE",
        "/v1/images/{name}",
        "Removes a layer not in use; answers what it was, null if its record is damaged.",
        answer=LayerManifest | None,
    ),
    Route(
        "POST",
        "/v1/images/{name}/import",
        "Makes a layer of an archive.",
        TAR,
        LayerManifest,
        (
            Param("kind", {"enum": ["tar", "oci"]}, "a tar of files (default), or of an image"),
            Param("tag", STRING, "oci: which of several images"),
            Param("platform", STRING, "oci: os/architecture[/variant]; the node's"),
        ),
    ),
    Route(
        "POST",
        "/v1/images/{name}/registry",
        "Makes a layer of a registry's image.",
        RegistryBody,
        STREAM,
    ),
    Route(
        "POST",
        "/v1/images/{name}/collapse",
        "Makes one layer of several.",
        CollapseBody,
        STREAM,
    ),
    Route("POST", "/v1/images/{name}/push", "Takes layers to a registry.", PushBody, STREAM),
    Route(
        "POST", "/v1/images/{name}/pin", "Keeps it, whatever its names do.", answer=LayerManifest
    ),
    Route("DELETE", "/v1/images/{name}/pin", "Takes a pin back.", answer=LayerManifest),
    Route(
        "GET",
        "/v1/images/{name}/verify",
        "Returns what the last check of its bytes found, by whoever it was.",
        answer=LayerCheck,
    ),
    Route(
        "POST",
        "/v1/images/{name}/verify",
        "Reads its bytes again and compares them with its digests.",
        answer=LayerCheck,
        params=(Param("remove", FLAG, "1: damaged blobs go, so that they can be stored anew"),),
    ),
    Route(
        "POST",
        "/v1/store/verify",
        "Reads all records of the store; says which are damaged, and what to do.",
        answer=RecordsCheck,
    ),
    Route(
        "POST",
        "/v1/store/collect",
        "Removes blobs that nothing needs; takes the store's grace period.",
        answer=CollectReport,
        params=(Param("dry_run", FLAG, "1: only says what would go, and why the rest stays"),),
    ),
    Route("POST", "/v1/images/{name}/debian", "Makes a base layer.", DebianBody, STREAM),
)
