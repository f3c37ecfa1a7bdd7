"""Images of other systems in real sandboxes: what they set holds, what they delete is gone."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import registry as registries
from oci_images import Layout, docker_archive
from registry import Registry
from skerry import ImageSources
from skerry.errors import NotFound, RegistryDenied

pytestmark = pytest.mark.root

TOOL = b"#!/bin/sh\necho tool of $(id -u) in $(pwd) at $LEVEL\n"


def tar(*members: tuple[str, bytes, int]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data, mode in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


LOWER = tar(
    ("opt/tool/bin/tool", TOOL, 0o755),
    ("opt/tool/old", b"old", 0o644),
    ("opt/tool/su", b"x", 0o4755),
    ("opt/tool/n\udcff", b"odd", 0o644),
)
UPPER = tar(
    ("opt/tool/.wh.old", b"", 0o644),
    ("opt/tool/new", b"new", 0o644),
    ("etc/.wh.motd", b"", 0o644),
    ("var/lib/dpkg/.wh..wh..opq", b"", 0o644),
)
RUN = {
    "Env": ["PATH=/opt/tool/bin:/usr/bin:/bin", "LEVEL=image"],
    "WorkingDir": "/opt/tool",
    "User": "1000:1000",
}


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Registry]:
    if reason := registries.missing():
        pytest.skip(reason)
    with registries.running(tmp_path / "registry", auth=True) as made:
        (tmp_path / "auth.json").write_bytes(made.auth_file())
        yield made


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "layout")
    made.index(made.image(LOWER, UPPER, tag="1", pack="+zstd", **RUN))
    return made


async def said(sandbox, command: str, **options) -> str:
    result = await sandbox.run(command, **options)
    assert result.ok, result
    return result.text.strip()


async def check_inside(sandbox) -> None:
    assert await said(sandbox, "tool") == "tool of 1000 in /opt/tool at image"
    assert await said(sandbox, "tool", env={"LEVEL": "call"}) == "tool of 1000 in /opt/tool at call"
    assert await said(sandbox, "id -u; pwd", user="root", cwd="/") == "0\n/"
    names = await said(sandbox, "ls -A /opt/tool | LC_ALL=C sort | cat -v")
    assert names.split() == ["bin", "new", "nM-^?", "su"]
    rest = "stat -c %a /opt/tool/su; test ! -e /etc/motd; ls /var/lib/dpkg"
    assert await said(sandbox, rest) == "4755"
    async with await sandbox.session() as session:
        assert (await session.run("tool")).text.strip() == "tool of 1000 in /opt/tool at image"
    assert await sandbox.files.read("new") == b"new"  # in the image's working directory


async def test_image_from_each_source_runs_as_it_says(
    node_client, closed: Registry, layout: Layout, tmp_path: Path
) -> None:
    closed.push(layout.path, "1", "team/tool:1", closed.auth_file())
    (tmp_path / "saved.tar").write_bytes(docker_archive(LOWER, UPPER, **RUN))
    (tmp_path / "layout.tar").write_bytes(layout.tar())
    reference = f"docker://{closed.host}/team/tool:1"
    images = node_client.images
    with pytest.raises(RegistryDenied):
        await images.import_oci("toolkit/oci", reference, tls_verify=False)
    with pytest.raises(NotFound):
        await images.inspect("toolkit/oci")
    lines: list[str] = []
    made = await images.import_oci(
        "toolkit/oci", reference, authfile=tmp_path / "auth.json", tls_verify=False,
        on_log=lines.append,
    )  # fmt: skip
    assert any("layer 2 of 2" in line for line in lines)
    others = [
        await images.import_oci("toolkit/oci2", f"oci:{layout.path}:1"),
        await images.import_oci("toolkit/oci3", f"oci-archive:{tmp_path}/layout.tar"),
        await images.import_oci("toolkit/oci4", f"docker-archive:{tmp_path}/saved.tar:app:1"),
    ]
    assert {one.digest for one in others} == {made.digest}
    try:
        async with await node_client.sandboxes.create(layers=["toolkit/oci"]) as sandbox:
            await check_inside(sandbox)
            assert (await sandbox.info()).spec.user is None
        async with await node_client.sandboxes.create(
            layers=["toolkit/oci"], user="root", workdir="/srv", env={"LEVEL": "spec"}
        ) as sandbox:
            assert await said(sandbox, "tool") == "tool of 0 in /srv at spec"
    finally:
        for name in ("oci", "oci2", "oci3", "oci4"):
            await images.remove(f"toolkit/{name}")


async def test_debian_goes_to_a_registry_and_comes_back_the_same(
    node_client, closed: Registry, layout: Layout, tmp_path: Path
) -> None:
    """Ten thousand real files with owners, setuid programs and file capabilities."""
    images, auth = node_client.images, tmp_path / "auth.json"
    await images.import_oci("toolkit/oci", f"oci:{layout.path}")
    target = f"docker://{closed.host}/debian:12"
    with pytest.raises(RegistryDenied):
        await images.push("debian:12", target, tls_verify=False)
    digest = await images.push("debian:12", target, authfile=auth, tls_verify=False)
    assert closed.blob(digest).exists()
    again = await images.import_oci("base/again:1", target, authfile=auth, tls_verify=False)
    try:
        assert again.digest == (await images.inspect("debian:12")).digest
        parts = await images.collapse(
            ["base/again:1", "toolkit/oci"], "base/parts:1", threshold="64MiB"
        )
        assert [part.digest for part in parts.parts] == [again.digest]
        async with await node_client.sandboxes.create(image="parts:1") as sandbox:
            await check_inside(sandbox)
            info = await sandbox.info()
            assert info.digests[-1] == parts.digest
            layer = await sandbox.commit("workspace/on-parts")
        await images.remove("workspace/on-parts")
        assert layer.files >= 1
    finally:
        for name in ("base/again:1", "base/parts:1", "toolkit/oci"):
            try:
                await images.remove(name)
            except NotFound:
                continue


def links_and_deletions(number: int) -> bytes:
    """A file, a second name for the one of the layer below, and that one's second name gone."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, link, data in (
            (f"deep/f{number}", "", b"%d" % number),
            (f"deep/link{number}", f"deep/f{number - 1}", b""),
            (f"deep/.wh.link{number - 1}", "", b""),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if link:
                info.type, info.linkname = tarfile.LNKTYPE, link
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


