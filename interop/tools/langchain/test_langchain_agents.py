"""Whole agents on sandboxes, driven by a scripted model; and what happens when things go wrong."""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path

import pytest
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

import skerry
from interop.looking import examples, interrupted, sandboxes, until
from skerry.compat.langchain import SkerryBackend

IMAGE = os.environ["INTEROP_IMAGE"]
ASK = {"messages": [HumanMessage("do it")]}


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self


def agent(backend, *turns):
    """An agent that calls these tools, one a turn, and then says that it is done."""
    said = [
        AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call{number}"}])
        for number, (name, args) in enumerate(turns)
    ]
    return create_deep_agent(
        model=Scripted(messages=iter([*said, AIMessage("done")])), backend=backend
    )


def answers(state):
    return [message.content for message in state["messages"] if isinstance(message, ToolMessage)]


@pytest.fixture(scope="module")
def backend():
    with SkerryBackend.create(image=IMAGE) as made:
        yield made


FIX = (
    ("write_file", {"file_path": "/srv/calc.py", "content": "def add(a, b):\n    return a - b\n"}),
    ("execute", {"command": "cd /srv && python3 -c 'import calc; assert calc.add(2, 2) == 4'"}),
    ("edit_file", {"file_path": "/srv/calc.py", "old_string": "- b", "new_string": "+ b  # sum"}),
    ("execute", {"command": "cd /srv && python3 -c 'import calc; print(calc.add(2, 2))'"}),
    ("read_file", {"file_path": "/srv/calc.py"}),
    ("grep", {"pattern": "return", "path": "/srv"}),
    ("glob", {"pattern": "*.py", "path": "/srv"}),
)


def judge(state):
    said = answers(state)
    assert "AssertionError" in said[1]
    assert "failed with exit code 1" in said[1]
    assert said[3].startswith("4\n")
    assert "a + b" in said[4]
    assert "/srv/calc.py" in said[5]
    assert "calc.py" in said[6]
    assert state["messages"][-1].content == "done"


def test_an_agent_writes_runs_edits_and_finds():
    with SkerryBackend.create(image=IMAGE) as backend:
        judge(agent(backend, *FIX).invoke(ASK))
        assert sandboxes(harness="deepagents")
        mine = backend.id
    assert mine not in sandboxes(harness="deepagents")
    with pytest.raises(RuntimeError, match="closed"):
        backend.execute("true")
    backend.close()


async def test_agents_run_side_by_side_each_in_its_own_sandbox():
    async def one():
        async with await SkerryBackend.acreate(image=IMAGE, cpu=0.5) as backend:
            state = await agent(backend, *FIX).ainvoke(ASK)
            return state, backend.id

    done = await asyncio.gather(*(one() for _ in range(6)))
    for state, _ in done:
        judge(state)
    ids = {name for _, name in done}
    assert len(ids) == 6
    assert not ids & set(sandboxes(harness="deepagents"))


async def test_a_cancelled_run_ends_its_command_inside(backend):
    mark = f"mark{secrets.token_hex(4)}"
    run = asyncio.create_task(
        agent(backend, ("execute", {"command": f"exec -a {mark} sleep 600"})).ainvoke(ASK)
    )

    async def there():
        return mark in (await backend.aexecute("ps axo args")).output.replace(f"-a {mark}", "")

    async with asyncio.timeout(60):
        while not await there():  # noqa: ASYNC110 - a process inside sets no event
            await asyncio.sleep(0.1)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        while await there():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("number", range(2))
def test_examples_of_the_guide_run_as_written(number):
    texts = examples("langchain.md")
    assert len(texts) == 2
    call = AIMessage("", tool_calls=[{"name": "execute", "args": {"command": "ls"}, "id": "a"}])
    turns = [call if number == 0 else AIMessage("42"), *[AIMessage("42")] * 8]
    exec(texts[number], {"model": Scripted(messages=iter(turns))})


def test_a_sandbox_that_is_gone_ends_the_run_and_is_no_output():
    with SkerryBackend.create(image=IMAGE) as backend:
        with skerry.connect() as client:
            client.sandboxes.get(backend.id).destroy()
        with pytest.raises(skerry.SkerryError) as raised:
            agent(backend, ("execute", {"command": "true"})).invoke(ASK)
        assert isinstance(raised.value, skerry.NotFound | skerry.SandboxFailed)
        for ask in (
            lambda: backend.download_files(["/etc/passwd"]),
            lambda: backend.upload_files([("/tmp/a", b"")]),
        ):
            with pytest.raises(skerry.SkerryError):
                ask()


def test_a_node_that_is_not_there_is_a_fault_of_the_platform():
    with pytest.raises(skerry.Unavailable):
        SkerryBackend.create(image=IMAGE, url="unix:///run/no-such-node.sock")


