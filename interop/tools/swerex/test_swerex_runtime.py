"""SWE-ReX's own client and classes, on a server of ours or on its local runtime."""

from __future__ import annotations

import os

import pytest
from serving import TOKEN, server
from swerex.deployment.local import LocalDeployment
from swerex.deployment.remote import RemoteDeployment
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

LOCAL = os.environ.get("INTEROP_BACKEND") == "local"


@pytest.fixture(scope="module")
def address():
    if LOCAL:
        yield None
        return
    with server() as told:
        yield told


@pytest.fixture
async def runtime(address):
    if LOCAL:
        deployment = LocalDeployment()
    else:
        deployment = RemoteDeployment(
            host=address["host"], port=address["port"], auth_token=TOKEN, timeout=60
        )
    await deployment.start()
    assert await deployment.is_alive()
    yield deployment.runtime
    await deployment.stop()


@pytest.fixture
async def bash(runtime):
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=20))

    async def run(command, **more):
        return await runtime.run_in_session(BashAction(command=command, **{"timeout": 30} | more))

    return run


async def test_a_session_keeps_what_its_commands_set(bash):
    assert (await bash("cd /usr; export A=1; f() { echo f$A; }")).exit_code == 0
    seen = await bash("pwd\nf\necho last")
    assert seen.output.strip().splitlines() == ["/usr", "f1", "last"]
    assert seen.exit_code == 0
    quiet = await bash("(exit 7)", check="silent")
    assert quiet.exit_code == 7
    assert (await bash("false", check="ignore")).exit_code is None
    with pytest.raises(NonZeroExitCodeError, match="why"):
        await bash("echo before; false", error_msg="why")
    with pytest.raises(BashIncorrectSyntaxError):
        await bash("if true; then")
    here = await bash("cat <<'END'\na  b\n$A\nEND")
    assert here.output.strip().splitlines() == ["a  b", "$A"]


async def test_an_interactive_program_is_typed_into_and_left(bash):
    begun = await bash("python3 -q", is_interactive_command=True, expect=[">>> "])
    assert begun.expect_string == ">>> "
    said = await bash("print(6 * 7)", is_interactive_command=True, expect=[">>> "])
    assert "42" in said.output
    await bash("quit()", is_interactive_quit=True)
    assert (await bash("echo back")).output.strip() == "back"


async def test_what_takes_too_long_is_interrupted_and_the_session_goes_on(runtime, bash):
    with pytest.raises(CommandTimeoutError):
        await bash("sleep 600", timeout=0.5)
    seen = await runtime.run_in_session(BashInterruptAction(timeout=2))
    assert seen.exit_code == 0
    assert (await bash("echo back")).output.strip() == "back"


async def test_sessions_have_names(runtime):
    for name in ("a", "b"):
        await runtime.create_session(CreateBashSessionRequest(session=name, startup_timeout=20))
        await runtime.run_in_session(BashAction(session=name, command=f"X={name}", timeout=30))
    with pytest.raises(SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest(session="a"))
    seen = await runtime.run_in_session(BashAction(session="a", command="echo $X", timeout=30))
    assert seen.output.strip() == "a"
    await runtime.close_session(CloseBashSessionRequest(session="a"))
    for ask in (
        runtime.run_in_session(BashAction(session="a", command="true")),
        runtime.close_session(CloseBashSessionRequest(session="a")),
    ):
        with pytest.raises(SessionDoesNotExistError):
            await ask


async def test_startup_files_are_sourced(runtime):
    await runtime.write_file(WriteFileRequest(path="/tmp/rc", content="PS1='mine> '; FROM=rc\n"))
    asked = CreateBashSessionRequest(startup_source=["/tmp/rc"], startup_timeout=20)
    await runtime.create_session(asked)
    seen = await runtime.run_in_session(BashAction(command="echo $FROM", timeout=30))
    assert seen.output.strip() == "rc"


async def test_commands_by_themselves(runtime):
    done = await runtime.execute(Command(command=["sh", "-c", "echo out; echo err >&2; exit 3"]))
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
    both = "echo a; echo b >&2; echo c"
    done = await runtime.execute(Command(command=both, shell=True, merge_output_streams=True))
    assert done.stdout == "a\nb\nc\n"
    done = await runtime.execute(Command(command=["pwd"], cwd="/usr"))
    assert done.stdout == "/usr\n"
    done = await runtime.execute(Command(command="kill -9 $$", shell=True))
    assert done.exit_code == -9
    with pytest.raises(CommandTimeoutError):
        await runtime.execute(Command(command=["sleep", "60"], timeout=0.3))
    with pytest.raises(NonZeroExitCodeError):
        await runtime.execute(Command(command=["false"], check=True))
    with pytest.raises(FileNotFoundError):
        await runtime.execute(Command(command=["no-such-program"]))


async def test_files_and_uploads(runtime, tmp_path):
    await runtime.write_file(WriteFileRequest(path="/tmp/deep/er/file", content="späß\n"))
    assert (await runtime.read_file(ReadFileRequest(path="/tmp/deep/er/file"))).content == "späß\n"
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path="/tmp/none"))
    with pytest.raises(IsADirectoryError):
        await runtime.read_file(ReadFileRequest(path="/tmp"))
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "a").write_bytes(b"x" * 100_000)
    (tmp_path / "tree" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "tree" / "run.sh").chmod(0o755)
    target = f"/tmp/{tmp_path.name}"
    await runtime.upload(UploadRequest(source_path=str(tmp_path / "tree"), target_path=target))
    done = await runtime.execute(Command(command=["wc", "-c", f"{target}/sub/a"]))
    assert done.stdout.startswith("100000 ")
    assert (await runtime.execute(Command(command=[f"{target}/run.sh"]))).stdout == "ran\n"
    one = UploadRequest(source_path=str(tmp_path / "tree" / "run.sh"), target_path=f"{target}/one")
    await runtime.upload(one)
    done = await runtime.execute(Command(command=["cat", f"{target}/one"]))
    assert done.stdout.endswith("echo ran\n")
