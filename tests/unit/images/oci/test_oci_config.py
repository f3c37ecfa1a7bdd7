"""The config of an image: what is kept of it, and what of it is impossible."""

from __future__ import annotations

import io
import tarfile

import msgspec
import pytest
from images_archives import make_tar, member
from oci_reading import AMD, ONE, bundle_of

from oci_images import Json, Layout, config_of
from skerry.errors import Fault, SkerryError
from skerry.images.archives.tarimport import ImportLimits, read_tar
from skerry.images.oci.choose import choose
from skerry.images.oci.config import read_config, write_config
from skerry.images.oci.model import Config
from skerry.images.scratch import Spool
from skerry.images.tree.entry import Tree
from skerry.images.tree.merge import Collapse
from skerry.images.tree.notes import Notes
from skerry.spec.files import FileType
from skerry.spec.layers import ImageConfig


@pytest.mark.parametrize(
    "change",
    [
        {"os": 5}, {"os": None}, {"rootfs": None}, {"rootfs": {"type": "x", "diff_ids": None}},
        {"config": {"Env": [1]}}, {"config": {"Env": {"A": "b"}}}, {"config": []},
        {"config": {"Labels": {"a": None}}}, {"architecture": "amd64" * 1000},
    ],
    ids=lambda change: str(change)[:30],
)  # fmt: skip
def test_config_of_another_form_is_refused(layout: Layout, change: Json) -> None:
    layout.index(layout.image(ONE, config=config_of([ONE]) | change))
    with pytest.raises(SkerryError) as error:
        choose(bundle_of(layout), None, AMD)
    assert error.value.fault is not Fault.BUG
    assert len(error.value.message) < 1000


def configured(spool: Spool, layers: list[bytes], notes: Notes, **run) -> tuple[ImageConfig, Tree]:
    into = Collapse()

    for layer in layers:
        into.add(read_tar(io.BytesIO(layer), spool, notes, ImportLimits(), below=into.find))

    made = read_config(msgspec.convert(config_of(layers, **run), Config), into, spool, notes)
    return made, into.trees[-1]


def test_config_is_kept_and_its_directory_made(spool: Spool) -> None:
    base = make_tar(
        member("etc/passwd", b"root:x:0:0::/:/bin/sh\napp:x:1001:7::/:/bin/sh\n"),
        member("etc/group", b"web:x:33:\n"),
        member("srv", type=tarfile.DIRTYPE, mode=0o711),
    )
    config, tree = configured(
        spool, [base], Notes(),
        Env=["PATH=/opt/bin:/bin", "EMPTY=", "A=b=c"], User="app:web", WorkingDir="/srv/app/",
        Entrypoint=["/tini", "--"], Cmd=None, Labels={"a": "b"},
    )  # fmt: skip
    assert config == ImageConfig(
        env={"PATH": "/opt/bin:/bin", "EMPTY": "", "A": "b=c"},
        user="1001:33",
        workdir="/srv/app",
        entrypoint=("/tini", "--"),
        labels={"a": "b"},
    )
    assert tree.find(b"srv/app").mode == 0o755
    assert tree.find(b"srv").mode == 0o711
    written = write_config(config, AMD, [])
    assert written.config.env == ["A=b=c", "EMPTY=", "PATH=/opt/bin:/bin"]
    assert written.config.working_dir == "/srv/app"


@pytest.mark.parametrize(
    ("user", "kept"),
    [("app", "app"), ("1000", "1000"), ("1000:50", "1000:50"), ("ghost:web", "ghost"), ("", None),
     ("app:", "app"), (":web", None), ("a\0b", None), ("u" * 300, None)],
)  # fmt: skip
def test_user_of_the_config_becomes_one_that_commands_take(
    spool: Spool, user: str, kept: str | None
) -> None:
    config, _ = configured(spool, [ONE], Notes(), User=user)
    assert config.user == kept


def test_impossible_config_is_left_out_with_a_note(spool: Spool) -> None:
    notes = Notes()
    config, _ = configured(
        spool, [ONE], notes,
        Env=["=x", "OK=1", "NUL=a\0b", "LONG=" + "x" * (1 << 20)],
        WorkingDir="/" + "x" * 300, Cmd=["a\0"], Labels={"k": "v" * 100_000},
    )  # fmt: skip
    assert config == ImageConfig(env={"OK": "1"})
    assert len(notes.lines()) == 4


def test_working_directory_behind_a_link_is_left_alone(spool: Spool) -> None:
    base = make_tar(member("srv", type=tarfile.SYMTYPE, linkname="/var"))
    config, tree = configured(spool, [base], Notes(), WorkingDir="/srv/app")
    assert config.workdir == "/srv/app"
    assert tree.find(b"srv").type is FileType.SYMLINK
