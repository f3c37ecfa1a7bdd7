"""Chains of commits made short: which are merged, and what is left when that is cut off or repeated."""

from __future__ import annotations

import io
import os
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest
from images_archives import make_tar, member

from skerry.errors import LayerDamaged, SkerryError
from skerry.images.commits.flattening import begin_of_merge
from skerry.images.commits.packing import Apart
from skerry.images.library import ImageLibrary
from skerry.images.scratch import Spool, scratch_directory
from skerry.images.store import keys
from skerry.images.store.collect import Collector
from skerry.images.store.opened import read_layer
from skerry.images.store.records import Chain
from skerry.images.store.store import DirectoryStore
from skerry.images.tree.merge import Collapse
from skerry.spec.layers import LayerManifest

if TYPE_CHECKING:
    from pathlib import Path

    from image_uppers import Layers

COMMITS = 6
MOST = 2
pytestmark = pytest.mark.usefixtures("as_root")


def sized(*sizes: int) -> list[LayerManifest]:
    """A chain on a base and a workspace, with commits of these sizes."""
    return [
        LayerManifest("n", f"sha256:{at:064x}", size, "", creator)
        for at, (size, creator) in enumerate(
            [(1 << 30, "debian"), (1, "import"), *((size, "commit") for size in sizes)]
        )
    ]


@pytest.mark.parametrize(
    ("sizes", "most", "left"),
    [
        ((), 4, ()),
        ((1, 1, 1, 1), 4, (1, 1, 1, 1)),
        ((1, 1, 1, 1, 1), 4, (5,)),
        ((5, 1, 1, 1, 1), 4, (5, 4)),
        ((100, 50, 20, 1, 1), 4, (100, 50, 20, 2)),
        ((5, 4, 3, 2, 1), 4, (15,)),
        ((1, 1, 1), 1, (3,)),
        ((9, 1), 1, (10,)),
        ((9, 9, 9, 1), 2, (28,)),
        ((40, 9, 9, 1), 2, (40, 19)),
    ],
)
def test_newest_commits_are_merged_with_what_is_no_larger_below(
    sizes: tuple[int, ...], most: int, left: tuple[int, ...]
) -> None:
    chain = sized(*sizes)
    begin = begin_of_merge(chain, most)
    now = [one.size_bytes for one in chain]
    if begin is not None:
        assert begin >= 2  # what is no commit stays what it is
        now[begin:] = [sum(now[begin:])]
    assert tuple(now[2:]) == left


def test_bytes_of_a_long_chain_are_copied_a_few_times_and_not_once_a_commit() -> None:
    sizes, copied = [], 0
    for _ in range(1000):
        sizes.append(1)
        begin = begin_of_merge(sized(*sizes), 4)
        if begin is not None:
            sizes[begin - 2 :] = [sum(sizes[begin - 2 :])]
            copied += sizes[-1]
        assert len(sizes) <= 4
    assert copied < 20 * 1000  # all of them each time would be 125 times


def chained(library: ImageLibrary, layers: Layers, count: int = COMMITS) -> list[LayerManifest]:
    """Commits, each on the one before, on a base; not one of their names is that of another."""
    archive = make_tar(member("etc/base", b"b"), member("gone", b"g"))
    chain = [library.import_tar("base/b", io.BytesIO(archive))]
    (layers.top / "gone").write_bytes(b"g")
    for number in range(count):
        layers.write(f"f{number}", str(number).encode() * (700_000 if number == 1 else 5))
        layers.write("same", str(number).encode())
        if number == 2:
            layers.whiteout("gone")
            os.link(layers.upper / "f1", layers.upper / "link")
        below = tuple(one.alone() for one in chain)
        parents = tuple(one.digest for one in chain)
        made = library.commit(layers.view, f"workspace/c{number}", below=below, parents=parents)
        chain.append(made)
    return chain


