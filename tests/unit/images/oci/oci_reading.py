"""What tests of reading images share: two layers, and ways to read an image whole."""

from __future__ import annotations

import os
import tarfile

from images_archives import make_tar, member

from oci_images import Layout
from skerry.images.archives.tarimport import ImportLimits
from skerry.images.oci.bundle import Bundle, DirectoryBundle
from skerry.images.oci.choose import Image, choose, parse_platform
from skerry.images.oci.layers import LayerReader
from skerry.images.scratch import Spool
from skerry.images.tree.entry import Tree
from skerry.images.tree.merge import Collapse
from skerry.images.tree.notes import Notes

AMD = parse_platform("linux/amd64")

ONE = make_tar(member("etc", type=tarfile.DIRTYPE, mode=0o755), member("etc/one", b"1", uid=5))

TWO = make_tar(member("etc/two", b"22"), member("etc/.wh.one"))


def bundle_of(layout: Layout) -> DirectoryBundle:
    return DirectoryBundle(str(layout.path))


def unpack(bundle: Bundle, image: Image, spool: Spool, **limits: int) -> Collapse:
    into = Collapse()
    LayerReader(bundle, spool, Notes(), ImportLimits(**limits)).read(image, into, lambda _: None)
    return into


def contents(spool: Spool, tree: Tree) -> dict[str, bytes]:
    return {
        os.fsdecode(entry.path): b"".join(spool.read(entry.node.content))
        for entry in tree.entries(spool)
        if entry.node.content is not None
    }


def read(layout: Layout, spool: Spool, tag: str | None = None) -> dict[str, bytes]:
    bundle = bundle_of(layout)
    [tree] = unpack(bundle, choose(bundle, tag, AMD), spool).trees
    return contents(spool, tree)
