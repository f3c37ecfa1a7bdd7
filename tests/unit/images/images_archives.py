"""Archives made by hand, for the tests beside it."""

from __future__ import annotations

import io
import tarfile

Member = tuple[str, dict[str, object], bytes]


def member(name: str, data: bytes = b"", **fields: object) -> Member:
    """One member for `make_tar`; fields are those of tarfile.TarInfo."""
    return name, fields, data


def make_tar(*members: Member, form: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive with just these members, however odd they are."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, fields, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in fields.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
