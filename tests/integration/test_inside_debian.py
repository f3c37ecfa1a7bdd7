"""What people do inside a sandbox that is a Debian: users, packages, locale, private places."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.root

PACKAGE = """
set -e
mkdir -p /tmp/p/DEBIAN /tmp/p/usr/local/bin /tmp/p/etc
printf 'Package: hello-skerry\\nVersion: 1\\nArchitecture: all\\nMaintainer: m <m@example.org>\\n' \\
  > /tmp/p/DEBIAN/control
printf 'Description: a package made inside\\n' >> /tmp/p/DEBIAN/control
printf '#!/bin/sh\\nset -e\\nadduser --system --group --no-create-home hellod\\n' \\
  > /tmp/p/DEBIAN/postinst
chmod 755 /tmp/p/DEBIAN/postinst
printf '#!/bin/sh\\necho hello\\n' > /tmp/p/usr/local/bin/hello-skerry
chmod 4755 /tmp/p/usr/local/bin/hello-skerry
dpkg-deb --root-owner-group --build /tmp/p /tmp/hello.deb
"""

WHEEL = """
import zipfile
with zipfile.ZipFile('/tmp/tiny_skerry-1.0-py3-none-any.whl', 'w') as z:
    z.writestr('tiny_skerry.py', 'ANSWER = 42')
    z.writestr('tiny_skerry-1.0.dist-info/METADATA',
               'Metadata-Version: 2.1\\nName: tiny-skerry\\nVersion: 1.0')
    z.writestr('tiny_skerry-1.0.dist-info/WHEEL',
               'Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any')
    z.writestr('tiny_skerry-1.0.dist-info/RECORD',
               'tiny_skerry.py,,\\ntiny_skerry-1.0.dist-info/METADATA,,\\n'
               'tiny_skerry-1.0.dist-info/WHEEL,,\\ntiny_skerry-1.0.dist-info/RECORD,,')
"""


@pytest.fixture
async def sandbox(node_client):
    async with await node_client.sandboxes.create(memory="512MiB") as made:
        yield made


async def ok(sandbox, command, **options) -> str:
    result = await sandbox.run(command, timeout=60, **options)
    assert result.exit_code == 0, (result, result.error_text)
    return result.text


async def test_users_are_added_and_become_one_another(sandbox) -> None:
    await ok(sandbox, "adduser --disabled-password --gecos '' ada && usermod -aG games ada")
    assert await ok(sandbox, "su - ada -c 'id -un; pwd'") == "ada\n/home/ada\n"
    assert "games" in await ok(sandbox, ["id", "-Gn"], user="ada")
    assert await ok(sandbox, ["pwd"], user="ada") == "/home/ada\n"  # not root's, which is closed
    assert await ok(sandbox, ["id", "-un"], user="ada") == "ada\n"
    assert (await ok(sandbox, "echo $HOME $USER", user="ada")).split() == ["/home/ada", "ada"]
    assert await ok(sandbox, "su ada -c 'sudo -n true' || echo refused") == "refused\n"
    await ok(sandbox, "echo 'ada ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ada")
    assert await ok(sandbox, ["sudo", "-n", "id", "-u"], user="ada") == "0\n"


async def test_packages_are_made_installed_and_removed(sandbox) -> None:
    await ok(sandbox, PACKAGE)
    await ok(sandbox, ["apt-get", "install", "-y", "/tmp/hello.deb"])
    assert await ok(sandbox, ["hello-skerry"]) == "hello\n"
    assert (
        await ok(sandbox, "stat -c %a /usr/local/bin/hello-skerry; id -un hellod")
        == "4755\nhellod\n"
    )
    await ok(sandbox, ["dpkg", "--purge", "hello-skerry"])
    assert (await sandbox.run(["hello-skerry"])).start_error is not None
    await ok(sandbox, ["apt-get", "purge", "-y", "less"])  # of a layer below
    assert (await sandbox.run("command -v less")).exit_code != 0


async def test_python_packages_are_installed_from_a_file(sandbox) -> None:
    await ok(sandbox, ["python3", "-c", WHEEL])
    install = "pip install --no-index --break-system-packages /tmp/tiny_skerry-1.0-py3-none-any.whl"
    await ok(sandbox, install)
    assert (
        await ok(sandbox, ["python3", "-c", "import tiny_skerry as t; print(t.ANSWER)"]) == "42\n"
    )
    await ok(
        sandbox, "python3 -m venv /tmp/v && /tmp/v/bin/python -c 'import sys; print(sys.prefix)'"
    )


async def test_text_is_utf8_and_libraries_find_what_they_need(sandbox) -> None:
    code = (
        "import sys, locale; print(sys.stdout.encoding, locale.getpreferredencoding(), 'naïve ✓')"
    )
    assert await ok(sandbox, ["python3", "-c", code]) == "utf-8 UTF-8 naïve ✓\n"
    code = (
        "import multiprocessing as m, os, socket, tempfile\n"
        "with m.Pool(2) as p: print(sum(p.map(abs, range(-5, 5))))\n"
        "s = socket.create_server(('127.0.0.1', 80)); print(s.getsockname()[1])\n"
        "print(os.cpu_count() >= 1, len(os.sched_getaffinity(0)), os.path.exists('/dev/shm'))\n"
    )
    await sandbox.files.write(
        "/tmp/t.py", f"if __name__ == '__main__':\n    {code.replace(chr(10), chr(10) + '    ')}"
    )
    assert await ok(sandbox, ["python3", "/tmp/t.py"]) == "25\n80\nTrue 1 True\n"


async def test_etc_tmp_and_shared_memory_are_private_and_writable(node_client, sandbox) -> None:
    async with await node_client.sandboxes.create() as other:
        await ok(sandbox, "echo mine | tee /etc/motd /tmp/x /dev/shm/x /run/x")
        for path in ("/tmp/x", "/dev/shm/x", "/run/x"):
            assert not await other.files.exists(path)
        assert await other.files.read_text("/etc/motd") != "mine\n"
    assert await ok(sandbox, "stat -c %a /tmp /dev/shm") == "1777\n1777\n"


async def test_git_works_with_its_usual_steps(sandbox) -> None:
    await ok(
        sandbox,
        "git init -q r && cd r && git config user.email a@b && git config user.name n && echo x > f "
        "&& git add f && git commit -qm one && git clone -q . ../c && cd ../c && git log -1",
        cwd="/root",
    )
