"""References to images of registries, as Docker writes them, and the layers that they are kept as. Pure.

| reference | registry | layer |
|---|---|---|
| `ubuntu:24.04` | the default one: `library/ubuntu:24.04` there | `base/ubuntu:24.04` |
| `team/app` | the default one | `base/team/app:latest` |
| `ghcr.io/team/app:1` | `ghcr.io` | `base/ghcr.io/team/app:1` |
| `localhost:5000/app@sha256:...` | `localhost:5000` | `base/localhost-5000/app:sha256-...` |

`docker.io` may be left out or written: it is the same image, and the same layer.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from skerry.errors import InvalidRequest
from skerry.spec.layers import LayerKind, LayerName, parse_layer_name

DOCKER_HUB = "docker.io"
_REFERENCE = re.compile(
    r"(?:(?P<host>[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]{1,5})?)/)?"
    r"(?P<path>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


class Reference(NamedTuple):
    """An image of a registry; without `host` it is in whichever is the default."""

    host: str | None
    path: str
    tag: str | None = None
    digest: str | None = None

    def layer(self) -> LayerName:
        """Returns the name under which it is kept; raises InvalidRequest if there can be none."""
        host = "" if self.host is None else self.host.lower().replace(":", "-") + "/"
        tag = self.digest.replace(":", "-") if self.digest else self.tag or "latest"
        return parse_layer_name(f"{LayerKind.BASE}/{host}{self.path}:{tag}")

    def at(self, default: str) -> str:
        """Returns where it is fetched, with `default` as the registry of what names none."""
        path = self.path if self.host or "/" in self.path else f"library/{self.path}"
        which = f"@{self.digest}" if self.digest else f":{self.tag or 'latest'}"
        return f"docker://{self.host or default}/{path}{which}"


def parse_reference(text: str) -> Reference:
    """Returns what a reference says; raises InvalidRequest for what is none."""
    host, slash, _ = text.partition("/")
    named = bool(slash) and ("." in host or ":" in host or host == "localhost")
    found = _REFERENCE.fullmatch(text if named else f"{DOCKER_HUB}/{text}")
    if found is None or len(text) > 512:
        raise InvalidRequest(
            f"{text[:200]!r} is no image: write [HOST[:PORT]/]NAME[:TAG], the name of a-z, 0-9 and ._-/"
        )
    path, tag, digest = found["path"], found["tag"], found["digest"]
    if not named or host == DOCKER_HUB:
        return Reference(None, path.removeprefix("library/") if named else path, tag, digest)
    return Reference(found["host"], path, tag, digest)
