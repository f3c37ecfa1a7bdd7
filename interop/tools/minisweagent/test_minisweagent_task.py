"""`mini` on a real repository with a real bug; its patch is graded by tests that it never saw."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from scripted_turns import ENVIRONMENT, MEND, PLACE, SUBMIT, WRONG, configuration, sandboxed

import skerry
from interop.looking import sandboxes
from interop.sources import repository

LOCAL = os.environ.get("INTEROP_BACKEND") == "local"
LAYER = "workspace/mini-semver"
BASE = "git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm base"


@pytest.fixture(scope="module")
def semver(tmp_path_factory):
    return repository("semver-3.0.2", tmp_path_factory.mktemp("semver"))


@pytest.fixture(scope="module")
def layer(semver):
    """The repository as its users know it, with a history: a layer, for as many agents as come."""
    with skerry.connect() as client:
        client.images.build(
            LAYER,
            image=os.environ["INTEROP_IMAGE"],
            context=semver.bug,
            steps=[f"mkdir {PLACE} && cp -a . {PLACE} && cd {PLACE} && {BASE}"],
        )
        yield LAYER
        client.images.remove(LAYER)


def mini(place: Path, prompt: str, *commands: str, environment: dict) -> dict:
    """Runs the program as a user does, and returns the trajectory that it wrote."""
    config = configuration(place, *commands, environment=environment)
    argv = ["mini", "-c", "mini.yaml", "-c", str(config), "-t", prompt, "-y"]
    done = subprocess.run(
        [*argv, "--exit-immediately", "-o", str(place / "traj.json")],
        env=os.environ | ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((place / "traj.json").read_text())


def graded(semver, patch: str) -> tuple[int, set[str]]:
    """Runs the hidden tests on a clean copy with the patch: how many passed, and which failed."""
    with skerry.connect() as client:
        options = {"image": os.environ["INTEROP_IMAGE"], "layers": [LAYER], "workdir": PLACE}
        with client.sandboxes.create(**options) as clean:
            clean.files.write("/tmp/patch", patch)
            if patch:
                applied = clean.run("git apply /tmp/patch")
                assert applied.ok, applied.error_text
            clean.files.remove(f"{PLACE}/tests", recursive=True)
            clean.files.upload(semver.fix / "tests", f"{PLACE}/tests")
            result = clean.run(
                [*semver.spec.tests.argv, "-rA"],
                env=semver.spec.tests.env,
                timeout=semver.spec.tests.timeout_s,
                merge_stderr=True,
            )
    said = [line.partition(" ") for line in result.text.splitlines()]
    failed = {rest.partition(" - ")[0] for word, _, rest in said if word == "FAILED"}
    return sum(word == "PASSED" for word, _, _ in said), failed


def observations(trajectory: dict) -> list[str]:
    return [message["content"] for message in trajectory["messages"] if message["role"] == "user"][
        1:
    ]


def judge(trajectory: dict) -> None:
    said = observations(trajectory)
    assert "base" in said[0]
    assert '"returncode": 1' in said[1]
    assert "AssertionError" in said[1]
    assert "mended" in said[4]
    info = trajectory["info"]
    assert info["exit_status"] == "Submitted"
    assert "+            return type(self)(**version)" in info["submission"]


if LOCAL:

    def test_mini_mends_a_real_bug(semver, tmp_path):
        place = tmp_path / "testbed"
        shutil.copytree(semver.bug, place)
        subprocess.run(BASE, shell=True, cwd=place, check=True)
        environment = {"environment_class": "local", "cwd": str(place)}
        judge(mini(tmp_path, semver.spec.bug, *MEND, environment=environment))

else:

    def test_mini_mends_a_real_bug(semver, layer, tmp_path):
        environment = sandboxed(layers=[layer], cwd=PLACE, labels={"task": semver.spec.id})
        trajectory = mini(tmp_path, semver.spec.bug, *MEND, environment=environment)
        judge(trajectory)
        assert trajectory["info"]["sandbox"] not in sandboxes()
        prompt = trajectory["messages"][1]["content"]
        assert "subclass" in prompt
        assert "Linux skerry" not in prompt  # its template names system, release, version, machine
        assert "Linux" in prompt
        passed, failed = graded(semver, trajectory["info"]["submission"])
        print(f"\n{semver.spec.id}: {passed} hidden tests passed, failed: {failed or 'none'}")
        assert not failed
        assert passed >= semver.spec.tests.pass_to_pass

    def test_a_patch_that_mends_nothing_fails_just_the_hidden_tests(semver, layer, tmp_path):
        environment = sandboxed(layers=[layer], cwd=PLACE)
        trajectory = mini(tmp_path, semver.spec.bug, WRONG, SUBMIT, environment=environment)
        assert trajectory["info"]["exit_status"] == "Submitted"
        assert trajectory["info"]["submission"] == ""
        passed, failed = graded(semver, trajectory["info"]["submission"])
        assert failed == set(semver.spec.tests.fail_to_pass)
        assert passed > 0
