"""What is set inside a sandbox that may reach something: environment and, for apt, two files. Pure.

The files lie on the tmpfs at /run: they are no part of what the sandbox wrote, so no diff and no
commit shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from skerry.network.services import Service

PLACE = "/run/skerry"
APT_CONF = f"{PLACE}/apt.conf"
APT_LIST = f"{PLACE}/debian.list"
SOURCES = "/etc/apt/sources.list.d/debian.sources"  # of an image, with placeholders
_LOOPBACK = "localhost,127.0.0.1,::1"


def environment(port: int, services: Iterable[Service]) -> dict[str, str]:
    """Returns the variables: programs know the proxy by one or the other spelling of these."""
    proxy = f"http://127.0.0.1:{port}"
    made = {
        "http_proxy": proxy,
        "https_proxy": proxy,
        "HTTP_PROXY": proxy,
        "HTTPS_PROXY": proxy,
        "no_proxy": _LOOPBACK,
        "NO_PROXY": _LOOPBACK,
        "NODE_USE_ENV_PROXY": "1",  # node's own fetch looks at no proxy otherwise
    }
    for service in services:
        if service.apt:
            made["APT_CONFIG"] = APT_CONF
        made |= service.env
    return made


def apt_values(services: Iterable[Service]) -> dict[str, str]:
    """Returns what replaces placeholders in an image's sources; empty: apt needs nothing."""
    values: dict[str, str] = {}
    for service in services:
        values |= service.apt
    return values


def apt_files(port: int, values: Mapping[str, str], sources: str) -> dict[str, str]:
    """Returns the files for apt by path; `sources` is the image's SOURCES, "" if it has none.

    Only stanzas with a placeholder of `values` are used: an image with sources of its own keeps
    them.
    """
    lines = [
        f"deb [signed-by={stanza['signed-by']}] {values[name]} {suite} {stanza['components']}"
        for stanza in _stanzas(sources)
        if (name := stanza.get("uris", "").strip("@")) in values
        and stanza.keys() >= {"suites", "components", "signed-by"}
        for suite in stanza["suites"].split()
    ]
    conf = [f'Acquire::{scheme}::Proxy "http://127.0.0.1:{port}";' for scheme in ("http", "https")]
    if lines:
        conf.append(f'Dir::Etc::sourcelist "{APT_LIST}";')
    return {APT_CONF: "\n".join([*conf, ""]), APT_LIST: "\n".join([*lines, ""])}


def _stanzas(text: str) -> list[dict[str, str]]:
    """Returns the stanzas of a deb822 file; comments and what is no field are left out."""
    found: list[dict[str, str]] = [{}]
    for line in text.splitlines():
        if not line.strip():
            found.append({})
        elif not line.startswith("#"):
            name, colon, value = line.partition(":")
            if colon:
                found[-1][name.strip().lower()] = value.strip()
    return [stanza for stanza in found if stanza]
