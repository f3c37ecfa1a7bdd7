"""Paths that are read-only or hidden in a sandbox, tried from inside by root; and stages of a task.

The control is the same on a node whose launcher leaves its masks out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skerry.errors import InvalidRequest, SkerryError
from skerry.spec.stages import AgentStage, Setup, Stages, VerifyStage
from skerry.spec.verdict import Outcome
from skerry.worker import Downloads, load_tasks, run_job
from skerry.worker.session import Needs, Session

pytestmark = pytest.mark.root

FILE, FOLDER = "/usr/lib/os-release", "/usr/share/keyrings"
READONLY = (FILE, FOLDER)
HIDDEN = ("/usr/lib/os-release", "/usr/share/doc")
PYTHON = r"""
import ctypes, os, sys
file, folder = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.umount2(folder.encode(), 2)
libc.mount(None, folder.encode(), None, 4096 | 32, None)
for attempt in (
    lambda: os.link(file, "/tmp/same"),
    lambda: open("/tmp/same", "w").write("changed"),
    lambda: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=os.open(folder, os.O_RDONLY)),
    lambda: os.setxattr(file, "user.x", b"1"),
):
    try:
        attempt()
    except OSError as error:
        print(error)
"""
# Each must fail or change nothing. What is looked at afterwards is what is there.
TRIES = r"""
echo changed > $F; echo changed >> $F; truncate -s 0 $F; rm -f $F; mv $F $F.x; ln $F $F.y
cp /dev/null $F; chmod 777 $F; chown 1 $F; touch -d 2001-01-01 $F; sed -i s/./x/ $F
touch $D/new; rm -rf $D; mv $D $D.x; mkdir $D/sub; ln -s / $D/link; chmod 777 $D
mount -o remount,rw $D; mount -o remount,rw,bind $D; umount $D; umount -l $D; umount $F
mount --bind /tmp $D; unshare -m umount $D; nsenter -t 1 -m umount $D
for p in /proc/1/root /proc/self/root /proc/$$/root; do echo changed > $p$F; touch $p$D/new; done
python3 /tmp/tries.py $F $D
true
"""
LOOK = "sha256sum $F; stat -c '%a %u %Y' $F $D; find $D -mindepth 1 | sort"
NAMES = {"F": FILE, "D": FOLDER}
READ = (
    "cat /usr/lib/os-release /etc/os-release /proc/self/root/usr/lib/os-release; "
    "umount /usr/share/doc; umount -l /usr/share/doc; ls -A /usr/share/doc; "
    "ls -A /proc/self/root/usr/share/doc; cp -a /usr/share/doc /tmp/copy; ls -A /tmp/copy; true"
)


async def tried(sandbox: Any) -> tuple[str, str]:
    """Returns what is there before and after everything was tried."""
    await sandbox.files.write("/tmp/tries.py", PYTHON)
    before = (await sandbox.run(LOOK, env=NAMES)).text
    result = await sandbox.run(TRIES, env=NAMES, timeout=60)
    assert result.exit_code == 0, result.error_text
    return before, (await sandbox.run(LOOK, env=NAMES)).text


async def test_root_inside_changes_nothing_that_is_read_only(node_client: Any, weak: Any) -> None:
    async with await node_client.sandboxes.create(readonly=READONLY) as sandbox:
        before, after = await tried(sandbox)
        assert FOLDER + "/" in before, "there is something to lose"
        assert after == before
        # Not through the file API either.
        for path in (FILE, f"{FOLDER}/new"):
            with pytest.raises(SkerryError):
                await sandbox.files.write(path, b"changed")
        assert (await sandbox.run(LOOK, env=NAMES)).text == before
        inside = [change.path for change in await sandbox.diff() if change.path.startswith(FOLDER)]
        assert inside == []
        # What lies beside them can be written.
        assert (await sandbox.run("touch /usr/share/beside /usr/lib/beside")).ok
    async with weak("network,masks", readonly=READONLY) as box:
        before, after = await tried(box.sandbox)
        assert after != before


async def test_root_inside_sees_nothing_that_is_hidden(node_client: Any, weak: Any) -> None:
    async with await node_client.sandboxes.create(hidden=HIDDEN) as sandbox:
        assert (await sandbox.run(READ)).text == ""
        assert (await sandbox.run("echo x > /usr/share/doc/new || echo no")).text == "no\n"
        with pytest.raises(SkerryError):
            await sandbox.files.read("/usr/share/doc/bash/copyright")
    async with weak("network,masks", hidden=HIDDEN) as box:
        seen = (await box.sandbox.run(READ)).text
        assert "ID=debian" in seen
        assert "bash" in seen


async def test_hidden_lies_within_read_only_and_a_fork_has_both(node_client: Any) -> None:
    covers = {"readonly": ("/usr/share",), "hidden": ("/usr/share/doc",)}
    async with await node_client.sandboxes.create(**covers, disk="64MiB") as sandbox:
        twins = await sandbox.fork(1)
        try:
            for one in (sandbox, *twins):
                seen = await one.run("ls -A /usr/share/doc; touch /usr/share/new || echo no")
                assert seen.text == "no\n"
        finally:
            for twin in twins:
                await twin.destroy()


async def test_a_path_that_is_not_there_is_the_callers_fault(node_client: Any) -> None:
    for what in ("readonly", "hidden"):
        with pytest.raises(InvalidRequest, match=what):
            await node_client.sandboxes.create(**{what: ["/not/there"]})
    assert await node_client.sandboxes.list() == []


class Looks:
    """A policy that fixes the bug, and says what it sees and can do."""

    name = "looks"
    needs = Needs()

    def __init__(self) -> None:
        self.said = ""

    def variant(self, task_index: int, rollout_index: int) -> str:
        return ""

    async def act(self, session: Session, variant: str) -> None:
        result = await session.run(
            "id -un; cat /opt/made; env | grep -ci proxy; echo x >> tests.py || echo kept; "
            "rm -f tests.py || echo kept; ls -A /opt/answers; ls /opt/answers/solution || echo none"
        )
        self.said = result.text
        assert (await session.run(["patch", "-p1"], stdin=session.environment.patch)).ok


# Looked at when the tests import it, in the verifier.
SEEN = """
import os as _os
if _os.getuid():
    assert open("/opt/made").read() == "by setup\\n"
    assert _os.listdir("/opt/answers") == ["solution"]
    assert not [name for name in _os.environ if "proxy" in name.lower()]
    assert not _os.listdir("/usr/share/doc")
