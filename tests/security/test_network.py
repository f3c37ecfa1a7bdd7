"""The network inside is a loopback of its own and nothing else."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

pytestmark = pytest.mark.root


@contextlib.contextmanager
def host_service():
    """A service on the host's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_there_is_one_interface_and_no_way_out(box):
    interfaces = (await box.sh("tail -n +3 /proc/net/dev | cut -d: -f1")).text.split()
    assert interfaces == ["lo"]
    assert (await box.sh("tail -n +2 /proc/net/route; cat /proc/net/arp | tail -n +2")).text == ""
    routes = (await box.sh("cat /proc/net/ipv6_route")).text
    assert {line.split()[-1] for line in routes.splitlines()} <= {"lo"}
    results = await box.attack("network")
    unreachable = {"ENETUNREACH", "EHOSTUNREACH"}
    for name in ("metadata", "internet", "udp_out", "inet6_out"):
        assert results[name] in unreachable, results
    for name in ("raw", "packet", "vsock", "alg", "bluetooth", "lo_down", "tun"):
        assert results[name] in {"EPERM", "EAFNOSUPPORT"}, results


async def test_services_of_the_host_are_not_reached(box):
    with host_service() as port:
        assert await box.attack("connect", str(port)) == {"connect": "ECONNREFUSED"}


async def test_control_in_the_hosts_network_they_are(weak):
    async with weak("network,masks") as box:
        with host_service() as port:
            assert await box.attack("connect", str(port)) == {"connect": "ok"}


async def test_services_of_one_sandbox_are_not_reached_from_another(box, node_client, armed):
    line = """python3 -c 'import socket; s = socket.create_server(("0.0.0.0", 8080)); s.accept()' &
        until grep -q :1F90 /proc/net/tcp; do :; done"""
    async with armed(node_client) as other:
        assert (await other.sh(f"setsid sh -c '{line}' >/dev/null 2>&1", timeout=20)).ok is not None
        assert await box.attack("connect", "8080") == {"connect": "ECONNREFUSED"}
