"""The Debian base with mmdebstrap and apt replaced; the real ones are an integration test."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from skerry.errors import InvalidRequest, StorageFailed, Unavailable
from skerry.images.sources import debian

URI = "http://mirror.invalid/debian"


class Host:
    """A machine whose programs only write down how they were called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.labels = {"Debian": URI, "Debian-Security": f"{URI}-security"}
        self.calls: list[list[str]] = []
        self.sources = ""
        self.failing = ""
        monkeypatch.setattr(debian, "_run", self.run)
        monkeypatch.setattr(debian, "_stream", self.stream)
        monkeypatch.setattr(debian, "_check_host", lambda: None)

    def run(self, argv) -> str:
        if argv[0] == "dpkg":
            return "amd64\n"
        if argv[0] == "apt-config":
            return 'Acquire::http::Proxy "http://proxy.invalid";\nDPkg::Post-Invoke "x";\n'
        return "".join(f"{label}|{uri}\n" for label, uri in self.labels.items())

    def stream(self, argv, environment, _log, failure) -> None:
        self.calls.append(list(argv))
        if self.failing in argv and self.failing:
            raise Unavailable(failure)
        if "mmdebstrap" in argv:
            out, sources = argv[-2:]
            self.sources = Path(sources).read_text()
            assert environment["SOURCE_DATE_EPOCH"] == "1700000000"
            Path(out).write_bytes(b"tar")
        elif any(one.startswith("Dir::State::lists=") for one in argv):
            [lists] = [
                one.partition("=")[2] for one in argv if one.startswith("Dir::State::lists=")
            ]
            for name, date in (("a_InRelease", "22:13:20"), ("b_Release", "21:00:00")):
                text = f"Origin: Debian\nDate: Tue, 14 Nov 2023 {date} UTC\n"
                Path(lists, name).write_text(text)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


@pytest.mark.parametrize("suite", ["", "Bookworm", "../x", "12.5", "-x", "a b"])
def test_suite_that_is_no_code_name_is_refused(suite: str) -> None:
    with pytest.raises(InvalidRequest):
        debian.recipe(suite, ())


@pytest.mark.parametrize("package", ["", "-o", "a,b", "?name(x)", "a=1", "a/b", "A"])
def test_package_that_is_an_option_or_pattern_is_refused(package: str) -> None:
    with pytest.raises(InvalidRequest):
        debian.recipe("bookworm", [package])


def test_numbers_stand_for_suites_and_packages_come_on_top() -> None:
    recipe = debian.recipe("12", ["gcc", "git"])
    assert recipe["suite"] == "bookworm"
    assert recipe["packages"].split().count("git") == 1
    assert {"gcc", "python3", "sudo"} <= set(recipe["packages"].split())


def test_second_build_of_the_same_inputs_comes_from_the_cache(host: Host, tmp_path: Path) -> None:
    path = debian.root_tar("bookworm", ["gcc"], str(tmp_path), print)
    made = len(host.calls)
    assert debian.root_tar("12", ["gcc"], str(tmp_path), print) == path
    assert len(host.calls) == made
    assert debian.root_tar("bookworm", ["make"], str(tmp_path), print) != path
    again = debian.root_tar("bookworm", ["gcc"], str(tmp_path), print, refresh=True)
    assert (again, Path(again).read_bytes()) == (path, b"tar")
    assert len(host.calls) == 3 * made


def test_archives_and_proxy_are_those_of_the_machine(host: Host, tmp_path: Path) -> None:
    debian.root_tar("bookworm", (), str(tmp_path), print)
    lines = [line.partition("] ")[2] for line in host.sources.splitlines()]
    assert lines == [
        f"{URI} bookworm main",
        f"{URI} bookworm-updates main",
        f"{URI}-security bookworm-security main",
    ]
    [build] = [call for call in host.calls if "mmdebstrap" in call]
    assert '--aptopt=Acquire::http::Proxy "http://proxy.invalid";' in build
    assert not [one for one in build if "Post-Invoke" in one]
    assert build[:3] == ["setpriv", "--pdeathsig", "KILL"]


def test_sid_and_a_machine_without_security_archive_are_built_too(
    host: Host, tmp_path: Path
) -> None:
    debian.root_tar("sid", (), str(tmp_path), print)
    assert len(host.sources.splitlines()) == 1
    del host.labels["Debian-Security"]
    told: list[str] = []
    debian.root_tar("bookworm", (), str(tmp_path), told.append)
    assert len(host.sources.splitlines()) == 2
    assert any("no security updates" in line for line in told)


@pytest.mark.parametrize("failing", ["mmdebstrap", "update"])
def test_failed_build_leaves_nothing_in_the_cache(host: Host, tmp_path: Path, failing: str) -> None:
    host.failing = failing
    with pytest.raises(Unavailable):
        debian.root_tar("bookworm", (), str(tmp_path), print)
    assert os.listdir(tmp_path / "debian") == [".lock"]


def test_machine_without_a_debian_archive_is_unavailable(host: Host, tmp_path: Path) -> None:
    host.labels = {"Other": "x"}
    with pytest.raises(Unavailable, match="no Debian archive"):
        debian.root_tar("bookworm", (), str(tmp_path), print)


def test_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "mmdebstrap" else name)
    with pytest.raises(Unavailable, match="apt-get install mmdebstrap"):
        debian._check_host()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="root"):
        debian._check_host()


def test_lines_of_a_program_are_logged_and_its_last_ones_told() -> None:
    lines: list[str] = []
    debian._stream(["sh", "-c", "echo one; echo two >&2"], {}, lines.append, "x")
    assert lines == ["one", "two"]
    with pytest.raises(Unavailable, match=r"cannot \(status 3\): why"):
        debian._stream(["sh", "-c", "echo why; exit 3"], {}, lines.append, "cannot")
    with pytest.raises(StorageFailed):
        debian._stream(["sh", "-c", "echo No space left on device; exit 1"], {}, lines.append, "x")


def test_program_that_cannot_be_run_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="cannot be run"):
        debian._run(["/nonexistent/program"])
