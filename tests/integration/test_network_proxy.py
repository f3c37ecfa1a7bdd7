"""The way out of real sandboxes: streams, sizes, many at once, restarts; git over TLS."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from proxy_site import GIT_BACKEND, Site

from live_node import LiveNode

pytestmark = pytest.mark.root

NAMES = ("a.test", "b.test", "git.test")
FETCH = (
    "import sys, urllib.request as u\n"
    "n = 0\n"
    "with u.urlopen(sys.argv[1]) as r:\n"
    "    while d := r.read(1 << 16): n += len(d)\n"
    "print(n)\n"
)


def options(more: str = "") -> str:
    pinned = "\n".join(f'"{name}" = ["127.0.0.1"]' for name in NAMES)
    return f"{more}\n[network.addresses]\n{pinned}\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with Site(tmp_path_factory.mktemp("site"), *NAMES).serving() as site:
        yield site


@pytest.fixture(scope="module")
def node(layer_store, site):
    with LiveNode(layer_store, options=options()).running() as node:
        yield node


@pytest.fixture
async def box(node, site):
    async with node.client() as client:
        allowed = [f"a.test:{site.port}", f"a.test:{site.tls_port}", f"git.test:{site.tls_port}"]
        async with await client.sandboxes.create(network=allowed) as sandbox:
            await sandbox.files.write("/ca.pem", site.ca.read_bytes())
            await sandbox.files.write("/fetch.py", FETCH)
            yield sandbox


async def ok(box, command, **keywords) -> str:
    result = await box.run(command, timeout=120, **keywords)
    assert result.exit_code == 0, (result.text[-2000:], result.error_text[-2000:])
    return result.text


async def test_plain_and_tls_reach_what_is_allowed(box, site) -> None:
    url = f"http://a.test:{site.port}/"
    script = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
    assert f"hello from a.test:{site.port}" in await ok(box, ["python3", "-c", script, url])
    tls = f"https://a.test:{site.tls_port}/"
    env = {"SSL_CERT_FILE": "/ca.pem"}
    assert "hello from a.test" in await ok(box, ["python3", "-c", script, tls], env=env)
    # the other user's programs know the way too
    await ok(box, "adduser --disabled-password --gecos '' ada")
    await box.files.write("/get.py", script)
    assert "hello from" in await ok(box, f"su ada -c 'python3 /get.py {url}'")
    await ok(box, "echo 'ada ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ada")
    line = ["sudo", "-n", "-E", "python3", "/get.py", url]
    assert "hello from" in await ok(box, line, user="ada")


async def test_name_that_is_not_allowed_says_so_where_it_is_read(box, site) -> None:
    result = await box.run(["python3", "/fetch.py", f"http://b.test:{site.port}/"], timeout=60)
    assert result.exit_code == 1
    assert "Blocked by the network policy of this sandbox: b.test" in result.error_text
    view = await box.network()
    assert view.decisions[-1].verdict == "refused"
    assert view.decisions[-1].host == "b.test"
    await box.set_network([*view.network, f"b.test:{site.port}"])
    assert await ok(box, ["python3", "/fetch.py", f"http://b.test:{site.port}/"])


@pytest.mark.skipif(not os.path.exists(GIT_BACKEND), reason="git has no http-backend here")
async def test_git_clones_and_fetches_over_tls(box, site) -> None:
    head = site.repository("r.git")
    url = f"https://git.test:{site.tls_port}/git/r.git"
    env = {"GIT_SSL_CAINFO": "/ca.pem"}
    await ok(box, ["git", "clone", "-q", url, "/r"], env=env)
    assert (await ok(box, ["git", "-C", "/r", "rev-parse", "HEAD"])).strip() == head
    await ok(box, ["git", "-C", "/r", "fetch", "--all"], env=env)


async def test_events_pass_as_they_come(box, site) -> None:
    """A stream of events is not held back (report 66)."""
    script = (
        "import sys, urllib.request as u\n"
        "for line in u.urlopen(sys.argv[1]): print(line.decode().strip(), flush=True)\n"
    )
    seen = b""
    command = ["python3", "-c", script, f"http://a.test:{site.port}/events"]
    async for event in box.stream(command, timeout=60):
        seen += event.stdout or b""
        for number in range(3):
            if seen.endswith((b"data: %d\n" % number, b"data: %d\n\n" % number)):
                site.next.set()  # only now the next one is said
        if event.result is not None:
            assert event.result.exit_code == 0
    assert seen.count(b"data:") == 3


async def test_large_download_takes_no_memory_of_the_node(box, site, node) -> None:
    def resident() -> int:
        fields = Path(f"/proc/{node.pid}/status").read_text()
        line = next(line for line in fields.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) << 10

    size = 256 << 20
    await ok(box, ["python3", "/fetch.py", f"http://a.test:{site.port}/big/{1 << 20}"])
    before = resident()
    urls = [f"http://a.test:{site.port}/big/{size}", f"https://a.test:{site.tls_port}/big/{size}"]
    for url in urls:
        env = {"SSL_CERT_FILE": "/ca.pem"}
        assert (await ok(box, ["python3", "/fetch.py", url], env=env)).strip() == str(size)
    assert resident() - before < 64 << 20


async def test_a_hundred_at_once_are_served(box, site) -> None:
    script = (
        "import sys, threading, urllib.request as u\n"
        "got = []\n"
        "def one(): got.append(len(u.urlopen(sys.argv[1]).read()))\n"
        "threads = [threading.Thread(target=one) for _ in range(100)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(len(got), set(got))\n"
    )
    await box.files.write("/many.py", script)
    size = 1 << 20
    text = await ok(box, ["python3", "/many.py", f"http://a.test:{site.port}/big/{size}"])
    assert text == f"100 {{{size}}}\n"


async def test_download_broken_by_a_killed_node_is_retried(layer_store, site) -> None:
    node = LiveNode(layer_store, options=options()).start()
    try:
        async with node.client() as client:
            sandbox = await client.sandboxes.create(
                network=[f"a.test:{site.port}"], detached=True, memory="256MiB"
            )
            await sandbox.files.write("/fetch.py", FETCH)
            retry = (
                f"python3 /fetch.py http://a.test:{site.port}/slow; echo broke $?; "
                f"until python3 /fetch.py http://a.test:{site.port}/big/65536; do sleep 0.1; done"
            )
            run = asyncio.create_task(sandbox.run(retry, timeout=120))
            await asyncio.to_thread(site.begun.wait, 20)
            node.kill()
            node.start()
            result = await run
            assert result.exit_code == 0, result
            assert result.text.endswith("65536\n")
            assert "broke 1" in result.text  # a part is never taken for the whole
            view = await sandbox.network()
            assert view.network == (f"a.test:{site.port}",)
            await sandbox.destroy()
    finally:
        site.next.set()
        left = node.stop()
    assert not left


async def test_nothing_of_the_network_shows_in_what_the_sandbox_wrote(box) -> None:
    await ok(box, "test -e /run/skerry || true; touch /mine")
    paths = {change.path for change in await box.diff()}
    assert "/mine" in paths
    assert not [path for path in paths if "skerry" in path or path.startswith(("/run", "/etc"))]
