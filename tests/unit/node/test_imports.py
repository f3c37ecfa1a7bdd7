"""Routes of images of other systems: what is asked of the library, and what is told of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from node_stand import Stand, sandboxes_of

from skerry.errors import InvalidRequest, RegistryDenied, StorageFailed, Unavailable
from skerry.images.oci.images import CollapseWish
from skerry.images.oci.skopeo import Access
from skerry.node.library import Log, Reader
from skerry.node.main import running
from skerry.sdk.images import AsyncImages
from skerry.sdk.transport import Transport
from skerry.spec.layers import LayerManifest

AUTH = '{"auths": {"host": {"auth": "c2VjcmV0"}}}'


class FakeOci:
    """Records what is asked; `hold` keeps it waiting."""

    def __init__(self, stand: Stand) -> None:
        self.library = stand.library
        self.asked: list[tuple[Any, ...]] = []
        self.hold = threading.Event()
        self.hold.set()

    def import_archive(
        self, name: str, fileobj: Reader, *, tag: str | None = None, platform: str | None = None
    ) -> LayerManifest:
        data = b"".join(iter(lambda: fileobj.read(1 << 16), b""))
        self.asked.append(("archive", name, data, tag, platform))
        return self.library.add("base/app:1")

    def import_registry(
        self, name: str, reference: str, *, access: Access, platform: str | None, log: Log
    ) -> LayerManifest:
        self.hold.wait(10)
        self.asked.append(("registry", name, reference, access, platform))
        log("copying")
        if reference == "host/denied":
            raise RegistryDenied("give credentials")
        return self.library.add("base/app:1")

    def push(self, names: Sequence[str], reference: str, *, access: Access, log: Log) -> str:
        self.asked.append(("push", tuple(names), reference, access))
        log("copying")
        return "sha256:" + "e" * 64

    def collapse(
        self,
        names: Sequence[str],
        into: str,
        *,
        threshold: int | None,
        wish: CollapseWish,
        log: Log,
    ) -> LayerManifest:
        self.asked.append(("collapse", tuple(names), into, threshold, wish.scrub))
        log("reading")
        return self.library.add("base/all:1")


class Client:
    """A node with a fake of the part that works with other systems' images, and its client."""

    def __init__(self, stand: Stand, **changes: Any) -> None:
        self.oci = FakeOci(stand)
        self._stand = stand
        self._changes = changes

    async def __aenter__(self) -> AsyncImages:
        node = self._stand.build(**self._changes, oci=self.oci)
        self._running = running(node)
        await self._running.__aenter__()
        self._transport = Transport("http://node", socket_path=node.config.socket_path)
        self._sandboxes = sandboxes_of(node)
        return AsyncImages(self._transport, await self._sandboxes.__aenter__())

    async def __aexit__(self, *_: object) -> None:
        self.oci.hold.set()
        await self._sandboxes.__aexit__(None, None, None)
        await self._transport.close()
        await self._running.__aexit__(None, None, None)


async def test_registry_image_is_asked_for_with_progress(stand: Stand, tmp_path: Path) -> None:
    client = Client(stand)
    (tmp_path / "auth").write_text(AUTH)
    said: list[str] = []
    async with client as images:
        made = await images.import_oci(
            "app:1", "docker://host/app:1", platform="linux/arm64", authfile=tmp_path / "auth",
            tls_verify=False, on_log=said.append,
        )  # fmt: skip
        assert made.name == "base/app:1"
        assert said == ["copying"]
        await images.import_oci("app:1", "docker://host/app:1")
    first, second = client.oci.asked
    assert first == (
        "registry", "base/app:1", "host/app:1", Access(AUTH.encode(), tls_verify=False), "linux/arm64",
    )  # fmt: skip
    assert second[3:] == (Access(None, tls_verify=True), None)


