"""Commits restored: what they lie on, and that it stays as long as they do."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import msgspec
import pytest
from images_archives import make_tar, member

from skerry.errors import InvalidRequest, LayerDamaged, NotFound
from skerry.spec.layers import LayerManifest, parse_layer_name

if TYPE_CHECKING:
    from image_uppers import Layers

    from skerry.images.library import ImageLibrary


def based(library: ImageLibrary, name: str, content: str) -> LayerManifest:
    return library.import_tar(name, io.BytesIO(make_tar(member(content, content.encode()))))


def committed(
    library: ImageLibrary, layers: Layers, name: str, on: tuple[LayerManifest, ...], **more: object
) -> LayerManifest:
    layers.write(name.replace("/", "-"), name.encode())
    below = tuple(one.alone() for one in on)
    parents = tuple(one.digest for one in on)
    more = {"below": below, "parents": parents} | more
    return library.commit(layers.view, name, recipe={"sandbox": "s"}, **more)


@pytest.mark.usefixtures("as_root")
def test_commit_is_restored_though_no_name_of_what_it_lies_on_is_left(
    library: ImageLibrary, layers: Layers
) -> None:
    base, work = based(library, "base/b", "b"), based(library, "workspace/w", "w")
    first = committed(library, layers, "workspace/c1", (base, work))
    second = committed(library, layers, "workspace/c2", (base, work, first))
    for name in ("base/b", "workspace/w", "workspace/c1"):
        library.remove(name)
    assert library.collect().removed == ()
    commit, restored = library.restore("workspace/c2")
    assert commit == second == restored[-1]
    assert [one.digest for one in restored] == [one.digest for one in (base, work, first, second)]
    plan = library.plan(restored)
    assert [one.digest for one in plan.layers] == [one.digest for one in restored]
    library.remove("workspace/c2")
    assert len(library.collect().removed) == 4


@pytest.mark.usefixtures("as_root")
def test_pin_of_a_commit_keeps_what_it_lies_on(library: ImageLibrary, layers: Layers) -> None:
    base = based(library, "base/b", "b")
    made = committed(library, layers, "workspace/c", (base,))
    library.pin("workspace/c")
    library.store.delete_tag(parse_layer_name(made.name))
    library.remove("base/b")
    assert library.collect().removed == ()


@pytest.mark.usefixtures("as_root")
def test_what_a_commit_lies_on_is_looked_for_where_it_was_not_told(
    library: ImageLibrary, layers: Layers
) -> None:
    """Commits of before have digests only, and so has a sandbox of before."""
    base = based(library, "base/b", "b")
    made = committed(library, layers, "workspace/c", (base,), below=())
    assert made.below == (base.alone(),)
    older = msgspec.structs.replace(made, below=())
    library.store.publish(older)
    assert [one.digest for one in library.restore("workspace/c")[1]] == [base.digest, made.digest]
    library.remove("base/b")
    with pytest.raises(LayerDamaged, match="cannot be restored") as caught:
        library.restore("workspace/c")
    assert caught.value.fields["digest"] == base.digest


@pytest.mark.usefixtures("as_root")
def test_layer_that_is_gone_is_named(library: ImageLibrary, layers: Layers) -> None:
    base, work = based(library, "base/b", "b"), based(library, "workspace/w", "w")
    committed(library, layers, "workspace/c", (base, work))
    library.store.delete(work.digest)
    with pytest.raises(LayerDamaged, match="workspace/w:latest, on which it lies, is gone") as lost:
        library.restore("workspace/c")
    assert lost.value.fields == {"digest": work.digest, "layer": "workspace/w:latest"}
    # What was written on it is worth keeping all the same.
    again = committed(library, layers, "workspace/d", (base, work))
    assert (again.below, again.parents) == ((), (base.digest, work.digest))
    assert library.inspect("workspace/d") == again


@pytest.mark.usefixtures("as_root")
def test_what_is_no_commit_is_refused(library: ImageLibrary, layers: Layers) -> None:
    based(library, "base/b", "b")
    based(library, "workspace/w", "w")
    for name, said in (
        ("workspace/w", "no commit of a sandbox .it was made by import"),
        ("base/b", "is a base"),
        ("x", "is no layer name"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            library.restore(name)
    with pytest.raises(NotFound, match="there is no layer workspace/none"):
        library.restore("workspace/none")
