"""Task files: strict reading, the examples, the skeleton, and archives."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_world import CORE, FakeClient, environment, sdist, task_text

from skerry.errors import Conflict, InvalidRequest, NotFound
from skerry.spec.task import parse_task
from skerry.worker.archives import source_files, top_level_modules, unified_diff
from skerry.worker.scaffold import new_task
from skerry.worker.tasks import load_tasks

EXAMPLES = Path(__file__).parents[3] / "examples" / "tasks"


def test_the_examples_are_at_least_eight_sound_tasks() -> None:
    tasks = load_tasks([EXAMPLES])
    assert len(tasks) >= 8
    for task in tasks:
        assert (EXAMPLES / task.id / "task.toml").is_file()
        assert len(task.bug) > 80


def test_a_task_a_directory_and_a_file_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "task.toml").write_text(task_text(tmp_path, "a-1"))
    for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "task.toml"):
        assert [one.id for one in load_tasks([path])] == ["a-1"]
    with pytest.raises(InvalidRequest, match="twice"):
        load_tasks([tmp_path, tmp_path / "a"])
    with pytest.raises(NotFound):
        load_tasks([tmp_path / "none"])


BROKEN = {
    "unknown key": ('title = "A demo"', 'title = "A demo"\nsurprise = 1', "surprise"),
    "unknown key in tests": ("pass_to_pass = 1", "pass_to_pass = 1\nmore = 2", "more"),
    "missing key": ('title = "A demo"', "", "title"),
    "wrong type": ("pass_to_pass = 1", 'pass_to_pass = "many"', "pass_to_pass"),
    "no TOML": ('title = "A demo"', "title = A demo", "no valid TOML"),
    "id": ('id = "demo-1"', 'id = "../x"', "id"),
    "climbing path": (f'source_files = ["{CORE}"]', 'source_files = ["../x"]', "source_files"),
    "absolute path": ('test_paths = ["tests"]', 'test_paths = ["/tests"]', "test_paths"),
    "unprotected tests": (
        'protected_paths = ["tests"',
        'protected_paths = ["other"',
        "not protected",
    ),
    "protected source": (
        'protected_paths = ["tests"',
        'protected_paths = ["tests", "src"',
        "nobody",
    ),
    "other runner": ('argv = ["python"', 'argv = ["sh"', "pytest"),
    "no failing test": ("fail_to_pass = [", "fail_to_pass = []\n_ = [", "_"),
    "bad hash": (
        'file = "demo-1.tar.gz", sha256 = "',
        'file = "demo-1.tar.gz", sha256 = "zz',
        "sha256",
    ),
    "file with a slash": ('file = "demo-1.tar.gz"', 'file = "a/demo-1.tar.gz"', "file name"),
    "NaN": ("pass_to_pass = 1", "pass_to_pass = 1\ntimeout_s = nan", "timeout_s"),
    "negative": ("pass_to_pass = 1", "pass_to_pass = -1", "negative"),
    "interpreter": ("pass_to_pass = 1", 'pass_to_pass = 1\ninterpreter = "python"', "interpreter"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_task_that_is_not_well_formed_says_where(tmp_path: Path, name: str) -> None:
    before, after, word = BROKEN[name]
    text = task_text(tmp_path)
    assert before in text
    with pytest.raises(InvalidRequest, match=word) as caught:
        parse_task(text.replace(before, after), "here/task.toml")
    assert caught.value.message.startswith("here/task.toml: ")


def test_a_skeleton_is_complete_and_never_overwritten(tmp_path: Path) -> None:
    path = new_task(tmp_path / "my-task")
    parse_task(path.read_text(), "skeleton")
    with pytest.raises(Conflict):
        new_task(tmp_path / "my-task")
    with pytest.raises(InvalidRequest):
        new_task(tmp_path / "No Name")


async def test_layers_are_pinned_found_again_and_made_anew_for_another_base(tmp_path: Path) -> None:
    client = FakeClient()
    first = await environment(client, tmp_path)
    assert first.layers[0].startswith("workspace/demo-1:")
    assert all("@sha256:" in name for name in (*first.verify_layers, first.image))
    # Lowest first: the hidden tests lie right above the workspace.
    assert first.verify_layers[1] == first.hidden
    assert await environment(client, tmp_path) == first
    base = client.images.known["base/debian:12"]
    client.images.known["base/debian:12"] = msgspec.structs.replace(
        base, digest="sha256:" + "f" * 64
    )
    other = await environment(client, tmp_path)
    assert not set(other.layers) & set(first.layers)


async def test_the_gold_patch_is_what_the_releases_differ_in(tmp_path: Path) -> None:
    found = await environment(FakeClient(), tmp_path)
    assert found.patch.decode().splitlines() == [
        f"--- a/{CORE}", f"+++ b/{CORE}", "@@ -1 +1 @@", "-VALUE = 1", "+VALUE = 2",
    ]  # fmt: skip
    assert set(found.rules.pristine) == {"/testbed/tests/test_core.py"}


TEXTS = st.lists(st.sampled_from([b"a", b"b", b"c\r", b"", b"d d", b"\xff"]), max_size=12)


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program patch")
@given(TEXTS, TEXTS, st.booleans(), st.booleans())
def test_patch_makes_the_second_of_the_first(
    before: list[bytes], after: list[bytes], end_before: bool, end_after: bool
) -> None:
    import tempfile

    old = b"\n".join(before) + (b"\n" if end_before and before else b"")
    new = b"\n".join(after) + (b"\n" if end_after and after else b"")
    diff = unified_diff(old, new, "a/f", "b/f")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "f")
        path.write_bytes(old)
        if diff:
            done = subprocess.run(
                ["patch", "-p1", "--binary"],
                cwd=folder,
                input=diff,
                capture_output=True,
                check=False,
            )
            assert done.returncode == 0, (diff, done.stdout)
        assert (path.read_bytes() if path.exists() else b"") == new


def test_links_devices_and_climbing_names_in_an_archive_are_not_read() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, kind in (("p/link", tarfile.SYMTYPE), ("p/dev", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    assert source_files(out.getvalue(), "x") == {}
    for name in ("../x", "/etc/x"):
        with pytest.raises(InvalidRequest, match="leaves"):
            source_files(raw(name), "x")


def raw(name: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name))
    return out.getvalue()


@given(st.binary(max_size=300))
def test_any_bytes_are_an_archive_or_refused(data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        source_files(data, "x")


def test_a_truncated_archive_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        source_files(sdist("a", {"x": bytes(5000)})[:-20], "x")


def test_a_wheel_says_what_it_makes_importable() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as wheel:
        for name in ("six.py", "dateutil/__init__.py", "a-1.dist-info/RECORD", "b.cpython.so"):
            wheel.writestr(name, "")
    assert top_level_modules([("w", out.getvalue())]) == {"six", "dateutil", "b"}
    with pytest.raises(InvalidRequest):
        top_level_modules([("w", b"no zip")])