"""


async def test_what_belongs_to_a_stage_exists_in_it_only(node_client: Any, tmp_path: Path) -> None:
    examples = Path(__file__).parents[2] / "examples" / "tasks"
    spec = load_tasks([examples / "jsonpatch-1.32"])[0]
    stages = Stages(
        setup=Setup(
            (
                "useradd -m agent && chown -R agent:agent /testbed",
                "echo by setup > /opt/made && mkdir /opt/answers && echo 42 > /opt/answers/solution",
                f"cat >> jsonpatch.py <<'END'\n{SEEN}END\n",
            )
        ),
        agent=AgentStage(
            "agent", network=("example.org",), readonly=("tests.py",), hidden=("/opt/answers",)
        ),
        verify=VerifyStage(hidden=("/usr/share/doc",)),
    )
    policy = Looks()
    summary = await run_job(
        node_client,
        [msgspec.structs.replace(spec, stages=stages).check()],
        [policy],
        downloads=Downloads(Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry")), os.environ),
        jobs_dir=tmp_path,
    )
    record = summary.records[0]
    user, made, proxies, *rest = policy.said.splitlines()
    assert (user, made) == ("agent", "by setup")
    assert int(proxies) > 0
    assert rest == ["kept", "kept", "none"]
    assert (record.verdict, record.reward) == (Outcome.PASSED, 1.0), record.detail
