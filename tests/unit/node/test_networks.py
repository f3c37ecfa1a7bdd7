"""Networks of sandboxes: the proxy's port, what is set inside, changes while they live, restarts."""

from __future__ import annotations

import asyncio

import pytest

from skerry.network.services import NetworkConfig, Service
from skerry.node.config import NodeConfig

PORT = 3128
SOURCES = """# comment
Enabled: no
Types: deb
URIs: @DEBIAN_URI@
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Enabled: no
URIs: @DEBIAN_SECURITY_URI@
Suites: bookworm-security
Components: main contrib
Signed-By: /k.gpg

URIs: http://own.example/debian
Suites: bookworm
"""


def inside(stand, sandbox_id):
    return stand.world.instances[sandbox_id].agent.ports


async def environment(api, sid: str, **command) -> dict[str, str]:
    body = {"argv": ["env"], **command}
    result = await api.call("POST", f"/v1/sandboxes/{sid}/run", body)
    import base64

    lines = base64.b64decode(result.get("stdout", "")).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


async def ask(stand, sid: str, request: bytes) -> bytes:
    stream = inside(stand, sid).connect(PORT)
    await stream.write(request)
    stream.end()
    return await stream.read_all()


def line(host: str, port: int = 80) -> bytes:
    where = f"{host}:{port}" if port != 80 else host
    return f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\nConnection: close\r\n\r\n".encode()


async def web(reader, writer) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    await writer.drain()
    writer.close()


