"""What `SkerryEnvironment` does as Harbor's agents and verifiers use it, in one process with it."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.config import ResourceMode
from harbor.models.trial.error_policy import policy_for
from harbor.models.trial.paths import TrialPaths

from conftest import IMAGE
from skerry.aio import connect
from skerry.compat.harbor import RuntimeRequestError, SkerryEnvironment
from skerry.errors import Bug, FileDenied, NotFound, SandboxFailed, Unavailable


def environment(place: Path, *, config=None, paths=None, **kwargs) -> SkerryEnvironment:
    (place / "environment").mkdir(exist_ok=True)
    return SkerryEnvironment(
        environment_dir=place / "environment",
        environment_name="direct",
        session_id="direct__1__env",
        trial_paths=paths or TrialPaths(trial_dir=place / "trial"),
        task_env_config=EnvironmentConfig(docker_image=IMAGE, **(config or {})),
        logger=logging.getLogger("test"),
        **kwargs,
    )


async def until(true) -> None:
    async with asyncio.timeout(60):
        while not await true():  # noqa: ASYNC110 - what is waited for happens in the sandbox
            await asyncio.sleep(0.05)


@pytest.fixture
async def started(tmp_path):
    made = environment(tmp_path)
    await made.start(force_build=False)
    yield made
    await made.stop(delete=True)


async def test_results_are_those_of_a_shell(started) -> None:
    done = await started.exec("echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.return_code) == ("out\n", "err\n", 7)
    done = await started.exec("echo so far; sleep 60", timeout_sec=1)
    assert (done.stdout, done.return_code) == ("so far\n", 124)
    assert "timed out after 1 seconds" in done.stderr
    assert (await started.exec("kill -9 $$")).return_code == 137
    assert (await started.exec("true", user="nobody-such")).return_code == 126
    assert (await started.exec("true", cwd="/no/such")).return_code in (126, 127)
    assert (await started.exec("pwd")).stdout == "/\n"
    done = await started.exec("id -un; pwd; echo $A", user="nobody", cwd="/tmp", env={"A": "a b"})
    assert done.stdout == "nobody\n/tmp\na b\n"
    assert (await started.exec("id -u", user=1234)).stdout == "1234\n"
    with started.with_default_user("nobody"):
        assert (await started.exec("id -un")).stdout == "nobody\n"
        assert (await started.exec("id -un", user="root")).stdout == "root\n"


async def test_what_an_exec_leaves_running_lives_on_and_a_cancelled_one_ends(started) -> None:
    await started.exec("setsid sh -c 'sleep 1; echo lived > /tmp/lived' >/dev/null 2>&1 &")
    task = asyncio.create_task(started.exec("touch /tmp/began; sleep 300; touch /tmp/done"))
    await until(lambda: started.is_file("/tmp/began"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: started.is_file("/tmp/lived"))
    assert not await started.is_file("/tmp/done")
    assert (await started.exec("pgrep -x sleep")).return_code == 1


async def test_output_comes_as_it_is_said(started) -> None:
    told: list[tuple[str, str]] = []

    async def tell(text: str, stream: str) -> None:
        told.append((text, stream))

    with started.scoped_output_callback(tell):
        done = await started.exec("echo ä; sleep 0.3; echo b >&2; printf '\\303'; exit 3")
    assert "".join(text for text, stream in told if stream == "stdout") == "ä\n\ufffd"
    assert ("b\n", "stderr") in told
    assert (done.stdout, done.return_code) == ("ä\n\ufffd", 3)


async def test_files_and_trees_arrive_as_they_are(started, tmp_path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / ".hidden").write_text("h")
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "link").symlink_to("run.sh")
    await started.exec("mkdir -p /srv/t && echo old > /srv/t/old")
    await started.upload_dir(tree, "/srv/t")
    assert (
        await started.exec("/srv/t/link; cat /srv/t/sub/.hidden /srv/t/old")
    ).stdout == "ran\nhold\n"
    await started.upload_file(tree / "run.sh", "/srv/deep/er/run")
    assert (await started.exec("/srv/deep/er/run", user="nobody")).stdout == "ran\n"
    await started.exec("mkfifo /srv/t/fifo")
    await started.download_dir("/srv/t", tmp_path / "back")
    assert os.readlink(tmp_path / "back" / "link") == "run.sh"
    assert (tmp_path / "back" / "sub" / ".hidden").read_text() == "h"
    assert os.access(tmp_path / "back" / "run.sh", os.X_OK)
    await started.download_file("/srv/t/old", tmp_path / "old")
    assert (tmp_path / "old").read_text() == "old\n"
    with pytest.raises(NotFound):
        await started.download_file("/srv/none", tmp_path / "none")
    assert [await started.is_dir(path) for path in ("/srv", "/srv/t/old", "/none")] == [
        True,
        False,
        False,
    ]
    assert [await started.is_file(path) for path in ("/srv", "/srv/t/link", "/srv/t/old/x")] == [
        False, True, False,
    ]  # fmt: skip
    await started.download_dir_with_exclusions(
        source_dir="/srv/t", target_dir=tmp_path / "some", exclude=["sub", "fifo"]
    )
    assert sorted(path.name for path in (tmp_path / "some").iterdir()) == ["link", "old", "run.sh"]


async def test_a_network_changes_while_a_sandbox_lives(started) -> None:
    probe = "curl -s -o /dev/null --max-time 20 -w '%{http_connect}' -p http://a.invalid/"
    assert (await started.exec(probe)).stdout == "502"  # public: there is no such name
    await started.set_network_policy(NetworkPolicy(network_mode=NetworkMode.NO_NETWORK))
    assert (await started.exec(probe)).stdout in ("", "000")
    hosts = ["b.invalid", "single"]
    await started.set_network_policy(
        NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=hosts)
    )
    assert (await started.exec(probe)).stdout == "403"
    assert (await started.exec(probe.replace("a.invalid", "b.invalid"))).stdout == "502"
    with pytest.raises(ValueError, match="IPv6 addresses"):
        await started.set_network_policy(
            NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["::1"])
        )


@pytest.mark.parametrize(
    ("config", "kwargs", "why"),
    [
        ({"os": "windows"}, {}, "Windows"),
        ({"gpus": 1}, {}, "GPU"),
        ({"cpus": 1}, {"cpu_enforcement_policy": ResourceMode.REQUEST}, "CPU resource requests"),
        (
            {"memory_mb": 64},
            {"memory_enforcement_policy": ResourceMode.GUARANTEE},
            "memory resource",
        ),
        ({}, {"auto_mounting": True}, "automatic host mounts"),
        ({}, {"stream": True}, "stream mode"),
    ],
)
def test_what_cannot_be_promised_is_refused(tmp_path, config, kwargs, why) -> None:
    with pytest.raises((ValueError, RuntimeError), match=why):
        environment(tmp_path, config=config, **kwargs)


async def test_limits_are_those_that_were_asked_for(tmp_path) -> None:
    config = {"cpus": 0.5, "memory_mb": 128, "storage_mb": 64}
    made = environment(tmp_path, config=config, pids=300, labels={"team": "a"}, ttl=600)
    await made.start(force_build=False)
    try:
        async with connect() as client:
            (info,) = await client.sandboxes.list(labels={"team": "a"})
            assert (info.spec.cpu, info.spec.memory_bytes >> 20) == (0.5, 128)
            assert (info.spec.disk_bytes >> 20, info.spec.pids) == (64, 300)
            assert (info.spec.ttl_s, info.spec.idle_timeout_s) == (600, 3600)
        done = await made.exec("head -c 100M /dev/zero > /tmp/much")
        assert done.return_code != 0
        assert "No space" in done.stderr or "quota" in done.stderr
        done = await made.exec("python3 -c 'b = bytearray(400 << 20)'")
        assert done.return_code == 137
        assert "out of memory" in done.stderr
    finally:
        await made.stop(delete=True)


def test_harbor_grades_nothing_by_faults_of_the_platform() -> None:
    policy = policy_for(RuntimeRequestError.__name__)
    assert (policy.should_grade, policy.has_valid_reward, policy.should_retry) == (
        False,
        False,
        True,
    )


@pytest.mark.parametrize(
    "fault",
    [Unavailable("gone"), Bug("ours"), SandboxFailed("lost", lost=True), NotFound("no sandbox")],
)
async def test_a_fault_ends_the_trial_in_every_environment_of_it(
    tmp_path, monkeypatch, fault
) -> None:
    made = environment(tmp_path)
    await made.start(force_build=False)
    try:

        async def failing(*_args, **_kwargs):
            raise fault

        monkeypatch.setattr(made._sandbox.files, "download", failing)
        with pytest.raises(RuntimeRequestError):
            await made.download_dir("/logs", tmp_path / "logs")
        with pytest.raises(RuntimeRequestError, match="failed earlier in this trial"):
            await made.exec("true")
        verifier = environment(tmp_path, paths=made.trial_paths)
        with pytest.raises(RuntimeRequestError, match="failed earlier in this trial"):
            await verifier.start(force_build=False)
        await verifier.stop(delete=True)
        again = environment(tmp_path)  # a retry: equal paths, and another trial
        await again.start(force_build=False)
        await again.stop(delete=True)
    finally:
        await made.stop(delete=True)


@pytest.mark.parametrize("answers", [True, False])
async def test_time_that_ran_out_while_the_node_was_gone_is_not_the_agents(
    tmp_path, monkeypatch, answers
) -> None:
    made = environment(tmp_path)
    await made.start(force_build=False)
    try:
        task = asyncio.create_task(made.exec("touch /tmp/began; sleep 300"))
        await until(lambda: made.is_file("/tmp/began"))
        if not answers:

            async def nobody():
                raise Unavailable("nobody")

            monkeypatch.setattr(made._client, "health", nobody)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if answers:
            assert (await made.exec("true")).return_code == 0
        else:
            with pytest.raises(RuntimeRequestError, match="did not answer"):
                await made.exec("true")
    finally:
        await made.stop(delete=True)


async def test_what_the_sandbox_refuses_is_no_fault(started, tmp_path, monkeypatch) -> None:
    async def failing(*_args, **_kwargs):
        raise FileDenied("no", path="/x", errno=13)

    with monkeypatch.context() as patch:
        patch.setattr(started._sandbox.files, "download", failing)
        with pytest.raises(FileDenied):
            await started.download_dir("/x", tmp_path / "x")
    assert (await started.exec("true")).return_code == 0


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path) -> None:
    for delay in (0.0, 0.005, 0.02, 0.05):
        made = environment(tmp_path)
        task = asyncio.create_task(made.start(force_build=False))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.stop(delete=True)
    async with connect() as client:
        for info in await client.sandboxes.list(labels={"trial": "direct__1__env"}):
            assert info.state in ("stopped", "failed"), info


async def test_a_forced_build_happens_once_for_all_trials(tmp_path) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "Dockerfile").write_text("FROM scratchy:1\nRUN date +%N > /when\n")
    options = {"images": {"scratchy:1": IMAGE}}

    async def said() -> str:
        made = environment(tmp_path, **options)
        made.task_env_config.docker_image = None
        await made.start(force_build=True)
        try:
            return (await made.exec("cat /when")).stdout
        finally:
            await made.stop(delete=True)

    assert len(set(await asyncio.gather(*(said() for _ in range(4))))) == 1
