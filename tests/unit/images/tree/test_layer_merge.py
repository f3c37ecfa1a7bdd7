"""Merging layers, judged by a plain model of what overlayfs shows."""

from __future__ import annotations

import io
import random
import tarfile

import pytest
from images_archives import make_tar, member

from skerry.errors import ImageBroken
from skerry.images.archives.tarimport import ImportLimits, read_tar
from skerry.images.scratch import Spool
from skerry.images.tree.entry import OPAQUE, ORIGIN, Node, Tree, make_directory, make_whiteout
from skerry.images.tree.merge import Collapse, find_merged, merge, strip
from skerry.images.tree.notes import Notes
from skerry.spec.files import FileType

NAMES = (b"a", b"b", b"c")
Shown = dict[bytes, tuple[str, int]]


def file(mark: int) -> Node:
    return Node(FileType.FILE, mark)


def shown(layers: list[Tree]) -> Shown:
    """What overlayfs shows of layers, lowest first: a model that merges listings, not trees."""
    found: Shown = {}

    def look(path: bytes, present: list[Node]) -> None:  # directories of one path, topmost first
        found[path] = ("directory", present[0].mode)
        for name in {name for node in present for name in node.children or {}}:
            below: list[Node] = []
            for node in present:
                child = (node.children or {}).get(name)
                if child is None:
                    continue
                if child.children is None:
                    if not below and child.type is not FileType.CHARACTER:
                        found[path + b"/" + name] = (str(child.type), child.mode)
                    break
                below.append(child)
                if OPAQUE in child.xattrs:
                    break
            if below:
                look(path + b"/" + name, below)

    look(b"", [tree.root for tree in reversed(layers)])
    return found


def random_tree(rng: random.Random, marks: list[int]) -> Tree:
    tree = Tree()
    directories = [b""]
    for _ in range(rng.randrange(1, 12)):
        parent = rng.choice(directories)
        name = rng.choice(NAMES)
        path = parent + b"/" + name if parent else name
        there = tree.find(path)
        if there is not None or path.count(b"/") > 3:
            continue
        kind = rng.randrange(4)
        marks[0] += 1
        if kind == 0:
            tree.put(path, make_whiteout())
        elif kind == 1:
            tree.put(path, file(marks[0]))
        else:
            node = make_directory(marks[0])
            if kind == 3:
                node.xattrs[OPAQUE] = b"y"
            tree.put(path, node)
            directories.append(path)
    return tree


def clone(tree: Tree) -> Tree:
    made = Tree()
    for entry in tree.entries(None):
        node = entry.node
        copy = Node(node.type, node.mode, xattrs=dict(node.xattrs))
        copy.children = {} if node.children is not None else None
        if entry.path:
            made.put(entry.path, copy)
        else:
            made.root = copy
    return made


@pytest.mark.parametrize("seed", range(300))
def test_merged_layers_show_what_the_layers_showed_on_any_lower(seed: int) -> None:
    rng, marks = random.Random(seed), [0]
    below, *layers = [random_tree(rng, marks) for _ in range(rng.randrange(3, 6))]
    expected = shown([below, *layers])
    alone = shown(layers)
    merged = clone(layers[0])
    for layer in layers[1:]:
        merge(merged, clone(layer))
    assert shown([below, merged]) == expected
    for path in expected:
        node = find_merged([merged, below], path.lstrip(b"/"))
        assert node is not None
        assert (node.mode if path else expected[b""][1]) == expected[path][1]
    strip(merged)
    assert shown([merged]) == alone
    assert not any(
        entry.node.type is FileType.CHARACTER or {OPAQUE, ORIGIN} & entry.node.xattrs.keys()
        for entry in merged.entries(None)
    )


def read(spool: Spool, *members, collapse: Collapse | None = None) -> Tree:
    below = collapse.find if collapse else lambda _path: None
    archive = io.BytesIO(make_tar(*members))
    return read_tar(archive, spool, Notes(), ImportLimits(), below=below)


@pytest.mark.parametrize("threshold", [0, 1 << 30])
def test_directory_that_an_archive_only_passes_through_keeps_its_mode(
    spool: Spool, threshold: int
) -> None:
    collapse = Collapse(threshold)
    collapse.add(read(spool, member("tmp", type=tarfile.DIRTYPE, mode=0o1777), member("x", b"1")))
    collapse.add(read(spool, member("tmp/y", b"2")))
    assert len(collapse.trees) == (2 if threshold == 0 else 1)
    assert collapse.trees[-1].find(b"tmp").mode == 0o1777
    collapse.add(read(spool, member("tmp", type=tarfile.DIRTYPE, mode=0o700), member("z", b"3")))
    assert collapse.find(b"tmp").mode == 0o700


def test_opaque_directory_that_an_archive_passes_through_stays_opaque(spool: Spool) -> None:
    collapse = Collapse(0)
    collapse.add(read(spool, member("d", type=tarfile.DIRTYPE, mode=0o711), member("d/old", b"1")))
    collapse.add(read(spool, member("d/.wh..wh..opq"), member("d/new", b"2")))
    made = collapse.trees[-1].find(b"d")
    assert made.mode == 0o711
    assert made.xattrs == {OPAQUE: b"y"}
    assert collapse.find(b"d/old") is None
    assert collapse.find(b"d/new") is not None


@pytest.mark.parametrize("threshold", [0, 1 << 30])
def test_hard_link_to_a_file_of_a_lower_layer_is_one_file(spool: Spool, threshold: int) -> None:
    collapse = Collapse(threshold)
    collapse.add(read(spool, member("d/first", b"content", mode=0o640)))
    link = member("other", type=tarfile.LNKTYPE, linkname="d/first")
    collapse.add(read(spool, link, collapse=collapse))
    top = collapse.trees[-1]
    assert top.find(b"other") is top.find(b"d/first")
    assert [entry.hard_link for entry in top.entries(spool)][-1] == b"d/first"
    assert b"".join(spool.read(top.find(b"other").content)) == b"content"


def test_hard_link_to_what_a_lower_layer_lost_is_refused(spool: Spool) -> None:
    collapse = Collapse()
    collapse.add(read(spool, member("first", b"content")))
    collapse.add(read(spool, member(".wh.first")))
    link = member("other", type=tarfile.LNKTYPE, linkname="first")
    with pytest.raises(ImageBroken, match="no earlier file"):
        read(spool, link, collapse=collapse)


def test_layers_are_merged_up_to_the_threshold_and_large_ones_stay_alone(spool: Spool) -> None:
    collapse = Collapse(threshold=100)
    for at, size in enumerate((60, 40, 1, 500, 99, 2)):
        collapse.add(read(spool, member(f"f{at}", b"x" * size)))
    sizes = [tree.content_bytes() for tree in collapse.trees]
    assert sizes == [100, 1, 500, 99, 2]


def test_very_deep_trees_are_merged_without_recursion(spool: Spool) -> None:
    deep = b"/".join([b"d"] * 5000)
    trees = []
    for mark in (1, 2):
        tree = Tree()
        tree.put(deep + b"/f%d" % mark, file(mark))
        trees.append(tree)
    merge(*trees)
    assert {trees[0].find(deep + b"/f%d" % mark).mode for mark in (1, 2)} == {1, 2}
    strip(trees[0])