async def test_image_of_127_layers_with_links_and_deletions_between_them_runs(
    node_client, tmp_path: Path
) -> None:
    made = Layout(tmp_path / "layout")
    first = tar(("deep/f0", b"0", 0o644), ("deep/link0", b"old", 0o644))
    made.index(made.image(first, *map(links_and_deletions, range(1, 127)), tag="1"))
    images = node_client.images
    layer = await images.import_oci("toolkit/deep", f"oci:{made.path}:1")
    try:
        assert len(layer.layers()) < 32  # collapsed: a sandbox has room for so many
        async with await node_client.sandboxes.create(layers=["toolkit/deep"]) as sandbox:
            assert await said(sandbox, "cd /deep; ls | grep -c '^f'; ls | grep link") == (
                "127\nlink126"
            )
            assert await said(sandbox, "cd /deep; for i in $(seq 0 126); do cat f$i; done") == (
                "".join(map(str, range(127)))
            )
            same = "cd /deep; test f125 -ef link126 && stat -c %h f125"
            assert await said(sandbox, same) == "2"
    finally:
        await images.remove("toolkit/deep")


async def test_recipe_begins_with_an_image_of_a_registry_that_it_may_use(
    node_client, closed: Registry, layout: Layout, tmp_path: Path
) -> None:
    closed.push(layout.path, "1", "library/made:1", closed.auth_file())
    recipe = "FROM made:1\nENV LEVEL=recipe\nCOPY <<E /opt/tool/more\nmore\nE\n"
    images = node_client.images
    with pytest.raises(NotFound, match="no image 'made:1' here"):
        await images.build_recipe("workspace/from-registry", recipe, network=())
    elsewhere = recipe.replace("made:1", f"{closed.host}/library/made:1")
    sources = ImageSources(registries=("docker.io",))
    with pytest.raises(NotFound, match="is none of the registries"):
        await images.build_recipe("workspace/from-registry", elsewhere, sources=sources)
    sources = ImageSources(
        registries=(closed.host,), authfile=tmp_path / "auth.json", tls_verify=False
    )
    try:
        made = await images.build_recipe(
            "workspace/from-registry", recipe, network=(), sources=sources
        )
        closed.push(layout.path, "1", "library/made:2", closed.auth_file())
        again = await images.build_recipe(
            "workspace/from-registry", recipe, network=(), sources=ImageSources()
        )
        assert again == made  # there is a layer of that name now, and the same was made of it
        assert made.recipe["base"].startswith("base/made:1@sha256:")
        aliased = await images.build_recipe(
            "workspace/from-registry",
            recipe.replace("made:1", "whatever.example/x:9"),
            network=(),
            sources=ImageSources(aliases={"whatever.example/x:9": "base/made:1"}),
        )
        assert aliased == made
    finally:
        for name in ("workspace/from-registry", "base/made:1"):
            await images.remove(name)
        for one in await images.list():
            if one.name.startswith("workspace/build-cache/"):
                await images.remove(one.name)