async def test_credentials_are_in_no_log_and_no_journal(
    stand: Stand, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    (tmp_path / "auth").write_text(AUTH)
    async with Client(stand) as images:
        with pytest.raises(RegistryDenied) as error:
            await images.import_oci("app:1", "docker://host/denied", authfile=tmp_path / "auth")
    assert "c2VjcmV0" not in caplog.text + repr(error.value)
    for path in Path(stand.root).rglob("*"):
        assert not path.is_file() or b"c2VjcmV0" not in path.read_bytes()


async def test_nodes_own_credentials_serve_where_none_are_given(
    stand: Stand, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.write_text(AUTH)
    client = Client(stand, registry_auth_file=str(own))
    async with client as images:
        await images.import_oci("app:1", "docker://host/app:1")
        assert client.oci.asked[-1][3].auth == AUTH.encode()
        await images.push("app:1", "docker://host/app:1")
        assert client.oci.asked[-1][3].auth == AUTH.encode()
        own.unlink()
        with pytest.raises(StorageFailed, match="registry_auth_file"):
            await images.import_oci("app:1", "docker://host/app:1")


async def test_layout_and_archive_are_streamed(stand: Stand, tmp_path: Path) -> None:
    client = Client(stand)
    (tmp_path / "layout").mkdir()
    (tmp_path / "layout" / "index.json").write_text("{}")
    (tmp_path / "saved.tar").write_bytes(b"archive")
    sent: list[int] = []
    async with client as images:
        await images.import_oci("app:1", f"oci:{tmp_path}/layout:tag", progress=sent.append)
        await images.import_oci(
            "app:1", f"docker-archive:{tmp_path}/saved.tar", platform="linux/arm64"
        )
    first, second = client.oci.asked
    assert b"index.json" in first[2]
    assert first[3:] == ("tag", None)
    assert second == ("archive", "base/app:1", b"archive", None, "linux/arm64")
    assert sum(sent) == len(first[2])


async def test_push_and_collapse_say_what_came_of_them(stand: Stand) -> None:
    client = Client(stand)
    said: list[str] = []
    async with client as images:
        digest = await images.push(
            ["debian:12", "toolkit/t"], "docker://host/x:1", on_log=said.append
        )
        assert digest == "sha256:" + "e" * 64
        made = await images.collapse(
            ["debian:12"], "all:1", threshold="1GiB", scrub=["logs"], on_log=said.append
        )
        assert made.name == "base/all:1"
    assert said == ["copying", "reading"]
    push, collapse = client.oci.asked
    assert push[1] == ("base/debian:12", "toolkit/t")
    assert collapse == ("collapse", ("debian:12",), "base/all:1", 1 << 30, ("logs",))


async def test_wrong_arguments_are_refused_before_anything_starts(stand: Stand) -> None:
    client = Client(stand)
    async with client as images:
        for call in (
            images.push(["debian:12"], "host/x:1"),
            images.push([], "docker://host/x:1"),
            images.collapse("debian:12", "all:1"),
            images.collapse(["debian:12"], "all:1", threshold="much"),
            images.import_oci("app:1", "ftp://x"),
        ):
            with pytest.raises(InvalidRequest):
                await call
    assert client.oci.asked == []


async def test_odd_queries_and_bodies_are_refused(stand: Stand) -> None:
    async with stand.serving() as (_, api):
        for path, body in (
            ("import?kind=zip", None),
            ("import?tag=x", None),
            ("import?kind=oci&tag=x&tag=y", None),
            ("registry", {"reference": 5}),
            ("registry", {"reference": "x", "password": "y"}),
            ("push", {}),
            ("collapse", {"layers": "x"}),
        ):
            await api.call("POST", f"/v1/images/base/x/{path}", body, status=422)


async def test_node_without_that_part_says_so(stand: Stand) -> None:
    async with stand.alive() as node:
        with pytest.raises(Unavailable, match="other systems"):
            await node.imports.push(
                ["x"], "host/x", auth=None, tls_verify=True, log=lambda _line: None
            )


async def test_imports_do_not_keep_sandboxes_waiting(stand: Stand) -> None:
    client = Client(stand)
    client.oci.hold.clear()
    async with client as images:
        tasks = [
            asyncio.create_task(images.import_oci("app:1", f"docker://host/{at}"))
            for at in range(8)
        ]
        await asyncio.sleep(0.05)
        assert (await images.inspect("debian:12")).name == "base/debian:12"
        assert not any(task.done() for task in tasks)
        client.oci.hold.set()
        await asyncio.gather(*tasks)
