"""Runs the scenarios of one tool and judges what its tests reported."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec

from interop.tools import ROOT, Explained, Scenario, Tool


class Row(msgspec.Struct, frozen=True):
    """What the table says of one scenario."""

    tool: str
    title: str
    version: str
    scenario: str
    passed: int
    failed: int
    explained: dict[str, str]  # failed tests and why that is not ours
    unexplained: list[str]
    seconds: float
    local_seconds: float | None = None
    page: str = ""

    @property
    def good(self) -> bool:
        """Some tests passed, and each failure is explained."""
        return self.passed > 0 and not self.unexplained


def run(
    tool: Tool,
    scenario: Scenario,
    python: Path,
    url: str,
    *,
    image: str,
    compare: bool,
    until: float,
) -> Row:
    """Runs it against the node at `url`; with `compare` on the tool's own local backend too.

    `until` is of the monotonic clock; a scenario that is not done then has failed.
    """
    report, seconds, said = _pytest(
        tool, scenario, python, {"SKERRY_URL": url, "INTEROP_IMAGE": image}, until
    )
    passed, failed, explained, unexplained = _judge(report, tool.explained)
    if report is None:
        unexplained = [f"no report within {seconds:.0f} s: {said[-2000:]}"]
    elif unexplained:
        print(said[-20000:], flush=True)
    local = None
    if compare and scenario.local:
        local_report, local_seconds, _ = _pytest(
            tool, scenario, python, {"INTEROP_BACKEND": "local"}, until
        )
        local = local_seconds if local_report is not None else None
    return Row(
        tool=tool.name,
        title=tool.title,
        version=_version(tool, python),
        scenario=scenario.name,
        passed=passed,
        failed=failed,
        explained=explained,
        unexplained=unexplained,
        seconds=round(seconds, 1),
        local_seconds=None if local is None else round(local, 1),
        page=tool.page,
    )


def _pytest(
    tool: Tool, scenario: Scenario, python: Path, env: dict[str, str], until: float
) -> tuple[ET.Element | None, float, str]:
    """Returns pytest's report, None if it made none in time, the seconds, and what it said."""
    with tempfile.TemporaryDirectory(prefix="skerry-interop-", dir="/var/tmp") as place:
        report = f"{place}/report.xml"
        argv = [str(python), "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "--tb=short"]
        argv += ["-c", str(ROOT / "interop" / "pytest.ini"), f"--rootdir={ROOT / 'interop'}"]
        argv += [
            f"--basetemp={place}/tmp",
            f"--junitxml={report}",
            str(tool.place / scenario.tests),
        ]
        started = time.monotonic()
        left = max(1.0, min(float(scenario.timeout_s), until - started))
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=place,
            env=_environment(python, place) | env,
        )
        try:
            said, _ = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            process.terminate()  # its fixtures clean up
            try:
                said, _ = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
            return None, time.monotonic() - started, said
        seconds = time.monotonic() - started
        try:
            return ET.parse(report).getroot(), seconds, said
        except (OSError, ET.ParseError):
            return None, seconds, said


def _environment(python: Path, place: str) -> dict[str, str]:
    """Of the tests: the tool's own programs in PATH, Skerry by its source, and no network wanted."""
    kept = {
        key: os.environ[key]
        for key in ("LANG", "TERM", "OPENBLAS_CORETYPE", "SKERRY_CACHE")
        if key in os.environ
    }
    return kept | {
        "PATH": f"{python.parent}:{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": place,
        "SKERRY_PROGRAM": str(ROOT / ".venv" / "bin" / "skerry"),
    }


def _judge(
    report: ET.Element | None, known: list[Explained]
) -> tuple[int, int, dict[str, str], list[str]]:
    """Returns how many passed and failed, which failures are explained, and what speaks against us."""
    passed, explained, unexplained, ran = 0, {}, [], set()
    reasons = {item.test: item.reason for item in known}
    for case in report.iter("testcase") if report is not None else ():
        name = case.get("name", "")
        ran.add(name)
        if case.find("failure") is not None or case.find("error") is not None:
            if name in reasons:
                explained[name] = reasons[name]
            else:
                unexplained.append(name)
        elif case.find("skipped") is not None:
            unexplained.append(f"{name} was skipped: {case.find('skipped').get('message', '')}")  # type: ignore[union-attr]
        else:
            passed += 1
            if name in reasons:
                unexplained.append(f"{name} passes, though tool.toml explains why it fails")
    return passed, len(explained) + len(unexplained), explained, unexplained


def _version(tool: Tool, python: Path) -> str:
    code = f"import importlib.metadata as m; print(m.version({tool.package!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "?"