@pytest.fixture
async def site():
    server = await asyncio.start_server(web, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def network(**changes) -> NetworkConfig:
    return NetworkConfig(addresses={"site.test": ("127.0.0.1",)}, **changes)


async def test_port_of_the_proxy_is_there_before_the_sandbox_is(stand, site) -> None:
    async with stand.serving(network=network()) as (_, api):
        sid = await api.create(network=[f"site.test:{site}"])
        assert await ask(stand, sid, line("site.test", site)) == (
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nConnection: close\r\n\r\nhello"
        )
        view = await api.call("GET", f"/v1/sandboxes/{sid}/network")
        assert view["hosts"] == [f"site.test:{site}"]
        assert view["totals"] == {"allowed": 1, "refused": 0, "failed": 0}
        assert view["decisions"][0]["host"] == "site.test"
        variables = await environment(api, sid)
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            assert variables[name] == f"http://127.0.0.1:{PORT}"
        assert "127.0.0.1" in variables["no_proxy"]
        assert variables["no_proxy"] == variables["NO_PROXY"]


async def test_without_entries_there_is_nothing_however_it_was_made(stand) -> None:
    """No network is air-gapped on every path by which a sandbox is made (report 64)."""
    async with stand.serving() as (node, api):
        made = [await api.create(), await api.create(network=[], key="k")]
        made.append(await api.create(network=[], key="k"))
        batch = await api.call("POST", "/v1/sandboxes/batch", {"spec": {"network": []}, "count": 3})
        made += [item["info"]["id"] for item in batch["items"]]
        for sid in made:
            assert not inside(stand, sid).listening
            assert node.sandboxes.get(sid).gateway is None
            assert not [name for name in await environment(api, sid) if "proxy" in name.lower()]
            view = await api.call("GET", f"/v1/sandboxes/{sid}/network")
            assert view.get("network", []) == []
            inside(stand, sid).agent.connection.close()
    async with stand.serving() as (node, api):  # another node process takes them over
        for sid in set(made):
            await environment(api, sid)
            assert not inside(stand, sid).listening
            assert node.sandboxes.get(sid).gateway is None


async def test_control_a_batch_with_entries_has_a_gateway_each(stand) -> None:
    async with stand.serving() as (node, api):
        batch = await api.call(
            "POST", "/v1/sandboxes/batch", {"spec": {"network": ["pypi"]}, "count": 3}
        )
        gateways = {id(node.sandboxes.get(item["info"]["id"]).gateway) for item in batch["items"]}
        assert len(gateways) == 3
        for item in batch["items"]:
            assert PORT in inside(stand, item["info"]["id"]).listening


@pytest.mark.parametrize("entry", ["pipy", "http://x.org", "10.0.0.0/8", "*:80:1", ""])
async def test_entry_that_is_none_or_unknown_makes_nothing(stand, entry: str) -> None:
    async with stand.serving() as (_, api):
        error = await api.call("POST", "/v1/sandboxes", {"network": [entry]}, status=422)
        assert error["code"] == "invalid"
        assert "network" in error["message"]
        assert stand.world.created == 0
        sid = await api.create(network=["pypi"])
        body = {"network": [entry]}
        await api.call("PUT", f"/v1/sandboxes/{sid}/network", body, status=422)
        view = await api.call("GET", f"/v1/sandboxes/{sid}/network")
        assert view["network"] == ["pypi"]


async def test_port_is_served_again_after_a_lost_channel(stand, site) -> None:
    async with stand.serving(network=network()) as (_, api):
        sid = await api.create(network=[f"site.test:{site}"])
        for _ in range(3):
            ports = inside(stand, sid)
            ports.heard.clear()
            ports.agent.connection.close()
            await asyncio.wait_for(ports.heard.wait(), 5)
            assert b"hello" in await ask(stand, sid, line("site.test", site))


async def test_policy_and_its_change_survive_a_restart_of_the_node(stand, site) -> None:
    config = network()
    async with stand.serving(network=config) as (_, api):
        sid = await api.create(network=["pypi"], key="mine")
        body = {"network": [f"site.test:{site}"]}
        await api.call("PUT", f"/v1/sandboxes/{sid}/network", body)
        assert b"hello" in await ask(stand, sid, line("site.test", site))
    async with stand.serving(network=config) as (_, api):
        view = await api.call("GET", f"/v1/sandboxes/{sid}/network")
        assert view["network"] == [f"site.test:{site}"]
        assert b"hello" in await ask(stand, sid, line("site.test", site))
        assert b"403" in await ask(stand, sid, line("pypi.example"))
        # the repeat of its create still finds it
        assert await api.create(network=["pypi"], key="mine") == sid


async def test_service_that_the_operator_took_away_opens_nothing_after_a_restart(stand) -> None:
    wiki = network(services={"wiki": Service(hosts=("wiki.example",), env={"WIKI": "1"})})
    async with stand.serving(network=wiki) as (_, api):
        sid = await api.create(network=["wiki"])
        assert (await environment(api, sid))["WIKI"] == "1"
    async with stand.serving(network=network()) as (_, api):
        assert b"403" in await ask(stand, sid, line("wiki.example"))
        assert (await api.call("GET", f"/v1/sandboxes/{sid}"))["state"] == "running"


async def test_live_change_opens_closes_and_takes_the_port_away(stand, site) -> None:
    async with stand.serving(network=network()) as (_, api):
        sid = await api.create()
        path = f"/v1/sandboxes/{sid}/network"
        await api.call("PUT", path, {"network": [f"site.test:{site}"]})
        assert b"hello" in await ask(stand, sid, line("site.test", site))
        assert "http_proxy" in await environment(api, sid)
        await api.call("PUT", path, {"network": ["pypi"]})
        assert b"403" in await ask(stand, sid, line("site.test", site))
        await api.call("PUT", path, {"network": []})
        for _ in range(100):
            if not inside(stand, sid).listening:
                break
            await asyncio.sleep(0.01)
        with pytest.raises(ConnectionRefusedError):
            inside(stand, sid).connect(PORT)
        assert "http_proxy" not in await environment(api, sid)
        await api.call("PUT", path, {"network": [f"site.test:{site}"]})
        assert b"hello" in await ask(stand, sid, line("site.test", site))


async def test_changes_at_once_take_effect_one_by_one(stand, site) -> None:
    some, none = (f"site.test:{site}",), ()
    async with stand.serving(network=network()) as (node, api):
        sid = await api.create()
        sandbox = node.sandboxes.get(sid)
        for changes in ((some, some), (none, some, none), (some, none), (none, some)):
            await asyncio.gather(*(node.control.set_network(sandbox, one) for one in changes))
            assert sandbox.spec.network == changes[-1]
            assert (sandbox.proxy_port is not None) == bool(changes[-1])
        answer = await ask(stand, sid, line("site.test", site))
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_users_own_variables_win(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create(network=["pypi"], env={"http_proxy": "mine"})
        variables = await environment(api, sid, env={"NO_PROXY": "x"})
        assert variables["http_proxy"] == "mine"
        assert variables["NO_PROXY"] == "x"
        assert variables["https_proxy"] == f"http://127.0.0.1:{PORT}"


async def test_session_knows_the_proxy_too(stand) -> None:
    import base64

    async with stand.serving() as (_, api):
        sid = await api.create(network=["pypi"])
        await api.call("POST", f"/v1/sandboxes/{sid}/sessions", {"id": "one"})
        body = {"shell": "env", "session": "one"}
        ran = await api.call("POST", f"/v1/sandboxes/{sid}/run", body)
        text = base64.b64decode(ran["stdout"]).decode()
        assert f"https_proxy=http://127.0.0.1:{PORT}\n" in text


async def test_service_environment_is_set_where_it_is_allowed_only(stand) -> None:
    services = {
        "pypi": Service(hosts=("mirror.test",), env={"PIP_INDEX_URL": "http://mirror.test"})
    }
    async with stand.serving(network=network(services=services)) as (_, api):
        with_it = await api.create(network=["pypi"])
        without = await api.create(network=["npm"])
        assert (await environment(api, with_it))["PIP_INDEX_URL"] == "http://mirror.test"
        assert "PIP_INDEX_URL" not in await environment(api, without)
        assert "APT_CONFIG" not in await environment(api, with_it)


async def read(api, sid: str, path: str) -> str | None:
    async with api.session.get(f"/v1/sandboxes/{sid}/files?path={path}") as answer:
        return await answer.text() if answer.status == 200 else None


async def test_apt_is_told_in_files_that_no_diff_shows(stand) -> None:
    async with stand.serving() as (_, api):
        plain = await api.create(network=["debian"])
        # an image without placeholders keeps its own sources
        assert await read(api, plain, "/run/skerry/debian.list") == ""
        conf = await read(api, plain, "/run/skerry/apt.conf")
        assert f'Acquire::http::Proxy "http://127.0.0.1:{PORT}";' in conf
        assert "sourcelist" not in conf
        assert (await environment(api, plain))["APT_CONFIG"] == "/run/skerry/apt.conf"

        files = stand.world.instances[plain].files
        files.write("/etc/apt/sources.list.d/debian.sources", 0o644, "p", SOURCES.encode())
        await api.call("PUT", f"/v1/sandboxes/{plain}/network", {"network": ["debian", "pypi"]})
        main, security = (await read(api, plain, "/run/skerry/debian.list")).splitlines()
        key = "/usr/share/keyrings/debian-archive-keyring.gpg"
        assert main == f"deb [signed-by={key}] http://deb.example/debian bookworm main"
        place = "http://deb.example/security bookworm-security main contrib"
        assert security == f"deb [signed-by=/k.gpg] {place}"
        assert "sourcelist" in await read(api, plain, "/run/skerry/apt.conf")

        other = await api.create(network=["pypi"])
        assert await read(api, other, "/run/skerry/apt.conf") is None


async def test_page_of_metrics_counts_what_the_proxy_said(stand, site) -> None:
    async with stand.serving(network=network()) as (_, api):
        sid = await api.create(network=[f"site.test:{site}"])
        await ask(stand, sid, line("site.test", site))
        for _ in range(2):
            await ask(stand, sid, line("evil.example"))
        async with api.session.get("/metrics") as answer:
            page = await answer.text()
    assert "skerry_network_allowed_total 1" in page
    assert "skerry_network_refused_total 2" in page
    assert "skerry_network_connections 0" in page


async def test_ended_sandbox_still_shows_what_it_asked_for(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create(network=["pypi"])
        assert b"403" in await ask(stand, sid, line("evil.example"))
        await api.call("POST", f"/v1/sandboxes/{sid}/stop")
        view = await api.call("GET", f"/v1/sandboxes/{sid}/network")
        assert view["decisions"][0]["verdict"] == "refused"
        body = {"network": []}
        await api.call("PUT", f"/v1/sandboxes/{sid}/network", body, status=410)


def test_configuration_of_the_network_is_checked_with_the_node(tmp_path) -> None:
    from skerry.errors import InvalidRequest

    with pytest.raises(InvalidRequest, match=r"network\.port"):
        NodeConfig(
            state_dir=str(tmp_path),
            run_dir=str(tmp_path),
            store_dir=str(tmp_path),
            network=NetworkConfig(port=0),
        ).check()