def shown(library: ImageLibrary, layers: tuple[LayerManifest, ...]) -> dict[bytes, tuple]:
    """What layers show together: attributes and contents by path."""
    with scratch_directory(library._scratch_dir) as scratch:
        spool, merged = Spool(scratch), Collapse(1 << 60)
        for one in layers:
            for part in one.layers():
                merged.add(read_layer(library.store, part, scratch, spool, library._import_limits))
        found, places = {}, [(b"", merged.trees[0].root)]
        while places:
            path, node = places.pop()
            content = b"".join(spool.read(node.content)) if node.content is not None else b""
            found[path] = (node.type, node.mode, node.uid, node.gid, content)
            places += [(path + b"/" + name, one) for name, one in (node.children or {}).items()]
        spool.close()
    return found


def again(store: DirectoryStore, library: ImageLibrary) -> ImageLibrary:
    """The library of another node, or of this one started anew."""
    opened = DirectoryStore(store.root, leases=lambda _: type(store.leases)(store.objects))
    opened.leases.timing = store.leases.timing
    return ImageLibrary(opened, library.tools, library._scratch_dir + "-other")


def test_short_chain_shows_the_same_and_the_merged_commits_go_with_their_names(
    library: ImageLibrary, layers: Layers, store: DirectoryStore
) -> None:
    chain = chained(library, layers)
    last = chain[-1]
    before = shown(library, library.restore(last.name)[1])
    assert library.shorten(last, MOST, apart=Apart()) == COMMITS
    commit, short = again(store, library).restore(last.name)
    assert commit == last == library.inspect(last.name)
    assert [one.creator for one in short] == ["import", "flatten"]
    assert shown(library, short) == before
    assert library.shorten(last, MOST) == 0
    assert [one.name for one in library.list()] == sorted(one.name for one in chain)
    assert library.collect().removed == ()  # each is named still
    for one in chain[:-1]:
        library.remove(one.name)
    assert len(library.collect().removed) >= COMMITS - 1
    assert {one.digest for one in short} <= {one.digest for one in library.store.list()}
    assert chain[2].digest not in {one.digest for one in library.store.list()}
    assert shown(library, library.restore(last.name)[1]) == before
    library.remove(last.name)
    library.collect()
    assert list(library.store.list()) == []
    assert list(library.store.chains()) == []


def test_longer_chain_begins_with_what_a_part_of_it_was_merged_to(
    library: ImageLibrary, layers: Layers
) -> None:
    chain = chained(library, layers)
    assert library.shorten(chain[4], MOST) == 4
    merged = library.restore(chain[4].name)[1][-1]
    assert library.shorten(chain[-1], 3) == 3  # few enough: one for four, and two more
    assert len(library.restore(chain[-1].name)[1]) == 4
    assert library.shorten(chain[-1], 3) == 0
    assert library.shorten(chain[-1], 2) == 3  # that, and two more
    short = library.restore(chain[-1].name)[1]
    assert len(short) == 2
    assert merged.digest not in {one.digest for one in short}
    assert [one.digest for one in library.restore(chain[4].name)[1]][-1] == merged.digest


def test_name_that_moved_on_is_left_alone(library: ImageLibrary, layers: Layers) -> None:
    chain = chained(library, layers)
    layers.write("more", b"more")
    below = tuple(one.alone() for one in chain)
    parents = tuple(one.digest for one in chain)
    library.commit(layers.view, chain[-1].name, below=below, parents=parents)
    assert library.shorten(chain[-1], MOST) == 0
    assert list(library.store.chains()) == []


