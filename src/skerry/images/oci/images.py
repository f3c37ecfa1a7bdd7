"""Images of other systems as layers of a library, and layers as images: what the node offers.

All methods block, and may run at once in several threads and processes. What fails leaves no name,
and nothing on disk but blobs in the cache, which are bounded and kept for the next try.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from skerry.errors import ImageBroken, InvalidRequest
from skerry.images.archives.tarimport import ImportLimits
from skerry.images.archives.tarread import Readable
from skerry.images.commits.residue import Residue, sweep_tree
from skerry.images.format.erofs import Log
from skerry.images.library import ImageLibrary, new_name
from skerry.images.oci.bundle import ArchiveBundle, Bundle, DirectoryBundle
from skerry.images.oci.cache import BlobCache
from skerry.images.oci.choose import Image, choose, parse_platform
from skerry.images.oci.config import read_config
from skerry.images.oci.layers import LayerReader, is_whole
from skerry.images.oci.model import BlobDamaged, Platform, blob_name
from skerry.images.oci.skopeo import Access, Skopeo, SkopeoLimits
from skerry.images.oci.write import LayoutWriter
from skerry.images.publish import Made
from skerry.images.scratch import Spool
from skerry.images.store.opened import read_layer
from skerry.images.tree.entry import Tree
from skerry.images.tree.merge import COLLAPSE_BYTES, Collapse, strip
from skerry.images.tree.notes import Notes
from skerry.spec.layers import ImageConfig, LayerKind, LayerManifest, LayerName, composed_config
from skerry.spec.residue import check_rules

CACHE_BYTES = 10 << 30
THRESHOLD_MIN, THRESHOLD_MAX = 1 << 20, 64 << 30


def _silent(_line: str) -> None:
    pass


class _Wanted(NamedTuple):
    """What an import shall become."""

    target: LayerName
    platform: Platform
    threshold: int
    log: Log


class CollapseWish(NamedTuple):
    """What a collapse leaves out, and what the layer says of itself."""

    scrub: tuple[str, ...] = ()  # rules of skerry.spec.residue
    config: ImageConfig | None = None  # None: what the layers say together
    recipe: Mapping[str, str] = {}

    @property
    def creator(self) -> str:
        """What the manifest names as its maker."""
        return "build" if self.recipe else "collapse"


class OciImages:
    """Imports and pushes for one library. `cache_dir` keeps fetched blobs, at most `cache_bytes`."""

    def __init__(
        self,
        library: ImageLibrary,
        cache_dir: str,
        *,
        cache_bytes: int = CACHE_BYTES,
        limits: ImportLimits | None = None,
        skopeo_limits: SkopeoLimits | None = None,
    ) -> None:
        self._library = library
        self._cache = BlobCache(cache_dir, cache_bytes)
        self._limits = limits or ImportLimits()
        self._skopeo_limits = skopeo_limits

    def import_archive(
        self,
        name: str,
        fileobj: Readable,
        *,
        tag: str | None = None,
        platform: str | None = None,
        threshold: int = COLLAPSE_BYTES,
        log: Log = _silent,
    ) -> LayerManifest:
        """Makes a layer of an OCI layout as a tar, or of what `docker save` wrote."""
        wanted = _wanted(name, platform, threshold, log)
        with self._library.work() as (scratch, spool):
            archived = Spool(scratch)
            try:
                bundle = ArchiveBundle(fileobj, archived, self._limits)
                made = self._read(wanted, bundle, choose(bundle, tag, wanted.platform), spool)
            finally:
                archived.close()
            return self._library.publish(made, scratch, log)

    def import_registry(
        self,
        name: str,
        reference: str,
        *,
        access: Access,
        platform: str | None = None,
        threshold: int = COLLAPSE_BYTES,
        log: Log = _silent,
    ) -> LayerManifest:
        """Makes a layer of an image of a registry; blobs that are in the cache are not fetched."""
        wanted = _wanted(name, platform, threshold, log)
        with self._library.work() as (scratch, spool):
            with self._cache.used() as place:
                skopeo = Skopeo(place, access, log, self._skopeo_limits)
                made = self._fetch(wanted, reference, skopeo, place, spool)
            made = made._replace(recipe=made.recipe | {"reference": reference})
            return self._library.publish(made, scratch, log)

    def push(
        self, names: Sequence[str], reference: str, *, access: Access, log: Log = _silent
    ) -> str:
        """Copies layers, composed in their order, to a registry as one image; returns its digest."""
        manifests = self._find(names)
        with self._held(manifests), self._cache.place() as place:
            layout = os.path.join(place, "layout")
            writer = LayoutWriter(layout)
            for layer in _layers(manifests):
                spool = Spool(place)
                try:
                    tree = read_layer(self._library.store, layer, place, spool, self._limits)
                    writer.add(tree, spool)
                    log(f"packed {layer.name}: {layer.files} files")
                finally:
                    spool.close()
            writer.finish(composed_config(manifests), parse_platform(None))
            skopeo = Skopeo(place, access, log, self._skopeo_limits)
            digest = skopeo.push(layout, reference)
        log(f"pushed {reference}@{digest}")
        return digest

    def collapse(
        self,
        names: Sequence[str],
        into: str,
        *,
        threshold: int | None = None,
        wish: CollapseWish | None = None,
        log: Log = _silent,
    ) -> LayerManifest:
        """Makes one layer that shows what several show together, in fewer parts.

        Whiteouts stay, but in a base. Raises InvalidRequest unless `into` is a base just when one
        of the layers is.
        """
        wish = wish or CollapseWish()
        target = new_name(into)
        threshold = check_threshold(COLLAPSE_BYTES if threshold is None else threshold)
        manifests = self._find(names)
        kinds = {name.kind for name in self._library.ordered(names)}
        if (target.kind is LayerKind.BASE) is not (LayerKind.BASE in kinds):
            raise InvalidRequest(
                f"{target}: with a base the result is a base, without one it is none"
            )
        with self._held(manifests), self._library.work() as (scratch, spool):
            collapsed = Collapse(threshold)
            for layer in _layers(manifests):
                collapsed.add(read_layer(self._library.store, layer, scratch, spool, self._limits))
                if collapsed.files() > self._limits.entries_max:
                    raise ImageBroken("the layers hold too many files together", limit="entries")
                log(f"read {layer.name}: {layer.files} files")
            residue = Residue(_rules(wish.scrub))
            for tree in collapsed.trees:
                sweep_tree(tree, spool, residue)
            config = wish.config or composed_config(manifests)
            recipe = {"layers": " ".join(one.pinned for one in manifests)}
            made = Made(
                target,
                wish.creator,
                recipe | dict(wish.recipe),
                Tree(),
                spool,
                Notes(),
                scrubbed=residue.report(),
            )
            return self._library.publish(_finished(made, collapsed, config), scratch, log)

    # --- inner parts ---

    def _find(self, names: Sequence[str]) -> tuple[LayerManifest, ...]:
        if not names:
            raise InvalidRequest("name at least one layer")
        return tuple(self._library.inspect(str(name)) for name in self._library.ordered(names))

    def _held(self, manifests: Sequence[LayerManifest]) -> AbstractContextManager[None]:
        """Within it the blobs that are read stay, whatever is removed and collected meanwhile."""
        return self._library.store.adding(*(blob for one in manifests for blob in one.blobs()))

    def _read(self, wanted: _Wanted, bundle: Bundle, image: Image, spool: Spool) -> Made:
        notes = Notes()
        layers = Collapse(wanted.threshold)
        LayerReader(bundle, spool, notes, self._limits).read(image, layers, wanted.log)
        config = read_config(image.config, layers, spool, notes)
        recipe = {"image": image.digest, "image_layers": str(len(image.layers))}
        base = Made(wanted.target, "oci", recipe, Tree(), spool, notes)
        return _finished(base, layers, config)

    def _fetch(
        self, wanted: _Wanted, reference: str, skopeo: Skopeo, place: str, spool: Spool
    ) -> Made:
        dropped: set[str] = set()
        for number in itertools.count():
            layout = os.path.join(place, f"layout{number}")
            skopeo.fetch(reference, layout, self._cache.blobs, wanted.platform)
            bundle = DirectoryBundle(layout, self._cache.blobs)
            image = None
            try:
                image = choose(bundle, None, wanted.platform)
                made = self._read(wanted, bundle, image, spool)
            except BlobDamaged as error:
                # It may have lain in the cache for long: one that is fetched anew decides.
                damaged = {str(error.fields["digest"])} | _damaged(bundle, image)
                if damaged <= dropped:
                    raise
                wanted.log(f"fetching again: {error.message}")
                dropped |= damaged
                for digest in damaged:
                    self._cache.drop(bundle.path(blob_name(digest)))
            else:
                for layer in image.layers:
                    self._cache.touch(bundle.path(layer.name))
                return made
        raise AssertionError("it returns or raises")


def _damaged(bundle: Bundle, image: Image | None) -> set[str]:
    """Returns the digests of the layers that are not what they should be."""
    layers = image.layers if image is not None else ()
    return {str(layer.digest) for layer in layers if not is_whole(bundle, layer)}


def check_threshold(threshold: int) -> int:
    """Returns the threshold of a collapse if it makes sense; raises InvalidRequest."""
    if not THRESHOLD_MIN <= threshold <= THRESHOLD_MAX:
        raise InvalidRequest(f"threshold: between {THRESHOLD_MIN} and {THRESHOLD_MAX} bytes")
    return threshold


def _layers(manifests: Sequence[LayerManifest]) -> list[LayerManifest]:
    return [layer for manifest in manifests for layer in manifest.layers()]


def _rules(names: tuple[str, ...]) -> tuple[str, ...]:
    if "git" in names:
        raise InvalidRequest("scrub: the rule git is for commits: it looks into repositories")
    return check_rules(names)


def _wanted(name: str, platform: str | None, threshold: int, log: Log) -> _Wanted:
    return _Wanted(new_name(name), parse_platform(platform), check_threshold(threshold), log)


def _finished(made: Made, layers: Collapse, config: ImageConfig) -> Made:
    """Returns it with the trees of `layers`, the topmost one as its own."""
    trees = layers.trees or [Tree()]
    if made.name.kind is LayerKind.BASE:
        strip(trees[0])
    kept = config if config != ImageConfig() else None
    return made._replace(tree=trees[-1], lower=tuple(trees[:-1]), config=kept)
