"""Which base a name stands for, and from where one may be fetched."""

from __future__ import annotations

import pytest

from skerry.errors import InvalidRequest, NotFound
from skerry.sdk.bases import ImageSources, find_base
from skerry.spec.layers import LayerManifest


class Store:
    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.fetched: list[tuple[str, str]] = []

    async def inspect(self, name: str) -> LayerManifest:
        if name not in self.names:
            raise NotFound(name)
        return LayerManifest(name=name, digest="sha256:0", size_bytes=0, created="", creator="t")

    async def fetch(self, name: str, source: str) -> LayerManifest:
        self.fetched.append((name, source))
        self.names.add(name)
        return await self.inspect(name)

    async def find(self, text: str, **sources) -> str:
        return (await find_base(text, ImageSources(**sources), self.inspect, self.fetch)).name


async def test_a_layer_that_there_is_is_taken_and_nothing_fetched() -> None:
    store = Store("base/debian:12", "base/ghcr.io/a/b:1")
    for text in ("debian:12", "base/debian:12"):
        assert await store.find(text, registries=("docker.io",)) == "base/debian:12"
    assert await store.find("ghcr.io/a/b:1") == "base/ghcr.io/a/b:1"
    assert not store.fetched


async def test_an_alias_comes_before_all_else() -> None:
    store = Store("base/debian:12", "base/mine:1")
    aliases = {"debian:12": "base/mine:1", "base/ubuntu:24.04": "base/mine:1"}
    for text in ("debian:12", "base/debian:12", "ubuntu:24.04"):
        assert await store.find(text, aliases=aliases) == "base/mine:1"


async def test_what_is_missing_is_fetched_once_from_where_it_may_come() -> None:
    store = Store()
    for _ in range(2):
        assert await store.find("ubuntu:24.04", registries=("m.example",)) == "base/ubuntu:24.04"
    assert store.fetched == [("base/ubuntu:24.04", "docker://m.example/library/ubuntu:24.04")]
    store.fetched.clear()
    assert await store.find("ghcr.io/a/b", registries=("docker.io", "ghcr.io"))
    assert store.fetched == [("base/ghcr.io/a/b:latest", "docker://ghcr.io/a/b:latest")]


async def test_nothing_is_fetched_from_elsewhere_and_the_error_says_what_helps() -> None:
    store = Store()
    with pytest.raises(NotFound, match=r"no image 'ubuntu:24.04' here.*registries: docker.io"):
        await store.find("ubuntu:24.04")
    with pytest.raises(NotFound, match=r"skerry image build base/debian:12,"):
        await store.find("debian:12")
    with pytest.raises(NotFound, match=r"skerry image build base/ubuntu:24.04 -f Dockerfile,"):
        await store.find("ubuntu:24.04")
    with pytest.raises(NotFound, match=r"10\.0\.0\.1:80 is none of the registries"):
        await store.find("10.0.0.1:80/a", registries=("docker.io",))
    with pytest.raises(InvalidRequest, match="is no image"):
        await store.find("NO SUCH")
    assert not store.fetched
