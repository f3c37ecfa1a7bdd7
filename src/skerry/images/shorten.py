"""Chains of commits made short: many that lie on each other become one, and a restore mounts that.

What a name stands for never changes here. Beside it the store gets a record of what a chain, named by
its digests, may be mounted as instead; it holds as long as the chain is named. A collection then keeps
the short chain, and lets the merged commits go when no other name, pin or sandbox needs them. A process
that is killed leaves the record or none, and at most blobs that the next collection removes.
"""

from __future__ import annotations

from collections.abc import Sequence

from skerry.images.commits.flattening import MergeJob, begin_of_merge, merge_layers
from skerry.images.commits.packing import Apart, Packed
from skerry.images.format.erofs import Log, Tools
from skerry.images.objects.directory import DirectoryObjects
from skerry.images.objects.s3 import S3Objects
from skerry.images.publish import Publisher
from skerry.images.scratch import scratch_directory
from skerry.images.store.records import Chain
from skerry.images.store.restoring import Restoring
from skerry.spec.layers import LayerManifest, composed_config, parse_layer_name


def _silent(_line: str) -> None:
    pass


class Shortening(Restoring):
    """The part of the library that makes chains short."""

    tools: Tools
    _scratch_dir: str
    _publisher: Publisher

    def shorten(
        self,
        commit: LayerManifest,
        most: int,
        *,
        apart: Apart | None = None,
        log: Log = _silent,
    ) -> int:
        """Sees to it that a restore of `commit` mounts at most `most` commits.

        Returns how many were merged: 0 if they are few, if its name stands for something else by
        now, or if it lies on what is gone. With `apart` a process of low priority does the work.
        Any number of nodes may do it at once. Raises StorageFailed, LayerDamaged, ImageBroken; then
        the chain is as it was.
        """
        layers = self._shortest(commit)
        begin = begin_of_merge(layers, most)
        if begin is None:
            fewer = len(commit.chain()) - len(layers)
            if not layers or not fewer or self.short(commit.chain()):
                return 0
            self._record(commit, layers)  # a lower part was merged before, and that is enough
            return fewer
        run = layers[begin:]
        needed = {blob for one in run for blob in one.blobs()}
        with self.store.adding(*needed), scratch_directory(self._scratch_dir) as scratch:
            packed = self._merge(run, scratch, apart, log)
            merged = self._publisher.merged(packed, composed_config(run))
            with self.store.adding(*merged.blobs()):
                self._publisher.put([packed.built()])
                self.store.put_manifest(merged)
                self._record(commit, (*layers[:begin], merged.alone()))
        log(f"{commit.name}: {len(run)} commits of its chain are one layer, {merged.digest}")
        return len(run)

    def _shortest(self, commit: LayerManifest) -> tuple[LayerManifest, ...]:
        """Returns the shortest chain that is known and there: of the whole, or of a lower part of it."""
        if self.store.tag(parse_layer_name(commit.name)) != commit.digest:
            return ()
        chain = tuple(one.alone() for one in commit.chain())
        for end in range(len(chain), 1, -1):
            short = self.short(chain[:end])
            if short:
                return (*short, *chain[end:])
        return self.still_there(chain)

    def _record(self, commit: LayerManifest, short: tuple[LayerManifest, ...]) -> None:
        digests = tuple(one.digest for one in commit.chain())
        self.store.put_chain(Chain(str(commit.chain_id), digests, short))

    def _merge(
        self, run: Sequence[LayerManifest], scratch: str, apart: Apart | None, log: Log
    ) -> Packed:
        objects = self.store.objects
        job = MergeJob(
            layers=tuple(run),
            store=objects.where,
            s3=objects.options if isinstance(objects, S3Objects) else None,
            scratch=scratch,
            compression=self._publisher.compression,
            codec=self._publisher.codec,
            cache_dir=self.tools.cache_dir,
            mkfs=self.tools.mkfs().path,
        )
        if apart is None or not isinstance(objects, S3Objects | DirectoryObjects):
            return merge_layers(job, self.tools, log, self.store)
        return apart.run("skerry.images.commits.flattening", job, log)
