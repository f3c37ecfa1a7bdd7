"""Tasks of several kinds, each run by `harbor run` with the oracle, which must earn 1, and nop 0."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from conftest import IMAGE


def earns(harbor, task, oracle: float = 1.0, nop: float | None = 0.0, **options) -> None:
    for agent, reward in (("oracle", oracle), ("nop", nop)):
        if reward is not None:
            job = harbor.run(task, "-a", agent, **options)
            assert job.exceptions == [None], job.log()
            assert job.rewards == [reward], job.log()


def test_a_task_of_steps_whose_verifiers_have_their_own_sandboxes(harbor, client) -> None:
    task = harbor.init("stages", "--steps", "2")
    first, second = (task / "steps" / name for name in ("step-1", "step-2"))
    (second / "solution" / "solve.sh").write_text(
        "#!/bin/bash\ncat /app/hello.txt >> /app/hello.txt2\n"
    )
    (second / "tests" / "test_outputs.py").write_text(
        (first / "tests" / "test_outputs.py").read_text().replace("hello.txt", "hello.txt2")
    )
    harbor.edit(
        task, 'name = "step-1"\nartifacts = []', 'name = "step-1"\nartifacts = ["/app/hello.txt"]'
    )
    harbor.edit(
        task, 'name = "step-2"\nartifacts = []', 'name = "step-2"\nartifacts = ["/app/hello.txt2"]'
    )
    earns(harbor, task)


def test_dockerfiles_of_the_scaffold_are_built_as_they_are_written(
    harbor, client, tmp_path
) -> None:
    """With images of ours, and but for what they fetch from an index: not every machine reaches one."""
    task = harbor.init("written", rewrite=False)
    verifier = task / "tests" / "Dockerfile"
    text = verifier.read_text()
    assert "COPY --from=ghcr.io/astral-sh/uv:0.9.7 /uv /usr/local/bin/uv\n" in text
    install = re.compile("uv pip install --system .*")
    assert install.search(text)
    verifier.write_text(install.sub("uv pip list --system", text))
    (tmp_path / "uv").mkdir()
    shutil.copy2(shutil.which("uv"), tmp_path / "uv" / "uv")
    client.images.import_directory("base/interop/uv:1", tmp_path / "uv")
    images = {"ubuntu:24.04": IMAGE, "python:3.12-slim": IMAGE}
    earns(harbor, task, images=images | {"ghcr.io/astral-sh/uv:0.9.7": "base/interop/uv:1"})


def test_steps_that_share_a_sandbox_with_their_verifiers(harbor, client) -> None:
    task = harbor.init("shared-stages", "--steps", "2", "--verifier-mode", "shared")
    earns(harbor, task)


def test_a_named_image_takes_files_of_the_task_and_a_verifier_another_image(harbor, client) -> None:
    task = harbor.init("named")
    (task / "environment" / "Dockerfile").unlink()
    (task / "environment" / "seed.txt").write_text("hello\n")
    (task / "solution" / "solve.sh").write_text("#!/bin/bash\ncp seed.txt hello.txt\n")
    harbor.edit(task, "[environment]", f'[environment]\ndocker_image = "{IMAGE}"\nworkdir = "/app"')
    (task / "tests" / "Dockerfile").unlink()
    harbor.edit(
        task,
        "[agent]",
        '[verifier.environment]\nworkdir = "/app"\n\n[agent]',
    )
    earns(harbor, task)


SETTINGS = """
import os, pwd
from pathlib import Path


def test_outputs():
    said = Path("/app/said").read_text().split("\\n")
    assert said[0] == "agent /srv/work from-task from-dockerfile 2"
    assert int(said[1]) in range(300 << 20, 301 << 20)
    assert os.environ["OF_VERIFIER"] == "yes"
    assert pwd.getpwuid(os.getuid()).pw_name == "grader"
    assert Path("/healthy").exists()
"""


def test_limits_users_environments_and_a_healthcheck_hold(harbor, client) -> None:
    task = harbor.init("settings", "--verifier-mode", "shared")
    (task / "environment" / "Dockerfile").write_text(
        "FROM ubuntu:24.04\nARG WHO=agent\nRUN useradd -m $WHO && useradd -m grader\n"
        "COPY --chown=agent start.sh /srv/\nENV B=from-dockerfile\nWORKDIR /srv\n"
        "RUN mkdir work /app && chown agent work /app\n"
    )
    (task / "environment" / "start.sh").write_text("touch /healthy\n")
    (task / "solution" / "solve.sh").write_text(
        "#!/bin/bash\necho $(id -un) $(pwd) $A $B $(nproc) > /app/said\n"
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes >> /app/said 2>/dev/null ||"
        " python3 -c 'print(300 << 20)' >> /app/said\n"
    )
    (task / "tests" / "test_outputs.py").write_text(SETTINGS)
    path = task / "task.toml"
    text = path.read_text()
    text = text.replace("[environment.env]", '[environment.env]\nA = "from-task"')
    text = text.replace("[verifier.env]", '[verifier.env]\nOF_VERIFIER = "yes"')
    text = text.replace("[verifier]", '[verifier]\nuser = "grader"')
    text = text.replace("[agent]", '[agent]\nuser = "agent"')
    text = text.replace(
        "[environment]",
        '[environment]\ncpus = 2\nmemory_mb = 300\nstorage_mb = 500\nworkdir = "/srv/work"\n'
        'healthcheck = { command = "sh /srv/start.sh && test -e /healthy", retries = 1 }',
    )
    path.write_text(text)
    earns(harbor, task)


NETWORK = """#!/bin/bash
for name in allowed other; do
  curl -sS -o /dev/null --max-time 20 -w '%{http_connect}' -p http://$name.invalid/ > /logs/agent/$name
