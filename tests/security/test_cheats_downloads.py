"""Source archives that want to run code on this machine, and the user who fetches them."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from skerry.worker.downloads import Downloads, Wanted, _throwaway

FILE = "evil-1.tar.gz"
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = """
import os

def _mark():
    open("MARK", "w").write(str(os.getuid()))
    raise SystemExit(1)

prepare_metadata_for_build_wheel = get_requires_for_build_wheel = lambda *more, **named: _mark()
"""


@pytest.fixture
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place for pip with one source archive, whose build back end runs code."""
    # Below a directory that other users may enter, unlike pytest's own.
    place = Path(f"/var/tmp/skerry-index-{os.urandom(6).hex()}")
    place.mkdir()
    place.chmod(0o777)  # whoever runs the code could leave its mark
    with tarfile.open(place / FILE, "w:gz") as tar:
        for name, text in (
            ("pyproject.toml", PYPROJECT),
            ("backend.py", BACKEND.replace("MARK", str(place / "mark"))),
            ("PKG-INFO", "Metadata-Version: 2.1\nName: evil\nVersion: 1\n"),
        ):
            info = tarfile.TarInfo(f"evil-1/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    yield place
    for path in place.iterdir():
        path.unlink()
    place.rmdir()


def settings(index: Path) -> dict[str, str]:
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}


async def test_fetching_a_source_archive_runs_nothing_of_it(index: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256((index / FILE).read_bytes()).hexdigest()
    downloads = Downloads(tmp_path / "cache", settings(index))
    wanted = Wanted(FILE, digest, "evil")
    await downloads.fetch([wanted])
    assert downloads.read(wanted) == (index / FILE).read_bytes()
    assert not (index / "mark").exists()


def test_pip_download_itself_would_run_it(index: Path, tmp_path: Path) -> None:
    # Positive control: the archive is one whose code `pip download` does run.
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
         "-d", str(tmp_path), "evil==1"],
        env=os.environ | settings(index),
        capture_output=True,
        check=False,
    )  # fmt: skip
    assert (index / "mark").exists()


@pytest.mark.root
async def test_the_fetching_user_owns_nothing_and_can_become_nobody(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: other users fetch as themselves")
    async with _throwaway({}) as user:
        asked = "id -u; id -G; grep -E '^(NoNewPrivs|CapEff|CapBnd|CapInh)' /proc/self/status; ulimit -n"
        code, said = await user._call(["/bin/sh", "-c", asked])
        assert code == 0
        lines = said.split("\n")
        assert int(lines[0]) >= 61_184
        assert lines[1] == lines[0]
        values = dict(line.split(":\t") for line in lines[2:6])
        assert values["NoNewPrivs"] == "1"
        assert {int(values[name], 16) for name in ("CapEff", "CapBnd", "CapInh")} == {0}
        assert lines[6] == "256"
        code, _ = await user._call(["/bin/sh", "-c", f"touch {tmp_path}/x /root/x /var/cache/x"])
        assert code != 0
        home = user.target.parent
    assert not home.exists()