def test_two_nodes_make_the_same_chain_short_at_once(
    library: ImageLibrary, layers: Layers, store: DirectoryStore
) -> None:
    last = chained(library, layers)[-1]
    before = shown(library, library.restore(last.name)[1])
    other = again(store, library)
    failed: list[Exception] = []

    def work(one: ImageLibrary) -> None:
        try:
            one.shorten(last, MOST, apart=Apart())
        except Exception as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    threads = [threading.Thread(target=work, args=(one,)) for one in (library, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    (kept,) = library.store.chains()
    assert len(kept.layers) == 2
    assert shown(library, library.restore(last.name)[1]) == before
    library.collect()
    assert shown(library, other.restore(last.name)[1]) == before


class Killed(BaseException):
    """The process is gone."""


def test_killed_at_any_step_the_chain_is_whole_and_is_made_short_by_the_next(
    library: ImageLibrary, layers: Layers, store: DirectoryStore, tmp_path: Path
) -> None:
    last = chained(library, layers, 3)[-1]
    before = shown(library, library.restore(last.name)[1])
    steps = 0
    while True:
        steps += 1
        victim = again(store, library)
        dying = Dying(victim.store.objects, steps)
        victim.store._objects = dying
        victim.store.leases._objects = dying
        try:
            victim.shorten(last, 1)
        except Killed:
            pass
        else:
            break
        for key, _ in list(store.objects.list(keys.LEASES)):  # as if they had run out
            store.objects.delete(key)
        layers_now = again(store, library).restore(last.name)[1]
        assert shown(library, layers_now) == before
        assert len(layers_now) == 4  # the record is the last step
        library.collect()
        assert shown(library, again(store, library).restore(last.name)[1]) == before
    assert steps > 20
    assert len(again(store, library).restore(last.name)[1]) == 2


class Dying:
    """Objects whose process is killed before one of its calls."""

    def __init__(self, objects, left: int) -> None:
        self._objects, self._left = objects, left

    def __getattr__(self, name: str):
        found = getattr(self._objects, name)
        if not callable(found) or name == "local_path":
            return found

        def call(*args, **kwargs):
            self._left -= 1
            if self._left <= 0:
                raise Killed
            return found(*args, **kwargs)

        return call


def test_record_that_is_damaged_or_leads_nowhere_is_made_again(
    library: ImageLibrary, layers: Layers, store: DirectoryStore
) -> None:
    last = chained(library, layers)[-1]
    assert library.shorten(last, MOST) == COMMITS
    (chain,) = store.chains()
    merged = chain.layers[-1]
    store.delete(merged.digest)
    assert len(library.restore(last.name)[1]) == COMMITS + 1
    assert library.shorten(last, MOST) == COMMITS
    assert len(library.restore(last.name)[1]) == 2
    store.objects.put_bytes(keys.chain(chain.id), b"{", replace=True)
    assert len(library.restore(last.name)[1]) == COMMITS + 1
    with pytest.raises(LayerDamaged):
        library.collect()
    assert library.shorten(last, MOST) == COMMITS
    # A record of another chain says nothing of this one.
    store.put_chain(Chain(chain.id, (merged.digest,), chain.layers))
    assert len(library.restore(last.name)[1]) == COMMITS + 1


def test_commit_that_lies_on_what_is_gone_is_left_alone(
    library: ImageLibrary, layers: Layers, store: DirectoryStore
) -> None:
    chain = chained(library, layers)
    store.delete(chain[2].digest)
    assert library.shorten(chain[-1], MOST) == 0
    with pytest.raises(SkerryError):
        library.restore(chain[-1].name)
    older = msgspec.structs.replace(chain[1], below=())
    assert library.shorten(older, 1) == 0


def test_long_chain_that_was_never_merged_is_merged_at_once(
    library: ImageLibrary, layers: Layers
) -> None:
    last = chained(library, layers, 64)[-1]
    before = shown(library, library.restore(last.name)[1])
    assert library.shorten(last, 4, apart=Apart()) > 60
    short = library.restore(last.name)[1]
    assert len(short) <= 5
    assert shown(library, short) == before


def test_restore_takes_what_a_lower_part_was_merged_to_while_merging_lags(
    library: ImageLibrary, layers: Layers, store: DirectoryStore
) -> None:
    chain = chained(library, layers, 8)
    assert library.shorten(chain[5], 1) == 5
    merged = library.restore(chain[5].name)[1][-1]
    assert [one.creator for one in library.restore(chain[8].name)[1]] == [
        "import", "flatten", "commit", "commit", "commit",
    ]  # fmt: skip
    library.remove(chain[5].name)  # from here on nothing keeps that part
    Collector(store)._condemn({merged.digest})
    restored = again(store, library).restore(chain[8].name)[1]
    assert [one.digest for one in restored] == [one.digest for one in chain]
