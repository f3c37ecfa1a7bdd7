"""Commits as they are restored: the layers that one was made on, and then it.

A commit's manifest holds the manifests of those layers, so that it needs no name but its own, and
its name keeps all their blobs. One of before has only their digests: what else still knows them must
say what they are.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence

from skerry.errors import InvalidRequest, LayerDamaged, StorageFailed
from skerry.images.store.store import LayerStore
from skerry.spec.layers import LayerKind, LayerManifest, LayerName, chain_id, parse_layer_name

COMMIT, FLATTEN = "commit", "flatten"  # creators of such layers, and of what they are merged to
CHAINED = frozenset({COMMIT, FLATTEN})
LAGGING = (
    4  # more commits than that are worth a look for one of them that was merged with those below
)


log = logging.getLogger("skerry.images")


def commits_on_top(layers: Sequence[LayerManifest]) -> int:
    """Returns how many layers at the top of a chain are commits, or merged of some."""
    count = 0
    for layer in reversed(layers):
        if layer.creator not in CHAINED:
            break
        count += 1
    return count


class Restoring:
    """The part of the library that restores commits. It needs `find`, which raises NotFound."""

    store: LayerStore

    def find(self, name: LayerName) -> LayerManifest:
        """Returns what a name stands for, or the digest that it is pinned to."""
        raise NotImplementedError

    def restore(self, name: str) -> tuple[LayerManifest, tuple[LayerManifest, ...]]:
        """Returns a commit, and the layers that show what it holds, lowest first: as few as there are.

        Raises NotFound, InvalidRequest if that is no commit, and LayerDamaged (field `digest`) if a
        layer that it lies on is gone.
        """
        commit = self.find(_commit_name(name))
        if commit.creator != COMMIT or not commit.parents:
            raise InvalidRequest(
                f"{commit.name} is no commit of a sandbox (it was made by {commit.creator}): "
                "name it in layers=, on an image"
            )
        below = commit.below or self.known(commit.parents)
        if not below:
            raise self._unknown(commit)
        short = self.short((*below, commit)) or self._partly_short((*below, commit))
        if short:
            return commit, short
        for lost in self._lost(below):
            raise LayerDamaged(
                f"{commit.name} cannot be restored: {lost.name}, on which it lies, is gone from the "
                f"store ({lost.digest})",
                digest=lost.digest,
                layer=lost.name,
            )
        return commit, (*below, commit)

    def short(self, chain: Sequence[LayerManifest]) -> tuple[LayerManifest, ...]:
        """Returns a shorter chain that shows the same, if one is known and there; else none."""
        if sum(one.creator in CHAINED for one in chain) < 2:
            return ()
        digests = tuple(one.digest for one in chain)
        try:
            found = self.store.chain(chain_id(digests))
        except LayerDamaged as error:  # it can be made again; the chain itself is what counts
            log.warning("%s", error.message)
            return ()
        return self.still_there(found.layers) if found and found.digests == digests else ()

    def _partly_short(self, chain: Sequence[LayerManifest]) -> tuple[LayerManifest, ...]:
        """Returns the chain with a shorter one for a lower part of it, where merging lags behind.

        No name need keep that part any more: it is held, if it can be.
        """
        if commits_on_top(chain) <= LAGGING:
            return ()
        for end in range(len(chain) - 1, len(chain) - commits_on_top(chain) + 1, -1):
            part = self.short(chain[:end])
            whole = self.still_there((*part, *chain[end:])) if part else ()
            if whole:
                with contextlib.suppress(StorageFailed):  # it is just being collected
                    self.store.hold(whole)
                    return whole
        return ()

    def known(self, digests: Sequence[str]) -> tuple[LayerManifest, ...]:
        """Returns the layers of these digests as a commit remembers them; none if one is unknown."""
        found = [next(self.store.manifests(digest), None) for digest in digests]
        if None in found:
            return ()
        return tuple(one.alone() for one in found if one is not None)

    def still_there(self, below: tuple[LayerManifest, ...]) -> tuple[LayerManifest, ...]:
        """Returns the layers, or none if one is gone: a commit on them is worth to be kept too."""
        return () if next(self._lost(below), None) else below

    def _lost(self, below: Iterable[LayerManifest]) -> Iterator[LayerManifest]:
        return (one for top in below for one in top.layers() if not self.store.has(one.digest))

    def _unknown(self, commit: LayerManifest) -> LayerDamaged:
        known = {digest: next(self.store.manifests(digest), None) for digest in commit.parents}
        digest = next((one for one, found in known.items() if found is None), commit.parents[0])
        return LayerDamaged(
            f"{commit.name} cannot be restored: a layer on which it lies is gone from the store "
            f"({digest})",
            digest=digest,
        )


def _commit_name(text: str) -> LayerName:
    name = parse_layer_name(text)
    if name.kind is LayerKind.BASE:
        raise InvalidRequest(f"{text!r} is a base, and no commit of a sandbox: write image=")
    return name
