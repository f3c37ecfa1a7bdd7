"""Chains of commits on real nodes: made short in the background, with the very same content."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from live_node import LiveNode
from s3_place import s3_options
from skerry.backends.shared import proc
from skerry.errors import NotFound
from skerry.images.store.store import DirectoryStore
from skerry.testing.rootfs import container_reason
from waiting import until

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(container_reason()), reason=str(container_reason())),
]

MIB = 1 << 20
MERGES = "skerry.images.commits.flattening"
# Every kind of thing that a layer can say of what is below it, in turn.
STEP = r"""
set -e; cd /srv; i=$1
mkdir -p d e/$((i % 7)); echo $i > d/$i; echo $i >> log; head -c 3000 /dev/urandom > e/$((i % 7))/r
case $((i % 10)) in
0) rm -rf d; mkdir d; echo anew > d/again;;
1) ln d/$i link$i; chmod 2750 d;;
2) rm -f /etc/motd /usr/share/doc/*/copyright; mv log log.old; cp log.old log;;
3) cp /bin/true suid; chmod 4711 suid; chown 12:34 suid;;
4) rm -f link*; ln -s d/$i soft; rm soft; ln -s /etc soft$i;;
5) rm -rf e; echo file > e; rm e; mkdir e;;
6) head -c 400000 /dev/urandom > big; touch -d @$i big; mkfifo -m 600 pipe$i;;
7) rm -f pipe* big; chmod 700 /home; chown 5:6 d;;
8) mkdir -p deep/a/b/c; echo $i > deep/a/b/c/f; rm -rf deep/a/x; mkdir deep/a/x;;
9) rm -rf deep; mkdir -m 711 deep; echo over > /etc/issue;;
esac
"""
# All that a sandbox shows of its disk: names, kinds, owners, modes, times, contents.
TREE = (
    "cd / && find . -xdev ! -path './proc*' ! -path './dev*' ! -path './sys*' ! -path './run*' "
    "! -path './tmp*' \\( -type d -printf '%p %y %m %U %G\\n' -o "
    "-printf '%p %y %m %U %G %s %T@ %l\\n' \\) | LC_ALL=C sort && "
    "find srv etc home -xdev -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum && "
    "find usr/share/doc | wc -l"
)


async def shown(sandbox) -> list[bytes]:
    """Returns what a sandbox shows of its disk, a line each."""
    told = await sandbox.run(TREE, timeout=300, output_limit=64 * MIB)
    assert told.ok, told.stderr
    assert not told.truncated
    return [*told.stdout.splitlines(), *await linked(sandbox)]


async def linked(sandbox) -> list[bytes]:
    """Returns which names are one file, a line each; a count would also tell of hidden names."""
    told = await sandbox.run("find /srv -type f -links +1 -printf '%D:%i %p\\n'")
    files: dict[bytes, list[bytes]] = {}
    for line in told.stdout.splitlines():
        inode, _, path = line.partition(b" ")
        files.setdefault(inode, []).append(path)
    return sorted(b" ".join(sorted(names)) for names in files.values() if len(names) > 1)


async def step(client, number: int, name: str, **options):
    """One turn: a sandbox from the last commit, some work, the next commit; returns the sandbox."""
    sandbox = await client.sandboxes.create(**options)
    told = await sandbox.run(["sh", "-c", STEP, "sh", str(number)], timeout=120)
    assert told.ok, told.stderr
    await sandbox.commit(name, scrub=[])
    return sandbox


def merging(node: LiveNode) -> int:
    """Returns the process apart in which the node merges; 0 if there is none."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if MERGES.encode() in words and parent == node.pid:
                return int(name)
    return 0


@pytest.fixture
def own_store(layer_store, tmp_path: Path):
    """A store of one's own with the base in it, and without what other tests' nodes need of theirs."""
    place = f"/var/tmp/skerry-chains-{os.getpid()}"

    def of_nodes(directory: str, names: list[str]) -> list[str]:
        return names if Path(directory).name in ("leases", "gc") else []

    shutil.copytree(layer_store, place, ignore=of_nodes, copy_function=os.link)
    yield place
    shutil.rmtree(place)


def chains(store: str) -> set[str]:
    place = Path(store, "chains")
    return {one.name for one in place.iterdir()} if place.exists() else set()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_chain_of_100_commits_is_restored_by_few_layers_and_shows_the_same(
    own_store: str,
) -> None:
    with LiveNode(own_store).running() as node:
        async with node.client() as client:
            sandbox = await step(client, 0, "workspace/turn")
            for number in range(1, 100):
                await sandbox.destroy()
                # Every tenth under a name of its own, which stays.
                name = f"workspace/turn-{number}" if number % 10 == 0 else "workspace/turn"
                last = f"workspace/turn-{number - 1}" if number % 10 == 1 else "workspace/turn"
                sandbox = await step(
                    client, number, name, restore=last if number > 1 else "workspace/turn"
                )
            before = await shown(sandbox)
            await sandbox.destroy()

            async def short() -> bool:
                made = await client.sandboxes.restore("workspace/turn")
                mounts = len((await made.info()).mounts)
                await made.destroy()
                return mounts <= 1 + 4

            await until(short, 120, 0.5)
            made = await client.sandboxes.restore("workspace/turn")
            assert await shown(made) == before
            assert (await made.run("tail -n 1 /srv/log")).stdout == b"99\n"
            layer = await client.images.inspect("workspace/turn")
            assert len(layer.below) <= 60
            await made.destroy()
            for number in range(10, 100, 10):
                await client.images.remove(f"workspace/turn-{number}")
            await client.images.remove("debian:12")
            report = await client.images.collect()
            assert report.removed
            made = await client.sandboxes.restore("workspace/turn")
            assert await shown(made) == before
            await made.destroy()
            assert chains(own_store)
            await client.images.remove("workspace/turn")

            seen: list[object] = []

            async def gone() -> bool:  # what was merged just now is held for a moment
                seen[:] = [await client.images.collect(), chains(own_store)]
                seen.append(list(DirectoryStore(own_store).list()))
                return not seen[1] and not seen[2]

            try:
                await until(gone, 120, 1.0)
            except AssertionError:
                pytest.fail(f"not all was collected: {seen}")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_killed_while_it_merges_it_does_so_at_its_next_start_and_other_nodes_have_it(
    own_store: str,
) -> None:
    node, other = LiveNode(own_store), LiveNode(own_store, options='mounts = "verified"')
    with node.running(), other.running():
        async with node.client() as client:
            options: dict[str, str] = {}
            for number in range(5):
                sandbox = await client.sandboxes.create(**options)
                made = await sandbox.run(
                    f"head -c 20M /dev/urandom > /srv/r{number}; echo {number} > /srv/n; "
                    "rm -rf /usr/share/doc"
                )
                assert made.ok
                before = await shown(sandbox)
                await sandbox.commit(f"workspace/n{number}", scrub=[])
                await sandbox.destroy()
                options = {"restore": f"workspace/n{number}"}
            await until(lambda: merging(node) > 0)
            child = merging(node)
            os.kill(node.pid, signal.SIGSTOP)  # it can make nothing of what its child does
            node.kill()
            await until(lambda: not proc.runs(child))  # it ends with its node
            assert chains(own_store) == set()
            async with other.client() as there:
                made = await there.sandboxes.restore("workspace/n4")  # whole meanwhile
                assert len((await made.info()).mounts) == 6
                assert (await made.run("cat /srv/n")).stdout == b"4\n"
                await made.destroy()
                node.start()  # both of them are at it now
                await until(lambda: bool(chains(own_store)), 120)

                async def short() -> bool:
                    made = await there.sandboxes.restore("workspace/n4")
                    mounts = len((await made.info()).mounts)
                    await made.destroy()
                    return mounts == 2

                await until(short, 60, 0.5)
                made = await there.sandboxes.restore("workspace/n4")
                assert await shown(made) == before
                await until(lambda: not merging(node) and not merging(other), 120)
                for number in range(4):
                    await there.images.remove(f"workspace/n{number}")
                await there.images.collect()  # what the killed one made is of no use to anyone
                assert await shown(made) == before
                again = await client.sandboxes.restore("workspace/n4")
                assert await shown(again) == before
                await again.destroy()
                await made.destroy()
                with pytest.raises(NotFound):
                    await there.sandboxes.restore("workspace/n3")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="there is no /dev/fuse")
async def test_chain_in_a_bucket_is_merged_there_and_restored_on_another_node(
    s3_server, tmp_path: Path
) -> None:
    given = s3_options(s3_server, tmp_path)
    options = f"""
store = "s3://{s3_server.bucket}/{tmp_path.name}"
collect_every_s = 0
chain_commits_max = 1
[s3]
endpoint = "{given.endpoint}"
access_key = "{given.access_key}"
secret_key = "{given.secret_key}"
"""
    with LiveNode(store="", options=options).running() as one:
        async with one.client() as client:
            await client.images.debian("debian:12", "bookworm")
            sandbox = await step(client, 0, "workspace/b0")
            for number in range(1, 5):
                await sandbox.destroy()
                last = f"workspace/b{number - 1}"
                sandbox = await step(client, number, f"workspace/b{number}", restore=last)
            before = await shown(sandbox)
            await sandbox.destroy()

            async def short() -> bool:
                made = await client.sandboxes.restore("workspace/b4")
                mounts = len((await made.info()).mounts)
                await made.destroy()
                return mounts == 2

            await until(short, 120, 0.5)
    with LiveNode(store="", options=options).running() as two:
        async with two.client() as client:
            made = await client.sandboxes.restore("workspace/b4")
            info = await made.info()
            assert len(info.mounts) == 2
            assert info.restored is not None
            assert info.restored.startswith("workspace/b4:latest@sha256:")
            assert await shown(made) == before
