"""Where this machine's own package clients get their packages: what service words mean by default.

A machine that installs through a mirror gives its sandboxes that mirror, and no name of a registry
stands in this program. An operator who wants something else writes `[network.services.WORD]`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from skerry.errors import InvalidRequest, SkerryError, Unavailable
from skerry.network.services import Service
from skerry.spec.network import canonical_host, port_number

WITHIN_S = 30.0

# pip knows where it goes by default, and what its files' host is; nobody else does.
_PIP = """
import json
from pip._internal.configuration import Configuration
from pip._internal.models.index import PyPI
found = Configuration(isolated=False)
found.load()
asked = dict(found.items())
index = next((asked[key] for key in (":env:.index-url", "install.index-url", "global.index-url")
              if key in asked), None)
print(json.dumps({"index": index, "default": PyPI.simple_url, "files": PyPI.file_storage_domain}))
"""


def discover(word: str) -> Service:
    """Returns what a word of DISCOVERED means on this machine; blocks for up to a second or two.

    Raises Unavailable, saying what is missing and what to write instead.
    """
    try:
        return DISCOVERED[word]()
    except (OSError, ValueError, KeyError, subprocess.SubprocessError, SkerryError) as error:
        raise Unavailable(
            f"network: where {word} packages come from cannot be learned on this machine "
            f"({str(error)[:200]}): write [network.services.{word}] into the node's configuration"
        ) from error


def _run(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        raise ValueError(f"{argv[0]} is not installed")
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=WITHIN_S, check=True, text=True
    )
    return done.stdout.strip()


def _entry(url: str) -> str:
    """Returns the entry that allows a URL; InvalidRequest for one that no entry can allow."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(f"{url.partition('@')[2] or url!r} is no address of a web server")
    host = canonical_host(parts.hostname)
    default = {"http": 80, "https": 443}[parts.scheme]
    port = port_number(str(parts.port or default))
    return host if port == default else f"{host}:{port}"


def _pip() -> Service:
    failed = ""
    for python in dict.fromkeys((sys.executable, "python3")):
        try:
            found = json.loads(_run(python, "-c", _PIP))
            break
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            failed = f"no pip in {python}: {error}"
    else:
        raise ValueError(failed)
    if found["index"] is None:
        return Service(hosts=(_entry(found["default"]), canonical_host(found["files"])))
    return _mirror(found["index"], "PIP_INDEX_URL", "UV_DEFAULT_INDEX")


def _npm() -> Service:
    return _mirror(_run("npm", "config", "get", "registry"), "npm_config_registry")


def _mirror(url: str, *variables: str) -> Service:
    """A mirror's address is set inside too, but never the password in it."""
    if "@" in urlsplit(url).netloc:
        raise InvalidRequest("the configured address holds a password")
    return Service(hosts=(_entry(url),), env=dict.fromkeys(variables, url))


def _debian() -> Service:
    text = _run(
        *("apt-get", "indextargets", "--format", "$(LABEL)|$(REPO_URI)", "Created-By: Packages")
    )
    values: dict[str, str] = {}
    for line in text.splitlines():
        label, _, uri = line.partition("|")
        uri = uri.rstrip("/")
        # Before the first "apt-get update" there are no labels: the path has to do.
        label = label or {"debian": "Debian", "debian-security": "Debian-Security"}.get(
            uri.rpartition("/")[2], ""
        )
        if label == "Debian":
            values.setdefault("DEBIAN_URI", uri)
        elif label == "Debian-Security":
            values.setdefault("DEBIAN_SECURITY_URI", uri)
    if "DEBIAN_URI" not in values:
        raise ValueError("apt has no Debian archive")
    hosts = dict.fromkeys(map(_entry, values.values()))
    return Service(hosts=tuple(hosts), apt=values)


DISCOVERED: Mapping[str, Callable[[], Service]] = {"pypi": _pip, "npm": _npm, "debian": _debian}
