"""Zips as SWE-ReX's client sends them, made into tars as Skerry takes them; read with suspicion."""

from __future__ import annotations

import stat
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import PurePosixPath
from typing import BinaryIO

from skerry.compat.swerex.wire import of_python

MEMBERS_MAX = 200_000
DIRECTORY_MAX = 32 << 20  # of a zip's list of members, which zipfile reads and keeps whole
_CHUNK = 1 << 20


class _Measured:
    """A file of which zipfile reads no more at once than a list of members may have."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > DIRECTORY_MAX:
            raise zipfile.BadZipFile("its list of members is too long")
        return self._file.read(size)


def tar_of_zip(file: BinaryIO, limit: int) -> BinaryIO:
    """Returns a tar, in a file of its own, of what a zip holds: directories and files, with their modes.

    Raises ValueError, as the client knows it, for one that is damaged, encrypted, leaves its directory,
    or holds more than `limit` bytes, whatever it says of itself.
    """
    kept = tempfile.TemporaryFile(prefix="skerry-upload-")  # noqa: SIM115 - the caller closes it
    try:
        with (
            zipfile.ZipFile(_Measured(file)) as archive,  # type: ignore[arg-type]
            tarfile.open(fileobj=kept, mode="w") as tar,
        ):
            _copy(archive, tar, limit)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        kept.close()
        raise of_python("ValueError", f"no sound zip: {error}") from None
    except BaseException:
        kept.close()
        raise
    kept.seek(0)
    return kept


def _copy(archive: zipfile.ZipFile, tar: tarfile.TarFile, limit: int) -> None:
    members = archive.infolist()
    if len(members) > MEMBERS_MAX:
        raise of_python("ValueError", f"a zip of more than {MEMBERS_MAX} members")
    left = limit
    for member in members:
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in member.filename:
            raise of_python("ValueError", f"{member.filename[:200]!r} leaves the archive")
        info = tarfile.TarInfo(path.as_posix())
        mode = stat.S_IMODE(member.external_attr >> 16) & 0o777
        if member.is_dir():
            info.type, info.mode = tarfile.DIRTYPE, mode | 0o700
            tar.addfile(info)
            continue
        info.mode = mode or 0o644
        info.size = member.file_size
        if info.size > left:
            raise of_python("ValueError", f"a zip that holds more than {limit} bytes")
        left -= info.size
        # zipfile reads no further than the size that stands in the directory, and checks the sum.
        with archive.open(member) as content:
            tar.addfile(info, content)
