"""Entries and host names: what may be written, what it means, and everything that is no name."""

from __future__ import annotations

import asyncio
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import InvalidRequest, Unavailable
from skerry.network.discover import discover
from skerry.network.policy import Policy, Rule
from skerry.network.services import NetworkConfig, Service, Services
from skerry.spec.network import canonical_host, check_network, parse_entry, port_number
from skerry.spec.sandbox import SandboxSpec

LABEL = st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
TOP = st.from_regex(r"[a-z]{2,8}", fullmatch=True)
NAME = st.builds(lambda labels, top: ".".join([*labels, top]), st.lists(LABEL, min_size=1), TOP)
NAME = NAME.filter(lambda name: len(name) <= 253)


PYPI = {"pypi": Service(hosts=("index.org", "files.example.com"))}


def no_discovery(word: str) -> Service:
    raise AssertionError(word)


def policy(*entries: str, **config) -> Policy:
    return Services(NetworkConfig(**config).check(), no_discovery).policy(entries)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("index.org", "index.org"),
        ("Index.ORG", "index.org"),
        ("index.org.", "index.org"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("_dmarc.example.org", "_dmarc.example.org"),
        ("a" * 63 + ".org", "a" * 63 + ".org"),
        ("0x7f.example", "0x7f.example"),
    ],
)
def test_names_have_one_spelling(text: str, name: str) -> None:
    assert canonical_host(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a..b",
        "index.org..",
        ".index.org",
        "a" * 64 + ".org",
        "a." * 127 + "org",
        "-a.org",
        "a-.org",
        "bücher.example",
        "pypi\u3002org",
        "\uff30\uff39PI.org",
        "index.org\r\nHost: evil",
        "index.org\x00.evil.org",
        "pypi .org",
        "index.org/",
        "user@index.org",
        "index.org%00",
        "index.org\\",
        # addresses in every notation that some resolver takes
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "1.2.3.4.",
        "example.1",
        "example.0x",
        "::1",
        "[::1]",
        "fe80::1%eth0",
        "::ffff:127.0.0.1",
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        canonical_host(text)


@pytest.mark.parametrize(
    ("text", "word", "host", "wildcard", "port"),
    [
        ("pypi", "pypi", "", False, None),
        ("my-mirror2", "my-mirror2", "", False, None),
        ("index.org", None, "index.org", False, None),
        ("Index.org.", None, "index.org", False, None),
        ("*.example.net", None, "example.net", True, None),
        ("index.org:8443", None, "index.org", False, 8443),
        ("*.example.net:80", None, "example.net", True, 80),
        ("localhost:8080", None, "localhost", False, 8080),
        ("*", None, "", True, None),
    ],
)
def test_entries_say_what_they_say(text, word, host, wildcard, port) -> None:
    assert parse_entry(text) == (text, word, host, wildcard, port)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("https://index.org", "URL"),
        ("10.0.0.0/8", "range of addresses"),
        ("2001:db8::/32", "range of addresses"),
        ("10.0.0.1", "address"),
        ("10.0.0.1:80", "address"),
        ("[::1]:443", "address"),
        ("::1", "address"),
        ("user@host.org", "user"),
        ("*:443", "host name"),
        ("*.", "no host name"),
        ("*.org", "too wide"),
        ("*.*.org", "not allowed"),
        ("a.*.org", "not allowed"),
        ("*index.org", "not allowed"),
        ("PYPI", "neither"),
        ("index.org:", "no port"),
        ("index.org:0", "no port"),
        ("index.org:65536", "no port"),
        ("index.org:080", "no port"),
        ("index.org:+80", "no port"),
        ("index.org:http", "no port"),
        ("index.org:8\u0660", "no port"),
        ("bücher.example", "xn--"),
        ("x" * 400, "longer"),
    ],
)
def test_bad_entries_say_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        parse_entry(text)


def test_spec_is_checked_at_the_edge() -> None:
    assert SandboxSpec(network=("pypi", "example.org")).check().network
    with pytest.raises(InvalidRequest, match="network"):
        SandboxSpec(network=("http://x.org",)).check()
    with pytest.raises(InvalidRequest, match="at most 256"):
        check_network(("a.org",) * 257)


@given(st.text(max_size=300))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        entry = parse_entry(text)
    except InvalidRequest:
        return
    assert entry.word is not None or canonical_host(entry.host) == entry.host