def test_options_are_skerrys_and_nothing_is_ignored():
    before = sandboxes(harness="deepagents")
    for options, why in (
        ({"imgae": "x"}, "there is no option 'imgae'; there are backend, cpu, .*url, "),
        ({"network": ["10.0.0.1"]}, "network"),
        ({"image": "no/such:image"}, "no/such"),
        ({"memory": "lots"}, "memory"),
    ):
        with pytest.raises(skerry.CallerError, match=why):
            SkerryBackend.create(**{"image": IMAGE} | options)
    with pytest.raises(ValueError, match="timeout"):
        SkerryBackend.create(image=IMAGE, timeout=-1)
    assert sandboxes(harness="deepagents") == before
    options = {"memory": "300MiB", "pids": 40, "env": {"GREETING": "hi"}, "user": "nobody"}
    with SkerryBackend.create(image=IMAGE, labels={"job": "a"}, workdir="/tmp", **options) as made:
        said = made.execute("echo $GREETING; id -un; pwd").output
        assert said == "hi\nnobody\n/tmp\n"
        with skerry.connect() as client:
            spec = client.sandboxes.get(made.id).info().spec
    assert (spec.memory_bytes, spec.pids, spec.idle_timeout_s) == (300 << 20, 40, 3600)
    assert spec.labels == {"harness": "deepagents", "job": "a"}


def test_output_is_one_text_in_order_and_its_end_is_told(backend):
    done = backend.execute("for i in 1 2 3; do echo out$i; echo err$i >&2; done; exit 3")
    assert (done.output, done.exit_code) == ("out1\nerr1\nout2\nerr2\nout3\nerr3\n", 3)
    assert backend.execute("kill -9 $$").exit_code == 137
    late = backend.execute("echo early; sleep 60", timeout=1)
    assert late.exit_code == 124
    assert late.output.startswith("early\nThe command timed out after 1 seconds")
    assert backend.execute("sleep 1.1; echo through", timeout=0).output == "through\n"
    with pytest.raises(ValueError, match="timeout"):
        backend.execute("true", timeout=-1)
    binary = backend.execute("printf 'a\\377b'")
    assert binary.output == "a�b"
    assert backend.execute("echo ( unbalanced").exit_code != 0
    assert backend.execute("nul\0").exit_code == 126


def test_output_without_end_is_cut_in_the_middle_and_says_so():
    with SkerryBackend.create(image=IMAGE, output_limit=1000) as backend:
        done = backend.execute("seq 1 200000")
    assert done.truncated
    assert done.output.startswith("1\n2\n")
    assert done.output.endswith("199999\n200000\n")
    assert "bytes were cut out here" in done.output
    assert len(done.output) < 1100


def test_hostile_and_missing_files_are_answers(backend):
    backend.execute(
        "mkdir -p /h/d; mkfifo /h/fifo; ln -s /h/loop /h/loop; ln -s /etc/hostname /h/link"
    )
    backend.execute("truncate -s 1T /h/huge; ln -s /dev/zero /h/zero")
    want = {
        "/h/none": "file_not_found",
        "/h/d": "is_directory",
        "relative": "invalid_path",
        "/h/nul\0": "invalid_path",
    }
    refused = ["/h/fifo", "/h/loop", "/h/zero", f"/h/{'n' * 300}"]
    got = backend.download_files([*want, *refused, "/h/link"])
    assert [answer.error for answer in got[: len(want)]] == list(want.values())
    assert all(answer.error and answer.content is None for answer in got[:-1]), got
    assert got[-1].content
    put = backend.upload_files([("/h/d", b""), ("rel", b""), ("/h/new/deep/file", b"x\0y")])
    assert [answer.error for answer in put] == ["is_directory", "invalid_path", None]
    assert backend.execute("od -c /h/new/deep/file").exit_code == 0


def test_a_download_beyond_the_limit_is_an_answer_and_fills_no_memory():
    with SkerryBackend.create(image=IMAGE, file_limit=1000) as backend:
        backend.execute("truncate -s 1T /huge; head -c 1000 /dev/zero >/fits")
        huge, fits = backend.download_files(["/huge", "/fits"])
    assert "more than 1000 bytes" in huge.error
    assert fits.content == bytes(1000)


def test_a_user_without_rights_is_told_so():
    with SkerryBackend.create(image=IMAGE, user="nobody") as backend:
        got = backend.download_files(["/etc/shadow"])
        put = backend.upload_files([("/etc/new", b"")])
    assert [got[0].error, put[0].error] == ["permission_denied"] * 2


def test_connect_finds_a_sandbox_and_leaves_it_alone(backend):
    with SkerryBackend.connect(backend.id) as other:
        other.upload_files([("/tmp/seen", b"by both")])
        assert other.id == backend.id
    assert backend.execute("cat /tmp/seen").output == "by both"
    with pytest.raises(skerry.NotFound):
        SkerryBackend.connect("sb-nosuch")
    with pytest.raises(skerry.InvalidRequest, match="no option 'image'"):
        SkerryBackend.connect(backend.id, image="x")


@pytest.mark.parametrize("how", ["interrupt", "exit"])
def test_nothing_is_left_when_the_program_ends(how):
    label = secrets.token_hex(8)
    script = Path(__file__).with_name("left_behind.py")
    if how == "interrupt":
        status = interrupted(
            script, label, how, ready=lambda: Path(f"/var/tmp/skerry-interop-{label}").exists()
        )
        Path(f"/var/tmp/skerry-interop-{label}").unlink()
        assert status != 0
    else:
        import subprocess
        import sys

        subprocess.run([sys.executable, str(script), label, how], check=True, timeout=60)
    until(lambda: not sandboxes(job=label), "the sandbox is gone")
