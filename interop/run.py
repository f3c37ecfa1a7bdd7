"""Runs the scenarios of one tool and judges what its tests reported."""

from __future__ import annotations

import os
import signal
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


def run(
    tool: Tool,
    scenario: Scenario,
    python: Path,
    url: str,
    *,
    image: str,
    compare: bool,
    until: float,
) -> tuple[Row, frozenset[str]]:
    """Runs it against the node at `url`; with `compare` on the tool's own local backend too.

    `until` is of the monotonic clock; a scenario that is not done then has failed. Returns the names of
    the tests that there were, too.
    """
    report, seconds, said = _pytest(
        tool, scenario, python, {"SKERRY_URL": url, "INTEROP_IMAGE": image}, until
    )
    judged = judge(report, tool.explained)
    if report is None:
        judged.unexplained.append(f"no report within {seconds:.0f} s: {said[-2000:]}")
    elif judged.unexplained:
        print(said[-20000:], flush=True)
    local = None
    if compare and scenario.local:
        local_report, local_seconds, _ = _pytest(
            tool, scenario, python, {"INTEROP_BACKEND": "local"}, until
        )
        local = local_seconds if local_report is not None else None
    row = Row(
        tool=tool.name,
        title=tool.title,
        version=version_of(tool),
        scenario=scenario.name,
        passed=judged.passed,
        failed=judged.failed,
        explained=judged.explained,
        unexplained=judged.unexplained,
        seconds=round(seconds, 1),
        local_seconds=None if local is None else round(local, 1),
        page=tool.page,
    )
    return row, frozenset(judged.names)


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
        except BaseException as why:
            said = end(process)
            if not isinstance(why, subprocess.TimeoutExpired):
                raise
            return None, time.monotonic() - started, said
        seconds = time.monotonic() - started
        try:
            return ET.parse(report).getroot(), seconds, said
        except (OSError, ET.ParseError):
            return None, seconds, said


def end(process: subprocess.Popen[str]) -> str:
    """Ends pytest so that its fixtures clean up, which a SIGTERM would not do; returns what it said."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


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


class Judged(msgspec.Struct):
    """What a report says; `unexplained` is what speaks against us."""

    passed: int = 0
    explained: dict[str, str] = {}
    unexplained: list[str] = []
    names: list[str] = []

    @property
    def failed(self) -> int:
        """How many did not end as they should."""
        return len(self.explained) + len(self.unexplained)


def judge(report: ET.Element | None, known: list[Explained]) -> Judged:
    """Weighs each test of a report: one that is skipped is bad too, or passes though it is explained."""
    judged = Judged()
    reasons = {item.test: item.reason for item in known}
    for case in report.iter("testcase") if report is not None else ():
        name = case.get("name", "")
        judged.names.append(name)
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            if name in reasons:
                judged.explained[name] = reasons[name]
            else:
                judged.unexplained.append(name)
        elif skipped is not None:
            judged.unexplained.append(f"{name} was skipped: {skipped.get('message', '')}")
        else:
            judged.passed += 1
            if name in reasons:
                judged.unexplained.append(f"{name} passes, though tool.toml explains why it fails")
    return judged


def objections(tool: Tool, rows: list[Row], names: frozenset[str]) -> list[str]:
    """Returns what speaks against the scenarios that ran; `names` are those of their tests."""
    found = []
    for row in rows:
        found += [f"{row.tool}, {row.scenario}: {what}" for what in row.unexplained]
        if not row.passed:
            found.append(f"{row.tool}, {row.scenario}: nothing passed")
    if len(rows) == len(tool.scenario):  # else the test may be of one that did not run
        found += [
            f"{tool.name}: tool.toml explains {item.test}, which there is not"
            for item in tool.explained
            if item.test not in names
        ]
    return found


def version_of(tool: Tool) -> str:
    """Returns the version that is installed: lock.txt pins it."""
    lock = tool.place / "lock.txt"
    for line in lock.read_text().splitlines() if lock.exists() else ():
        name, _, version = line.partition("==")
        if name.lower().replace("_", "-") == tool.package:
            return version
    return "?"
