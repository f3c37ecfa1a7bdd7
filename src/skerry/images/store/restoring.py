"""Commits as they are restored: the layers that one was made on, and then it.

A commit's manifest holds the manifests of those layers, so that it needs no name but its own, and
its name keeps all their blobs. One of before has only their digests: what else still knows them must
say what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from skerry.errors import InvalidRequest, LayerDamaged
from skerry.images.store.store import LayerStore
from skerry.spec.layers import LayerKind, LayerManifest, LayerName, parse_layer_name

COMMIT = "commit"  # the creator of such layers


class Restoring:
    """The part of the library that restores commits. It needs `find`, which raises NotFound."""

    store: LayerStore

    def find(self, name: LayerName) -> LayerManifest:
        """Returns what a name stands for, or the digest that it is pinned to."""
        raise NotImplementedError

    def restore(self, name: str) -> tuple[LayerManifest, tuple[LayerManifest, ...]]:
        """Returns a commit, and the layers that show what it holds, lowest first.

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
        for lost in self._lost(below):
            raise LayerDamaged(
                f"{commit.name} cannot be restored: {lost.name}, on which it lies, is gone from the "
                f"store ({lost.digest})",
                digest=lost.digest,
                layer=lost.name,
            )
        return commit, (*below, commit)

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