done
echo hello > /app/hello.txt
"""


def test_each_phase_has_its_own_network(harbor, client) -> None:
    """A name that is allowed and is not there is 502, one that is not allowed 403, else no proxy."""
    task = harbor.init("phases", "--verifier-mode", "shared")
    (task / "solution" / "solve.sh").write_text(NETWORK)
    (task / "tests" / "test_outputs.py").write_text(
        "import subprocess\nfrom pathlib import Path\n\n\ndef test_outputs():\n"
        "    said = [Path('/logs/agent', name).read_text() for name in ('allowed', 'other')]\n"
        "    assert said == ['502', '403']\n"
        "    done = subprocess.run(['curl', '-sS', '--max-time', '20', '-p', 'http://allowed.invalid/'],"
        " capture_output=True)\n    assert done.returncode in (5, 6, 7), done\n"
    )
    harbor.edit(task, 'network_mode = "public"', 'network_mode = "no-network"')
    harbor.edit(
        task,
        "[agent]",
        '[agent]\nnetwork_mode = "allowlist"\n'
        'allowed_hosts = ["allowed.invalid", "*.b.invalid", "single"]',
    )
    earns(harbor, task, nop=None)


@pytest.mark.parametrize(
    ("host", "why"),
    [("10.1.2.3", "IPv4 addresses"), ("10.0.0.0/8", "IPv4 CIDR"), ("*.invalid", "too wide")],
)
def test_a_network_that_cannot_be_enforced_is_refused(harbor, client, host, why) -> None:
    task = harbor.init("refused", "--verifier-mode", "shared")
    harbor.edit(
        task, 'network_mode = "public"', f'network_mode = "allowlist"\nallowed_hosts = ["{host}"]'
    )
    job = harbor.run(task, "-a", "oracle")
    assert job.status != 0 or job.exceptions not in ([None], [])
    assert why in job.said + job.log()
    assert job.rewards in ([], [None])


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("[environment]", "[environment]\ngpus = 1", "does not support GPU"),
        (
            "[environment]",
            '[environment]\ntpu = { type = "v4", topology = "2x2" }',
            "does not support TPU",
        ),
        ("[environment]", '[environment]\ndocker_image = "nowhere:9"', "no image 'nowhere:9' here"),
    ],
)
def test_what_a_sandbox_cannot_be_is_refused(harbor, client, old, new, why) -> None:
    task = harbor.init("impossible", "--verifier-mode", "shared")
    harbor.edit(task, old, new)
    job = harbor.run(task, "-a", "oracle")
    assert job.status != 0 or job.exceptions not in ([None], [])
    assert why in job.said + job.log()
    assert job.rewards in ([], [None])


def test_a_task_of_several_containers_fails_alone_and_clearly(harbor, client) -> None:
    task = harbor.init("compose", "--verifier-mode", "shared")
    (task / "environment" / "docker-compose.yaml").write_text("services: {main: {image: a}}\n")
    job = harbor.run(task, "-a", "oracle")
    assert job.exceptions == ["ServiceOperationsUnsupportedError"]
    assert "Docker Compose needs several" in job.log()


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        (
            "FROM ubuntu:24.04\nRUN echo said; exit 3\n",
            "line 2: RUN echo said; exit 3 failed: status 3",
        ),
        ("FROM ubuntu:24.04\nADD x y\n", "line 2: ADD is not taken"),
        ("FROM elsewhere:1\n", "no image 'elsewhere:1' here"),
    ],
)
def test_an_image_that_cannot_be_built_is_no_reward(harbor, client, recipe, why) -> None:
    task = harbor.init("broken", "--verifier-mode", "shared")
    (task / "environment" / "Dockerfile").write_text(recipe)
    job = harbor.run(task, "-a", "oracle")
    assert job.exceptions == ["SandboxBuildFailedError"]
    assert job.rewards == [None]
    assert why in job.log()


def test_a_readonly_mount_is_there_and_nobody_can_change_it(harbor, client, tmp_path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("hello\n")
    task = harbor.init("mounted", "--verifier-mode", "shared")
    (task / "solution" / "solve.sh").write_text(
        "#!/bin/bash\necho no > /data/a.txt; rm -rf /data; cp /data/a.txt /one.txt /app/\n"
        "mv /app/a.txt /app/hello.txt\n"
    )
    mounts = [
        {"type": "bind", "source": str(tmp_path / "data"), "target": "/data", "read_only": True},
        {
            "type": "bind",
            "source": str(tmp_path / "data/a.txt"),
            "target": "/one.txt",
            "read_only": True,
        },
    ]
    job = harbor.run(task, "-a", "oracle", "--mounts", json.dumps(mounts))
    assert job.rewards == [1.0], job.log() + job.said
    mounts[0].pop("read_only")
    job = harbor.run(task, "-a", "oracle", "--mounts", json.dumps(mounts))
    assert "only read-only bind mounts are taken" in job.said + job.log()
    assert job.rewards in ([], [None])
