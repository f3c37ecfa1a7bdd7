"""Whether what a sandbox wrote can be had as it was at one moment, and outlive it."""

from __future__ import annotations

from collections.abc import Mapping

from skerry.backends.api import Backend, Viewable, Viewer
from skerry.node.life.sandbox import Sandbox


def views_of(sandbox: Sandbox, backends: Mapping[str, Backend]) -> tuple[Viewer, Viewable] | None:
    """Returns its backend and its instance, as what views are taken of; None: there are none here."""
    backend = backends.get(sandbox.spec.backend)
    if backend is None or not backend.capabilities.snapshot:
        return None
    viewer: object = backend
    instance: object = sandbox.instance
    if not isinstance(viewer, Viewer) or not isinstance(instance, Viewable):
        return None
    return viewer, instance
