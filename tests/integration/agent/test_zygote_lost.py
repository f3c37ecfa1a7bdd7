"""Zygotes that are hostile, die or hang: what they can do, and whom it costs."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from function_rig import FunctionLauncher
from native_agent import ERRNO, ERROR_STEP, PID, REAL
from zygote_box import box_of, launched, zygote_image_build

from skerry.guest import zygote

pytestmark = REAL


@pytest.fixture(scope="module")
def zygote_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zygote_image_build(tmp_path_factory.mktemp("zygote"))


def attack(launcher: FunctionLauncher) -> tuple[dict[str, int], int]:
    """What a module could do in a zygote, and the capabilities that it had."""
    with box_of(launcher, "hostile") as made:
        code = "import hostile\ndef main(): return [hostile.outcome, hostile.caps]"
        outcome, status = made.value(0, code)  # type: ignore[misc]
    return outcome, int(status.split("CapEff:")[1].split()[0], 16)


def test_hostile_module_in_a_zygote_cannot_mount_nor_make_namespaces(zygote_image: Path) -> None:
    with launched(zygote_image) as launcher:
        outcome, capabilities = attack(launcher)
    assert outcome.pop("write") == errno.EROFS
    assert set(outcome.values()) == {errno.EPERM}, outcome
    assert capabilities == 0x2401C0


def test_control_without_the_filter_that_module_mounts(
    zygote_image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKERRY_WEAK", "filter")
    with launched(zygote_image, "weak") as launcher:
        outcome, capabilities = attack(launcher)
    assert capabilities == 0x2401C0
    assert [outcome[name] for name in ("mount", "fsopen", "clone", "unshare")] == [0] * 4
    assert outcome["write"] == errno.EROFS


def test_zygote_that_dies_or_hangs_costs_its_calls_and_another_is_started(
    zygote_image: Path,
) -> None:
    sleeping = "import time\ntime.sleep(1000)"
    with launched(zygote_image) as launcher, box_of(launcher, "json") as made:
        client = made.at.client
        op = made.start(0, sleeping, None)
        while not op.started:
            client.step()
        assert made.zygote is not None
        client.send(0x06, made.zygote.handle << 2)
        client.wait(op)
        client.wait(made.zygote)
        assert op.done is not None
        assert (op.done[ERROR_STEP], op.done[ERRNO], PID in op.done) == (
            "zygote",
            errno.ECHILD,
            True,
        )
        refused = client.wait(made.start(0, sleeping, None))
        assert (refused.errors[0][ERROR_STEP], refused.errors[0][ERRNO]) == ("zygote", errno.EAGAIN)
        report = made.begin("hanging", env=("PYTHONPATH=/opt",))
        assert report.error is None
        assert made.value(0, "def main(): return 1") == 1
        made.at.renew(0)
        hung = client.wait(made.start(0, sleeping, None, timeout_ms=500))
        assert hung.done is not None
        assert (hung.done[ERROR_STEP], PID in hung.done) == ("zygote", False)
        client.wait(made.zygote)
        made.begin("json")
        assert made.value(0, "def main(): return 2") == 2


def test_zygote_that_cannot_import_says_so_and_is_none(zygote_image: Path) -> None:
    with launched(zygote_image) as launcher, box_of(launcher, "no_such", ready=False) as made:
        assert made.zygote is not None
        made.at.client.wait(made.zygote)
        report = zygote.read_report(bytes(made.zygote.out[1]))
        assert report.error is not None
        assert (report.error.kind, report.error.module) == ("import", "no_such")
        assert b"ModuleNotFoundError" in made.zygote.stderr
        refused = made.at.client.wait(made.start(0, "pass", None))
        assert refused.errors[0][ERROR_STEP] == "zygote"
        assert made.begin("json").error is None
        assert made.value(0, "def main(): return 1") == 1