@given(NAME)
def test_canonical_names_stay_as_they_are_and_all_spellings_meet(name: str) -> None:
    assert canonical_host(name) == name
    assert canonical_host(name.upper() + ".") == name


@given(st.ip_addresses())
def test_no_address_is_a_name(address) -> None:
    spellings = [str(address), f"[{address}]", str(int(address)), hex(int(address))]
    if isinstance(address, ipaddress.IPv4Address):
        spellings += [f"{address}.", ".".join(hex(part) for part in address.packed)]
    for text in spellings:
        with pytest.raises(InvalidRequest):
            canonical_host(text)


@given(st.text(max_size=8))
def test_ports_are_plain_numbers(text: str) -> None:
    try:
        number = port_number(text)
    except (InvalidRequest, IndexError):
        return
    assert text == str(number)
    assert 1 <= number <= 65_535


# --- matching


def test_nothing_is_allowed_by_nothing() -> None:
    assert policy().allows("index.org", 443) is None
    assert not policy().rules


def test_name_opens_itself_and_its_two_ports_only() -> None:
    allowed = policy("index.org")
    assert allowed.allows("index.org", 443) == Rule("index.org", False, None, "index.org")
    assert allowed.allows("index.org", 80)
    for host, port in (
        ("index.org", 22),
        ("index.org", 8443),
        ("www.index.org", 443),
        ("evilindex.org", 443),
        ("index.org.evil.com", 443),
        ("org", 443),
    ):
        assert allowed.allows(host, port) is None


def test_wildcard_is_everything_below_and_not_the_name_itself() -> None:
    allowed = policy("*.example.net")
    assert allowed.allows("deb.example.net", 80)
    assert allowed.allows("a.b.example.net", 443)
    for host in ("example.net", "evilexample.net", "example.net.evil.com", "x-example.net"):
        assert allowed.allows(host, 443) is None
    assert allowed.knows("deb.example.net")
    assert not allowed.knows("example.net")


def test_star_is_every_name_on_the_ports_of_the_web() -> None:
    allowed = policy("*", "git.example.org:8443")
    for host in ("example.net", "a.b.example.org", "org", "git.example.org"):
        rule = allowed.allows(host, 443)
        assert rule is not None
        assert not rule.named
        assert allowed.allows(host, 22) is None
        assert allowed.knows(host)
    assert allowed.allows("git.example.org", 8443).named


def test_port_in_an_entry_is_the_only_one() -> None:
    allowed = policy("git.example.org:8443", "*.example.net:8080")
    assert allowed.allows("git.example.org", 8443)
    assert allowed.allows("git.example.org", 443) is None
    assert allowed.allows("a.example.net", 8080)
    assert allowed.allows("a.example.net", 80) is None
    assert allowed.knows("git.example.org")


def test_service_word_opens_its_hosts_and_is_named_as_the_source() -> None:
    rule = policy("pypi", services=PYPI).allows("files.example.com", 443)
    assert rule is not None
    assert rule.source == "pypi"
    assert policy("pypi", services=PYPI).allows("npm.example.com", 443) is None


def test_operator_replaces_and_adds_services() -> None:
    services = {
        "pypi": Service(hosts=("mirror.corp:8080",), env={"PIP_INDEX_URL": "http://mirror.corp"}),
        "wiki": Service(hosts=("*.wiki.corp",)),
    }
    allowed = policy("pypi", "wiki", services=services)
    assert allowed.allows("mirror.corp", 8080)
    assert allowed.allows("index.org", 443) is None
    assert allowed.allows("en.wiki.corp", 443)


def test_unknown_word_names_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match=r"known: .*npm.*pypi"):
        policy("pipy")


