"""The layers that a node knows: found by name, made from archives, directories, suites, sandboxes.

All methods block (call them from a worker thread) and may be used from several threads and
processes at once. A name becomes visible only when all that it stands for is stored and synced; an
error or a crash before that leaves the store as it was.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from skerry.errors import InvalidRequest, LayerDamaged, NotFound
from skerry.images.archives.tarimport import ImportLimits, read_tar
from skerry.images.archives.tarread import Readable
from skerry.images.archives.tarwrite import write_tar
from skerry.images.commits.diff import changes, tar_entries
from skerry.images.commits.packing import Apart, Job, pack
from skerry.images.format.chunks import Codec
from skerry.images.format.erofs import Log, Tools
from skerry.images.publish import Made, Publisher
from skerry.images.scratch import Spool, scratch_directory, sweep
from skerry.images.shorten import Shortening
from skerry.images.sources import debian
from skerry.images.sources.directory import read_directory
from skerry.images.store.local import LocalLayers
from skerry.images.store.mounting import Mounting
from skerry.images.store.removal import Removal
from skerry.images.store.store import LayerStore
from skerry.images.store.suspects import Suspects
from skerry.images.tree.entry import Tree
from skerry.images.tree.notes import Notes
from skerry.images.tree.upper import UpperLimits, UpperView
from skerry.spec.files import Change
from skerry.spec.layers import (
    LayerKind,
    LayerManifest,
    LayerName,
    commit_name,
    parse_layer_name,
)
from skerry.spec.residue import check_rules

_log = logging.getLogger("skerry.images")
_PROGRESS_S = 5.0


def _silent(_line: str) -> None:
    pass


class ImageLibrary(Mounting, Shortening, Removal):
    """Layers in one store. `scratch_dir` is best on the store's disk: blobs are then renamed.

    `codec` is how data blobs are stored from now on. With `local` metadata blobs are mounted from
    this node's checked copies; without it from the store, unchecked. With `verified`, which needs
    `local`, data blobs come through the chunk cache of the node.
    """

    def __init__(
        self,
        store: LayerStore,
        tools: Tools,
        scratch_dir: str,
        *,
        compression: str = "none",
        codec: Codec = Codec.NONE,
        local: LocalLayers | None = None,
        verified: bool = False,
        import_limits: ImportLimits | None = None,
        upper_limits: UpperLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.suspects = Suspects(store)
        self.tools = tools
        self._scratch_dir = scratch_dir
        self._publisher = Publisher(store, tools, compression, codec, clock)
        self._local, self._verified = local, verified
        self._import_limits = import_limits or ImportLimits()
        self._upper_limits = upper_limits or UpperLimits()
        sweep(scratch_dir)

    # --- finding ---

    def resolve(self, names: Sequence[str]) -> tuple[LayerManifest, ...]:
        """Returns the layers in the order of composition: base, workspaces, toolkits.

        The first name may be short for a base; layers of one kind keep their order. Raises
        InvalidRequest unless there is exactly one base and no layer twice, NotFound with close
        matches and how to get it.
        """
        found = self.ordered(names)
        if sum(name.kind is LayerKind.BASE for name in found) != 1:
            raise InvalidRequest("a root file system has exactly one base layer")
        return tuple(self.find(name) for name in found)

    def ordered(self, names: Sequence[str]) -> list[LayerName]:
        """Returns names in the order of composition; raises InvalidRequest for one named twice."""
        parsed = [
            parse_layer_name(text, LayerKind.BASE if at == 0 else None)
            for at, text in enumerate(names)
        ]
        if any(name.kind is LayerKind.DISK for name in parsed):
            raise InvalidRequest("a disk is no layer of a root file system: skerry disk open")
        if len({(name.kind, name.name) for name in parsed}) != len(parsed):
            raise InvalidRequest("the same layer is named twice")
        order = list(LayerKind)
        return sorted(parsed, key=lambda name: order.index(name.kind))

    def list(self) -> tuple[LayerManifest, ...]:
        """Returns what each name stands for now, sorted by name; damaged ones only the log has."""
        return tuple(self.store.catalogue(damaged=_damaged))

    def inspect(self, name: str) -> LayerManifest:
        """Returns the manifest of a name, which may be pinned by digest; raises NotFound."""
        return self.find(parse_layer_name(name, LayerKind.BASE))

    def tidy(self, in_use: Collection[str] = ()) -> None:
        """Removes this node's copies of metadata that no digest of `in_use` needs, if they are old.

        Also what processes that were killed left in the scratch directory.
        """
        sweep(self._scratch_dir)
        if self._local is not None:
            needed = {
                blob
                for digest in in_use
                for manifest in self.store.manifests(digest)
                for blob in manifest.blobs()
            }
            self._local.tidy(needed | set(in_use))

    def hold(self, manifests: Sequence[LayerManifest]) -> None:
        """Makes layers stay for a minute at least; until then the lease has to name them as live.

        `plan` afterwards says whether they are all there. Raises StorageFailed where one is just
        being collected.
        """
        self.store.hold(manifests)

    # --- making ---

    def import_tar(
        self,
        name: str,
        fileobj: Readable,
        *,
        creator: str = "import",
        recipe: Mapping[str, str] | None = None,
        log: Log = _silent,
    ) -> LayerManifest:
        """Makes a layer of an archive; `archives.tarimport` says what is taken and how."""
        target = new_name(name)
        with self.work() as (scratch, spool):
            notes = Notes()
            tree = read_tar(fileobj, spool, notes, self._import_limits, _progress("reading", log))
            _refuse_image(tree)
            made = Made(target, creator, dict(recipe or {}), tree, spool, notes)
            return self.publish(made, scratch, log)

    def import_directory(
        self, name: str, path: str, prefix: str = "/", *, log: Log = _silent
    ) -> LayerManifest:
        """Makes a layer of a host directory, which appears at `prefix` inside.

        Owners stay as they are below 65,536; devices and sockets are left out with a note.
        """
        target = new_name(name)
        with self.work() as (scratch, spool):
            notes = Notes()
            tree = read_directory(path, prefix, spool, notes, self._import_limits)
            made = Made(target, "directory", {"prefix": prefix}, tree, spool, notes)
            return self.publish(made, scratch, log)

    def debian(
        self,
        name: str,
        suite: str,
        packages: Sequence[str] = (),
        log: Log = _silent,
        refresh: bool = False,
    ) -> LayerManifest:
        """Makes a base of a Debian suite through this machine's own apt configuration; needs root.

        The same suite and packages give what is there already, unless `refresh` is set.
        """
        target = new_name(name)
        recipe = debian.recipe(suite, packages)
        if not refresh:
            with contextlib.suppress(NotFound):
                there = self.find(target)
                if all(there.recipe.get(key) == value for key, value in recipe.items()):
                    return there
        path = debian.root_tar(suite, packages, self.tools.cache_dir, log, refresh=refresh)
        with open(path, "rb") as file:
            return self.import_tar(str(target), file, creator="debian", recipe=recipe, log=log)

    def commit(
        self,
        upper: UpperView,
        name: str,
        *,
        exclude: Sequence[str] = (),
        scrub: tuple[str, ...] | None = None,
        recipe: Mapping[str, str] | None = None,
        parents: tuple[str, ...] = (),
        below: tuple[LayerManifest, ...] = (),
        apart: Apart | None = None,
        log: Log = _silent,
    ) -> LayerManifest:
        """Makes a layer of what a sandbox wrote; on its lowers it gives the same tree again.

        `commits.commit` says what is left out; the manifest lists what the rules of `scrub`
        took. A layer without files is allowed. `below` are the layers of `parents`, for a restore;
        they are looked for where they are not given. With `apart` a process of low priority does
        the work. Raises InvalidRequest for a base: what was written is only the difference to one.
        """
        target = commit_name(name)
        with scratch_directory(self._scratch_dir) as scratch:
            job = Job(
                path=upper.path,
                uid_base=upper.uid_base,
                lowers=upper.lowers,
                scratch=scratch,
                exclude=tuple(exclude),
                rules=check_rules(scrub),
                limits=self._upper_limits,
                compression=self._publisher.compression,
                codec=self._publisher.codec,
                cache_dir=self.tools.cache_dir,
                mkfs=self.tools.mkfs().path,
            )
            packed = pack(job, self.tools, log) if apart is None else apart.pack(job, log)
            below = self.still_there(below or self.known(parents))
            return self._publisher.keep(
                target, packed, dict(recipe or {}), parents, log, below=below
            )

    # --- looking at what a sandbox wrote ---

    def diff(self, upper: UpperView) -> tuple[Change, ...]:
        """Returns what differs from the lowers, sorted by path (see `skerry.images.commits.diff`)."""
        return tuple(sorted(changes(upper, self._upper_limits), key=lambda change: change.path))

    def diff_tar(self, upper: UpperView, under: str = "/") -> Iterator[bytes]:
        """Gives an archive of the added and modified paths at and below `under`."""
        return write_tar(tar_entries(upper, self._upper_limits, under))

    # --- parts of making ---

    @contextlib.contextmanager
    def work(self) -> Iterator[tuple[str, Spool]]:
        """Gives a scratch directory and a spool in it; both are gone afterwards."""
        with scratch_directory(self._scratch_dir) as scratch:
            spool = Spool(scratch)
            try:
                yield scratch, spool
            finally:
                spool.close()

    def publish(self, made: Made, scratch: str, log: Log) -> LayerManifest:
        """Makes the blobs of what was read, stores them, and lets the name stand for them."""
        return self._publisher.publish(made, scratch, log)

    # --- inner parts ---

    def find(self, name: LayerName) -> LayerManifest:
        """Returns what a name stands for, or the digest that it is pinned to; raises NotFound."""
        pin = name.digest
        manifest = self.store.manifest(name, pin) if pin else self.store.tagged(name)
        if manifest is None and name.digest:
            # Pinned: whatever tag it had, as long as it is this layer's.
            same = f"{name.kind}/{name.name}:"
            found = self.store.manifests(name.digest)
            manifest = next((one for one in found if one.name.startswith(same)), None)
        if manifest is None:
            raise self._not_found(name)
        for layer in manifest.layers():
            if not self.store.has(layer.digest):
                text = f"{manifest.name}: its blob {layer.digest} is gone from the store"
                raise LayerDamaged(text, digest=layer.digest)
        return manifest

    def _not_found(self, name: LayerName) -> NotFound:
        known = [one.name for one in self.list()]
        wanted = f"{name.kind}/{name.name}:{name.tag}"
        close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.6)
        hint = f"; close: {', '.join(close)}" if close else ""
        return NotFound(f"there is no layer {name}{hint}. {_how_to_build(name)}", close=close)


def _damaged(said: str) -> None:
    _log.warning("%s; left out of the list", said)


def new_name(text: str) -> LayerName:
    """Returns the name that a new layer shall have; raises InvalidRequest."""
    name = parse_layer_name(text, LayerKind.BASE)
    if name.digest:
        raise InvalidRequest(f"{text!r}: the digest of a new layer is not chosen")
    if name.kind is LayerKind.DISK:
        raise InvalidRequest(f"{text!r}: a disk is made by skerry disk create")
    return name


def _refuse_image(tree: Tree) -> None:
    """Raises InvalidRequest for what `docker save` and their like write: no files of a root."""
    layout = tree.find(b"oci-layout") and tree.find(b"index.json")
    saved = tree.find(b"manifest.json") and tree.find(b"repositories")
    if layout or saved:
        raise InvalidRequest(
            "the archive is an image, not the files of one: import docker-archive:FILE, "
            "or oci-archive:FILE"
        )


def _how_to_build(name: LayerName) -> str:
    if name.digest:
        return "A pinned layer must be imported again from where it was made."
    if name.kind is LayerKind.BASE and name.name == "debian" and name.tag in debian.SUITES:
        return f"Build it with: skerry image build debian:{name.tag}"
    short = f"{name.kind}/{name.name}:{name.tag}"
    return (
        f"Build one with: skerry image build {short} -f Dockerfile; "
        f"or import one: skerry image import {short} SOURCE"
    )


def _progress(what: str, log: Log) -> Callable[[int, int], None]:
    told = time.monotonic()

    def tell(files: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= _PROGRESS_S:
            told = time.monotonic()
            log(f"{what}: {files} files, {total >> 20} MiB")

    return tell
