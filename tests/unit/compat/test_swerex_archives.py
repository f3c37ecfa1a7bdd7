"""Zips that clients of the SWE-ReX server upload: what one claims and holds is bounded on this side."""

from __future__ import annotations

import io
import tarfile
import zipfile

import pytest

from skerry.compat.swerex import archives
from skerry.compat.swerex.wire import Thrown


def zipped(*members: tuple[str, bytes]) -> io.BytesIO:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members:
            made.writestr(name, content)
    return raw


def test_a_list_of_members_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = zipped(*((f"f{number}", b"") for number in range(300)))
    with archives.tar_of_zip(raw, 1 << 20) as made, tarfile.open(fileobj=made) as tar:
        assert len(tar.getnames()) == 300
    monkeypatch.setattr(archives, "DIRECTORY_MAX", 300 * 46)
    with pytest.raises(Thrown, match="list of members is too long"):
        archives.tar_of_zip(raw, 1 << 20)


@pytest.mark.parametrize("cut", [0, 1, 30, 60, -1, -10])
def test_zips_that_break_off_are_refused(cut: int) -> None:
    with pytest.raises(Thrown, match="no sound zip"):
        archives.tar_of_zip(io.BytesIO(zipped(("x", b"y" * 100)).getvalue()[:cut]), 1 << 20)