@given(NAME, NAME, st.integers(1, 65_535))
def test_no_other_name_gets_through(allowed: str, asked: str, port: int) -> None:
    for entry in (allowed, f"{allowed}:{port}"):
        if policy(entry).allows(asked, port) is not None:
            assert asked == allowed
    if policy(f"*.{allowed}:{port}").allows(asked, port) is not None:
        assert asked.endswith(f".{allowed}")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"services": {"Bad Word": Service(hosts=())}}, "host name|no word"),
        ({"services": {"a": Service(hosts=("b",))}}, "names, not words"),
        ({"services": {"a": Service(hosts=("1.2.3.4",))}}, "address"),
        ({"services": {"a": Service(hosts=(), env={"A=B": "c"})}}, "variable name"),
        ({"addresses": {"Mirror.corp": ("10.0.0.1",)}}, "no name"),
        ({"addresses": {"mirror.corp": ()}}, "no address"),
        ({"addresses": {"mirror.corp": ("nowhere",)}}, "no address"),
        ({"addresses": {"mirror.corp": ("169.254.169.254",)}}, "link-local"),
        ({"private": ("10.0.0.1",)}, "private"),
        ({"port": 0}, "port"),
        ({"connections_max": 1000}, "connections_max"),
        ({"idle_s": 0.0}, "idle_s"),
    ],
)
def test_bad_configuration_is_named(config, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        NetworkConfig(**config).check()


# --- what the machine's own clients say


async def test_word_is_discovered_once_and_the_operators_own_never() -> None:
    asked = []

    def find(word: str) -> Service:
        asked.append(word)
        return Service(hosts=(f"{word}.example",))

    services = Services(NetworkConfig(services=PYPI), find)
    await asyncio.gather(*(services.learn(("npm", "pypi", "x.org")) for _ in range(20)))
    assert asked == ["npm"]
    assert services.policy(("npm",)).allows("npm.example", 443)
    assert services.policy(("pypi",)).allows("index.org", 443)
    with pytest.raises(InvalidRequest, match="no service"):
        await services.learn(("wiki",))
    assert asked == ["npm"]


async def test_word_that_cannot_be_discovered_is_the_platforms_fault_and_asked_again() -> None:
    tries = []

    def find(word: str) -> Service:
        tries.append(word)
        raise Unavailable("write [network.services.npm]")

    services = Services(NetworkConfig(), find)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await services.learn(("npm",))
    assert len(tries) == 2


def client(tmp_path, monkeypatch, name: str, script: str) -> None:
    """A package client of the machine's, as the test says."""
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_npm_says_where_it_goes(tmp_path, monkeypatch) -> None:
    client(tmp_path, monkeypatch, "npm", "echo https://mirror.example:8443/npm/")
    service = discover("npm")
    assert service.hosts == ("mirror.example:8443",)
    assert service.env == {"npm_config_registry": "https://mirror.example:8443/npm/"}


def test_apt_says_where_its_archives_are_with_lists_and_without(tmp_path, monkeypatch) -> None:
    client(
        tmp_path,
        monkeypatch,
        "apt-get",
        "echo 'Debian|http://mirror.example/debian/'; echo '|http://other.example/debian-security'",
    )
    service = discover("debian")
    assert service.hosts == ("mirror.example", "other.example")
    assert service.apt == {
        "DEBIAN_URI": "http://mirror.example/debian",
        "DEBIAN_SECURITY_URI": "http://other.example/debian-security",
    }


def test_pip_says_where_it_goes(tmp_path, monkeypatch) -> None:
    answer = '{"index": null, "default": "https://index.example/simple", "files": "files.example"}'
    client(tmp_path, monkeypatch, "python9", f"echo '{answer}'")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python9"))
    assert discover("pypi").hosts == ("index.example", "files.example")
    mirror = '{"index": "http://10.mirror.example/simple", "default": "", "files": ""}'
    client(tmp_path, monkeypatch, "python9", f"echo '{mirror}'")
    service = discover("pypi")
    assert service.hosts == ("10.mirror.example",)
    url = "http://10.mirror.example/simple"
    assert service.env == {"PIP_INDEX_URL": url, "UV_DEFAULT_INDEX": url}


@pytest.mark.parametrize(
    "says", ["", "https://user:secret@mirror.example/", "ftp://x.example", "http://10.0.0.1/"]
)
def test_address_that_cannot_be_used_is_told_without_its_password(
    tmp_path, monkeypatch, says: str
) -> None:
    client(tmp_path, monkeypatch, "npm", f"echo '{says}'")
    with pytest.raises(Unavailable, match=r"\[network\.services\.npm\]") as caught:
        discover("npm")
    assert "secret" not in caught.value.message


def test_machine_without_the_client_says_what_to_write(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for word in ("npm", "debian"):
        with pytest.raises(Unavailable, match="not installed"):
            discover(word)
