"""What tests of images and registries share: layers, and what became of an image."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

from skerry.images.archives.tarimport import ImportLimits
from skerry.images.library import ImageLibrary
from skerry.images.oci.skopeo import Access
from skerry.images.scratch import Spool
from skerry.images.store.opened import read_layer

OPEN = Access(tls_verify=False)

BIG = random.Random(3).randbytes(3 << 20)


def tar(*members: tuple[str, bytes | None]) -> bytes:
    """A plain tar; None makes a directory."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data or b"")
            if data is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info, io.BytesIO(data or b""))
    return out.getvalue()


SHARED = tar(("etc", None), ("etc/shared", BIG))

ONE = tar(("one", b"1"), ("etc/.wh.gone", b""))

TWO = tar(("two", b"2"))


def names(library: ImageLibrary, name: str, place: Path) -> set[bytes]:
    spool = Spool(str(place))
    found: set[bytes] = set()
    for layer in library.inspect(name).layers():
        tree = read_layer(library.store, layer, str(place), spool, ImportLimits())
        found |= {entry.path for entry in tree.entries(None)}
    spool.close()
    return found


def cached(tmp_path: Path) -> Path:
    return tmp_path / "cache/blobs/sha256"
