"""What a session is worth when its client is gone; and the calls of the SDK, one by one."""

from __future__ import annotations

import asyncio
import io
import json
import os
import secrets
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from agents import RunConfig, Runner
from agents.run_config import SandboxRunConfig
from agents.sandbox import LocalSnapshotSpec, Manifest
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    PtySessionNotFoundError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.testing import ScriptedModel, assistant_message
from scripted_agents import agent, outputs, shell

import skerry
from interop.looking import examples, interrupted, sandboxes, until
from skerry.compat.openai_agents import SkerrySandboxClient, SkerrySandboxClientOptions

IMAGE = os.environ["INTEROP_IMAGE"]
ROOT = "/workspace"


def options(**more):
    return SkerrySandboxClientOptions(image=IMAGE, **more)


async def session(**more):
    client = SkerrySandboxClient()
    made = await client.create(options=options(**more))
    await made.start()
    return client, made


@pytest.fixture
async def open_session():
    client, made = await session(exposed_ports=(8000, 8001))
    yield made
    await made.shutdown()
    await client.delete(made)


async def text(made, *command, **more):
    result = await made.exec(*command, **more)
    return result.stdout.decode()


def run_config(**more):
    return RunConfig(tracing_disabled=True, sandbox=SandboxRunConfig(**more))


# --- create, run, persist, the client is gone, resume, it goes on


@pytest.mark.parametrize("persistence", ["commit", "tar"])
async def test_a_run_goes_on_in_another_process_after_its_client_is_gone(persistence, tmp_path):
    """The first half runs in a process of its own, which ends; all that is left is a JSON text."""
    label = secrets.token_hex(8)
    script = Path(__file__).with_name("first_half.py")
    argv = [sys.executable, str(script), persistence, str(tmp_path), label]
    await asyncio.to_thread(subprocess.run, argv, check=True, timeout=120)
    assert not sandboxes(job=label)  # only what was kept is left
    client = SkerrySandboxClient()
    state = client.deserialize_session_state(json.loads((tmp_path / "state.json").read_text()))
    result = await Runner.run(
        agent(shell("cat work/progress; echo second >> work/progress; cat work/progress; ls /opt")),
        "go on",
        run_config=run_config(client=client, session_state=state),
    )
    said = outputs(result)[0]
    assert "\nfirst\nfirst\nsecond\n" in said
    # A commit holds the whole disk, a tar only the workspace.
    assert ("outside" in said) is (persistence == "commit")
    assert not sandboxes(job=label)
    if persistence == "commit":
        with skerry.connect() as other:
            other.images.remove(f"workspace/openai-agents:{state.session_id.hex}")


async def test_a_paused_session_is_found_again_with_its_processes():
    client, made = await session(on_exit="pause", ttl=600)
    await made.exec("nohup sleep 600 >/dev/null 2>&1 & echo $! > pid")
    payload = json.dumps(client.serialize_session_state(made.state))
    await made.aclose()
    with skerry.connect() as other:
        assert other.sandboxes.get(made.state.sandbox_id).info().state == "paused"
    assert "sandbox_id" in payload
    later = SkerrySandboxClient()
    state = later.deserialize_session_state(json.loads(payload))
    async with await later.resume(state) as again:
        assert again.state.sandbox_id == made.state.sandbox_id
        assert await text(again, "kill -0 $(cat pid) && echo alive") == "alive\n"
        await again.exec("echo more > note")
    async with await later.resume(state) as again:
        assert await text(again, "cat note") == "more\n"
    await later.destroy(state)
    await later.destroy(state)
    assert state.sandbox_id not in sandboxes()


async def test_a_client_that_died_without_a_word_is_followed_by_another():
    client, made = await session()
    await made.exec("echo kept > file")
    state = client.deserialize_session_state(client.serialize_session_state(made.state))
    await made._inner.disconnect()  # as if its process had been killed
    async with await SkerrySandboxClient().resume(state) as again:
        assert again.state.sandbox_id == made.state.sandbox_id
        assert await text(again, "cat file") == "kept\n"
    assert made.state.sandbox_id not in sandboxes()


async def test_a_session_is_kept_by_one_commit_however_often_it_is_kept(tmp_path):
    client = SkerrySandboxClient()
    made = await client.create(options=options(), snapshot=LocalSnapshotSpec(base_path=tmp_path))
    await made.start()
    for number in range(3):
        await made.exec(f"echo {number} > n")
        await made.stop()
    state = made.state
    await made.shutdown()
    name = f"workspace/openai-agents:{state.session_id.hex}"
    with skerry.connect() as other:
        assert sum(state.session_id.hex in layer.name for layer in other.images.list()) == 1
        async with await client.resume(state) as again:
            assert await text(again, "cat n") == "2\n"
        other.images.remove(name)
    # What it needs is gone: that is told, and no empty workspace is handed over.
    with pytest.raises(WorkspaceArchiveWriteError):
        await (await client.resume(state)).start()
    with skerry.connect() as other:
        for info in other.sandboxes.list(labels={"session": state.session_id.hex}):
            other.sandboxes.get(info.id).destroy()


