"""Images made by hand: OCI layouts and docker archives with just the content that a test wants."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zstandard

Json = dict[str, Any]
OCI = "application/vnd.oci.image."
DOCKER = "application/vnd.docker."
PACKS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    "+gzip": lambda data: gzip.compress(data, mtime=0),
    "+zstd": zstandard.compress,
}


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config_of(layers: Sequence[bytes], platform: str = "linux/amd64", **run: Any) -> Json:
    """The config of an image of these plain tars."""
    system, architecture = platform.split("/")
    return {
        "os": system,
        "architecture": architecture,
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": [sha256(layer) for layer in layers]},
        "history": [{"created_by": "a test"} for _ in layers],
    }


class Layout:
    """An OCI layout in a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "blobs" / "sha256").mkdir(parents=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self.index()

    def blob(self, data: bytes, kind: str, **more: Any) -> Json:
        """Stores a blob; returns its descriptor."""
        digest = sha256(data)
        self.file(digest).write_bytes(data)
        return {"mediaType": kind, "digest": digest, "size": len(data), **more}

    def document(self, content: Any, kind: str, **more: Any) -> Json:
        return self.blob(json.dumps(content).encode(), kind, **more)

    def file(self, digest: str) -> Path:
        return self.path / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def image(
        self,
        *layers: bytes,
        tag: str | None = "latest",
        pack: str = "+gzip",
        config: Json | None = None,
        platform: str | None = None,
        **run: Any,
    ) -> Json:
        """Stores an image of plain tars; returns its descriptor."""
        config = config or config_of(layers, platform or "linux/amd64", **run)
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}manifest.v1+json",
            "config": self.document(config, f"{OCI}config.v1+json"),
            "layers": [
                self.blob(PACKS[pack](layer), f"{OCI}layer.v1.tar{pack}") for layer in layers
            ],
        }
        more: Json = {}
        if tag is not None:
            more["annotations"] = {"org.opencontainers.image.ref.name": tag}
        if platform is not None:
            system, architecture = platform.split("/")
            more["platform"] = {"os": system, "architecture": architecture}
        return self.document(manifest, f"{OCI}manifest.v1+json", **more)

    def index(self, *images: Json) -> None:
        """Makes these the images of the layout."""
        content = {"schemaVersion": 2, "manifests": list(images)}
        (self.path / "index.json").write_text(json.dumps(content))

    def nested(self, *images: Json, **more: Any) -> Json:
        """Stores a list of images, as for several platforms; returns its descriptor."""
        content = {"schemaVersion": 2, "manifests": list(images)}
        return self.document(content, f"{OCI}index.v1+json", **more)

    def tar(self) -> bytes:
        """The layout as an archive."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for directory, _, names in sorted(os.walk(self.path)):
                for name in sorted(names):
                    path = Path(directory) / name
                    tar.add(path, str(path.relative_to(self.path)))
        return out.getvalue()


def docker_archive(*layers: bytes, tags: Sequence[str] = ("app:1",), **run: Any) -> bytes:
    """An archive as `docker save` made it: layers first, a repeated one as a link, names last."""
    config = json.dumps(config_of(layers, **run)).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:

        def add(name: str, data: bytes = b"", link: str | None = None) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if link is not None:
                info.type, info.linkname = tarfile.SYMTYPE, link
            tar.addfile(info, io.BytesIO(data))

        names, first = [], dict[bytes, str]()
        for at, layer in enumerate(layers):
            directory = f"{at:064x}"
            names.append(f"{directory}/layer.tar")
            link = f"../{first[layer]}/layer.tar" if layer in first else None
            first.setdefault(layer, directory)
            add(names[-1], b"" if link else layer, link)
        name = f"{sha256(config)[7:]}.json"
        add(name, config)
        add(
            "manifest.json",
            json.dumps([{"Config": name, "RepoTags": list(tags), "Layers": names}]).encode(),
        )
    return out.getvalue()
