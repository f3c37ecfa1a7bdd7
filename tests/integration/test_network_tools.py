"""pip, apt and npm through the proxy, from where this machine's own clients get their packages."""

from __future__ import annotations

import functools
import ipaddress
import json
import os
import shutil
import socket
import ssl
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.errors import SkerryError
from skerry.network.addresses import not_public
from skerry.network.discover import discover

pytestmark = [pytest.mark.root, pytest.mark.slow]


@functools.cache
def reachable(word: str) -> tuple[tuple[str, ...], str]:
    """Returns the hosts of a service that lead to private addresses here, and why it is no use."""
    try:
        service = discover(word)
    except SkerryError as error:
        return (), error.message
    private = []
    for entry in service.hosts:
        host, _, port = entry.partition(":")
        try:
            found = socket.getaddrinfo(host, int(port or 443), type=socket.SOCK_STREAM)
            try:
                socket.create_connection(found[0][4][:2], timeout=10).close()
            except OSError:
                socket.create_connection((found[0][4][0], 80), timeout=10).close()
        except OSError as error:
            return (), f"the source of {word} packages is not reachable here: {error}"
        if not_public(ipaddress.ip_address(found[0][4][0])):
            private.append(host)
    return tuple(private), ""


def needs(word: str) -> None:
    """Skips the test where the packages cannot be had."""
    reason = reachable(word)[1]
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def node(layer_store):
    words = ("pypi", "npm", "debian")
    private = [host for word in words for host in reachable(word)[0]]
    with LiveNode(
        layer_store, options=f"[network]\nprivate = {json.dumps(private)}\n"
    ).running() as node:
        yield node


@pytest.fixture
async def make(node):
    """Makes sandboxes that trust what this machine trusts: some networks have a CA of their own."""
    bundle = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    made = []
    async with node.client() as client:

        async def one(*network: str):
            names = ("PIP_CERT", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
            env = dict.fromkeys(names, "/opt/ca.pem") if bundle else {}
            sandbox = await client.sandboxes.create(network=network, env=env)
            made.append(sandbox)
            if bundle:
                await sandbox.files.write("/opt/ca.pem", Path(bundle).read_bytes())
            return sandbox

        yield one
        for sandbox in made:
            await sandbox.destroy()


async def ok(box, command, **keywords) -> str:
    result = await box.run(command, timeout=300, **keywords)
    assert result.exit_code == 0, (result.text[-2000:], result.error_text[-2000:])
    return result.text


async def test_pip_installs_a_package(make) -> None:
    needs("pypi")
    box = await make("pypi")
    await ok(box, ["pip", "install", "six"])
    assert (await ok(box, ["python3", "-c", "import six; print(six.__name__)"])) == "six\n"
    assert {decision.verdict for decision in (await box.network()).decisions} == {"allowed"}
    refused = await box.run(
        ["pip", "download", "--retries", "0", "six"],
        timeout=60,
        env={"https_proxy": "", "HTTPS_PROXY": "", "http_proxy": "", "HTTP_PROXY": ""},
    )
    assert refused.exit_code != 0  # past the proxy there is no way


async def test_apt_updates_and_installs_a_package_and_leaves_no_setting(make) -> None:
    needs("debian")
    box = await make("debian")
    # Some mirrors are frozen; their lists are then older than apt wants them to be.
    fresh = ["-o", "Acquire::Check-Valid-Until=false", "-o", "Acquire::Check-Date=false"]
    await ok(box, ["apt-get", *fresh, "update"])
    await ok(box, ["apt-get", "install", "-y", "hello"])
    assert await ok(box, ["hello"]) == "Hello, world!\n"
    changed = {change.path for change in await box.diff()}
    assert "/usr/bin/hello" in changed
    assert not [path for path in changed if path.startswith(("/etc/apt", "/run"))]


SHELLS = {"zsh": "zsh", "ksh93": "ksh", "mksh": "mksh", "busybox": "busybox"}  # word and package


async def test_a_recipe_installs_from_what_builds_may_reach(node) -> None:
    needs("debian")
    recipe = (
        "FROM debian:12\n"
        "RUN apt-get update -o Acquire::Check-Valid-Until=false -o Acquire::Check-Date=false\n"
        "RUN apt-get install -y --no-install-recommends bc"
    )
    async with node.client() as client:
        try:
            await client.images.build_recipe("workspace/recipe-bc", recipe)
            async with await client.sandboxes.create(layers=["workspace/recipe-bc"]) as sandbox:
                result = await sandbox.run("echo 6*7 | bc")
            assert result.text == "42\n"
        finally:
            for layer in await client.images.list():
                if layer.name.startswith(("workspace/recipe-bc", "workspace/build-cache/")):
                    await client.images.remove(layer.name)


async def test_sessions_of_every_shell_that_a_sandbox_may_have(make) -> None:
    """Those that this machine has are tried more closely where the agent is tried."""
    needs("debian")
    box = await make("debian")
    fresh = ["-o", "Acquire::Check-Valid-Until=false", "-o", "Acquire::Check-Date=false"]
    await ok(box, ["apt-get", *fresh, "update"])
    await ok(box, ["apt-get", "install", "-y", *SHELLS.values()])
    for shell in SHELLS:
        session = await box.session(shell=shell)
        first = await session.run("cd /tmp; X=1; f() { echo f$1; }; export E=2; echo err >&2")
        assert (first.exit_code, first.stderr) == (0, b"err\n")
        await session.run("/bin/sleep 1000 & (sleep 0.1; echo late > /tmp/late) &")
        told = await session.run("pwd; f $X; cat <<EOF\n$X $E $(f 3)\nEOF\nfalse")
        assert (told.text, told.exit_code) == ("/tmp\nf1\n1 2 f3\n", 1), shell
        trapped = await session.run("trap 'echo got' USR1; kill -USR1 $$; sleep 0.1; echo after")
        assert trapped.text == "got\nafter\n", shell
        late = await session.run("/bin/sleep 1001; echo never", timeout=0.5)
        assert (late.timed_out, late.text) == (True, ""), shell
        assert (await session.run("pwd; (exit 5)")).exit_code == 5
        assert (await session.run("exit 7")).exit_code == 7, shell
        gone = await session.run("exec sh -c 'pwd; exit 4'")
        assert (gone.exit_code, gone.text, gone.session_reset) == (4, "/tmp\n", True), shell
        assert (await session.run("cat late; rm late; pgrep -c sleep")).text == "late\n1\n", shell
        await session.close()
        assert (await box.run("pgrep -c sleep")).text == "0\n", shell


async def test_without_the_word_apt_reaches_nothing(make) -> None:
    needs("debian")
    box = await make("nothing.example")
    result = await box.run("apt-get update; apt-get install -y hello", timeout=120)
    assert result.exit_code != 0


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here to be put into a sandbox")
async def test_npm_installs_a_package(make) -> None:
    needs("npm")
    box = await make("npm")
    program = os.path.realpath(str(shutil.which("npm")))
    tree = str(Path(program).parents[1])
    await box.files.upload(os.path.realpath(str(shutil.which("node"))), "/usr/local/bin/node")
    await box.files.upload(tree, "/opt/npm")
    cli = f"/opt/npm/bin/{Path(program).name}"
    await ok(box, "chmod 755 /usr/local/bin/node && mkdir /p && cd /p && echo '{}' > package.json")
    await ok(box, ["node", cli, "install", "--no-audit", "--no-fund", "is-number@7.0.0"], cwd="/p")
    assert await ok(box, ["node", "-p", "require('is-number')(7)"], cwd="/p") == "true\n"