async def test_a_tar_has_no_ephemeral_entries_and_hostile_ones_are_refused(open_session):
    made = open_session
    made.state.workspace_persistence = "tar"
    await made.exec(
        "mkdir -p keep drop && echo a > keep/a && ln -s /etc/passwd keep/link && echo b > drop/b"
    )
    made.register_persist_workspace_skip_path("drop")
    kept = await made.persist_workspace()
    content = kept.read()
    kept.close()
    await made.exec("rm -rf keep drop")
    await made.hydrate_workspace(io.BytesIO(content))
    assert await text(made, "ls; cat keep/a; readlink keep/link") == "keep\na\n/etc/passwd\n"
    import tarfile

    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as tar:
        member = tarfile.TarInfo("../../etc/evil")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"evil"))
    for data in (
        evil.getvalue(),
        b"no tar at all" * 100,
        b'SKERRY_COMMIT_V1\n{"commit": "base/x"}',
    ):
        with pytest.raises(WorkspaceArchiveWriteError):
            await made.hydrate_workspace(io.BytesIO(data))
    assert await text(made, "ls /etc/evil 2>&1 || true") != "/etc/evil\n"


@pytest.mark.parametrize("number", range(2))
def test_examples_of_the_guide_run_as_written(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    texts = examples("openai-agents.md")
    assert len(texts) == 2
    model = ScriptedModel([shell("python3 -c 'print(6 * 7)'"), [assistant_message("It is 42.")]])
    exec(texts[number], {"model": model})
    said = capsys.readouterr().out
    assert ("It is 42." in said) is (number == 0)
    assert ("begun" in said) is (number == 1)
    with skerry.connect() as other:
        for layer in other.images.list():
            if layer.name.startswith("workspace/openai-agents:"):
                other.images.remove(layer.name)


# --- the calls, one by one


async def test_commands_and_their_ends(open_session):
    made = open_session
    result = await made.exec("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
    assert await text(made, "pwd") == f"{ROOT}\n"
    assert await text(made, "id", "-un", user="nobody", shell=False) == "nobody\n"
    assert (await made.exec("no-such-program", shell=False)).exit_code == 127
    assert (await made.exec("kill -9 $$")).exit_code == 137
    assert (await made.exec("a\0b")).exit_code == 126
    with pytest.raises(ExecTimeoutError):
        await made.exec("sleep 60", timeout=0.5)
    with pytest.raises(ValueError, match="timeout"):
        await made.exec("true", timeout=0)


async def test_files(open_session):
    made = open_session
    await made.write(Path("deep/er/file"), io.BytesIO(b"x\0y"))
    assert (await made.read(Path("deep/er/file"))).read() == b"x\0y"
    assert await made.read_bounded(Path("deep/er/file"), max_bytes=2) == b"x\0"
    with pytest.raises(WorkspaceReadNotFoundError):
        await made.read(Path("none"))
    await made.exec(
        "ln -s /etc/shadow out; ln -s /etc out2; mkfifo fifo; truncate -s 1T huge; mkdir d"
    )
    for place in ("out", "out2/shadow", "../etc/shadow"):
        with pytest.raises(Exception, match=r"manifest path|escape"):
            await made.read(Path(place))
    for place in ("fifo", "huge", "d"):
        with pytest.raises(WorkspaceArchiveReadError):
            await made.read(Path(place))
    await made.exec("chmod 700 . && echo secret > mine")
    with pytest.raises((WorkspaceArchiveReadError, WorkspaceReadNotFoundError)):
        await made.read(Path("mine"), user="nobody")
    await made.mkdir("new/dir", parents=True)
    await made.rm("new", recursive=True)
    names = {Path(entry.path).name for entry in await made.ls(".")}
    assert "new" not in names
    assert "deep" in names


async def test_programs_outlast_a_call_with_a_terminal_and_without(open_session):
    made = open_session
    first = await made.pty_exec_start("cat", tty=True, yield_time_s=0.5)
    assert first.process_id is not None
    said = await made.pty_write_stdin(session_id=first.process_id, chars="hello\n", yield_time_s=1)
    assert b"hello" in said.output
    last = await made.pty_write_stdin(session_id=first.process_id, chars="\x04", yield_time_s=5)
    assert (last.exit_code, last.process_id) == (0, None)
    with pytest.raises(PtySessionNotFoundError):
        await made.pty_write_stdin(session_id=first.process_id, chars="")
    plain = await made.pty_exec_start("echo a; echo b >&2; sleep 1; exit 4", yield_time_s=0.3)
    assert plain.output == b"a\nb\n"
    with pytest.raises(RuntimeError, match="stdin"):
        await made.pty_write_stdin(session_id=plain.process_id, chars="x")
    ended = await made.pty_write_stdin(session_id=plain.process_id, chars="", yield_time_s=5)
    assert ended.exit_code == 4
    await made.pty_exec_start("exec -a lasting sleep 600", shell=["bash", "-c"], yield_time_s=0.3)
    await made.pty_terminate_all()
    assert await text(made, "ps axo args | grep -c '^[l]asting' || true") == "0\n"
    # One that writes without end is read in pieces, and holds nobody up.
    noisy = await made.pty_exec_start("yes", yield_time_s=0.5, max_output_tokens=100)
    assert noisy.process_id is not None
    assert len(noisy.output) < 4000
    await made.pty_terminate_all()


async def test_output_that_comes_byte_by_byte_waits_in_few_pieces(open_session):
    made = open_session
    code = "import os; [os.write(1, b'x') for _ in range(50000)]"
    begun = await made.pty_exec_start(f'sleep 1; python3 -c "{code}"', yield_time_s=0.3)
    process = made._inner._processes.by_id[begun.process_id]
    await asyncio.to_thread(until, lambda: process.over, "the command has ended")
    assert sum(map(len, process._chunks)) == 50_000
    assert len(process._chunks) < 20


async def test_a_port_inside_has_an_address_here(open_session):
    made = open_session
    await made.exec("echo page > index.html")
    await made.pty_exec_start("python3 -m http.server 8000", yield_time_s=0.5)
    listening = "until (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.1; done"
    await made.exec(listening, shell=["bash", "-c"], timeout=30)
    endpoint = await made.resolve_exposed_port(8000)
    assert await made.resolve_exposed_port(8000) == endpoint

    def read() -> bytes:  # all of it beside the loop, which carries the forwarded connection
        with urllib.request.urlopen(endpoint.url_for("http"), timeout=30) as page:
            return page.read()

    assert await asyncio.to_thread(read) == b"page\n"
    with pytest.raises(ExposedPortUnavailableError):
        await made.resolve_exposed_port(9000)


async def test_environment_users_and_entries_of_a_manifest():
    client = SkerrySandboxClient()
    manifest = Manifest(
        root="/srv/place",
        entries={"a/b.txt": File(content=b"content")},
        environment={"value": {"GREETING": "hello"}},
    )
    async with await client.create(options=options(), manifest=manifest) as made:
        assert await text(made, "echo $GREETING; pwd; cat a/b.txt") == "hello\n/srv/place\ncontent"


# --- options, faults, the end


async def test_options_are_skerrys_and_nothing_is_ignored():
    with pytest.raises(ValueError, match=r"no option 'imgae'; there are .*exposed_ports.*memory"):
        SkerrySandboxClientOptions(imgae="x")
    for bad in ({"network": ["10.0.0.1"]}, {"memory": "lots"}, {"image": "no/such:image"}):
        with pytest.raises(skerry.CallerError):
            await SkerrySandboxClient().create(
                options=SkerrySandboxClientOptions(**{"image": IMAGE} | bad)
            )
    _, made = await session(memory="300MiB", pids=50, labels={"task": "a"}, env={"A": "1"})
    try:
        again = SkerrySandboxClientOptions.parse(options(memory="1GiB").model_dump(mode="json"))
        assert again.model_extra == {"memory": "1GiB"}
        with skerry.connect() as other:
            spec = other.sandboxes.get(made.state.sandbox_id).info().spec
        assert (spec.memory_bytes, spec.pids, spec.idle_timeout_s) == (300 << 20, 50, 3600)
        assert spec.labels["harness"] == "openai-agents"
        assert spec.labels["task"] == "a"
        assert await text(made, "echo $A") == "1\n"
    finally:
        await made.aclose()


async def test_faults_of_the_platform_end_the_run_and_are_no_output():
    nowhere = SkerrySandboxClient(url="unix:///run/no-such-node.sock")
    with pytest.raises(WorkspaceStartError) as start:
        await nowhere.create(options=options())
    assert start.value.retryable is True
    _, made = await session()
    with skerry.connect() as other:
        other.sandboxes.get(made.state.sandbox_id).destroy()
    with pytest.raises(ExecTransportError):
        await made.exec("true")
    with pytest.raises(WorkspaceArchiveReadError):
        await made._inner.persist_workspace()
    assert not await made.running()
    config = run_config(session=made)
    with pytest.raises((WorkspaceStartError, ExecTransportError)):
        await Runner.run(agent(shell("true")), "go", run_config=config)
    await made.shutdown()


async def test_a_sandbox_that_cannot_be_ended_costs_no_run_its_result(monkeypatch, caplog):
    client, made = await session()

    async def away():
        raise skerry.Unavailable("the node is away")

    monkeypatch.setattr(made._inner.sandbox, "destroy", away)
    await made.shutdown()
    assert "left to end by itself" in caplog.text
    await client.destroy(made.state)


def test_nothing_is_left_when_a_run_is_interrupted():
    label = secrets.token_hex(8)
    script = Path(__file__).with_name("left_behind.py")
    mark = Path(f"/var/tmp/skerry-interop-{label}")
    status = interrupted(script, label, ready=lambda: sandboxes(job=label) and mark.exists())
    mark.unlink()
    assert status != 0
    until(lambda: not sandboxes(job=label), "the sandbox is gone")
