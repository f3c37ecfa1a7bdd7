"""Runs hidden tests in a fresh sandbox and says what came of them (uploaded; root; stdlib only).

Reads one JSON object from standard input, writes one marked line to standard output. The code under
test runs in a child under another user; it shares no descriptor with this process but the result
pipe and a capped pipe for its output. The nonce never leaves this process but in the final line.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

RESULT_BYTES_MAX = 32 << 20
OUTPUT_TAIL = 4000
SCORE_BYTES_MAX = 4096
AFTER_EXIT_S = 0.5
PIPE_NUMBER = 230  # high, so that code which closes low descriptors does not hit it
WORDS = (
    "order", "window", "parse", "plain", "nested", "render", "simple", "stream", "record", "table",
    "header", "offset", "update", "values", "common", "unicode", "format", "inherit", "lookup",
)  # fmt: skip
PASSING = "    first = {a}\n    assert first + {b} == {c}\n"
FAILING = (
    "    first = {a}\n    assert first + {b} == {c} + 1\n",
    "    raise ValueError({a})\n",
    "    values = [{a}, {b}]\n    assert sorted(values) == values[:1]\n",
)


def clear(config: dict[str, Any]) -> None:
    """Makes room for a submission: removes paths, and whatever stands where directories must."""
    root = config["workdir"] + "/"
    for path in config["remove"]:
        if not path.startswith(root) or "/../" in path:
            raise ValueError(f"not beneath the workdir: {path}")
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)
    for path in config["directories"]:
        if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
            os.unlink(path)


class Sentinels:
    """Tests of known outcome under plausible random names: forged results show in them."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.expected: dict[str, str] = {}
        self.files: list[str] = []
        self._random = random.SystemRandom()
        if not config["sentinels"]:
            return
        first = config["fail_to_pass"][0].split("::")[0]
        where = os.path.dirname(first)
        for unittest_style in (False, True, False):
            self._write(config["workdir"], where, unittest_style=unittest_style)

    def _name(self) -> str:
        return "_".join(self._random.sample(WORDS, 2)) + str(self._random.randint(2, 99))

    def _free(self, workdir: str, where: str) -> str:
        """Returns the path of a test file that is not there."""
        while True:
            relative = os.path.join(where, f"test_{self._name()}.py")
            if not os.path.lexists(os.path.join(workdir, relative)):
                return relative

    def _write(self, workdir: str, where: str, *, unittest_style: bool) -> None:
        relative = self._free(workdir, where)
        lines = (
            ["import unittest\n\n\nclass TestMore(unittest.TestCase):\n"] if unittest_style else []
        )
        prefix = f"{relative}::TestMore" if unittest_style else relative
        bodies = [(PASSING, "passed"), *((text, "failed") for text in FAILING)]
        self._random.shuffle(bodies)
        names: set[str] = set()
        for body, outcome in bodies:
            name = f"test_{self._name()}"
            while name in names:
                name = f"test_{self._name()}"
            names.add(name)
            a, b = self._random.randint(100, 999), self._random.randint(1000, 9999)
            text = body.format(a=a, b=b, c=a + b)
            head = f"def {name}({'self' if unittest_style else ''}):\n"
            whole = head + text + "\n\n"
            if unittest_style:
                whole = "".join(
                    "    " + line + "\n" if line else "\n" for line in whole.splitlines()
                )
            lines.append(whole)
            self.expected[f"{prefix}::{name}"] = outcome
        path = os.path.join(workdir, relative)
        with open(path, "x") as file:
            file.write("".join(lines))
        self.files.append(path)

    def judge(self, outcomes: dict[str, str], status: int) -> list[str]:
        """Removes the sentinels from the outcomes; returns a line for each that lies.

        One that did not run is a lie only if pytest says that the tests ran (status 0 or 1).
        """
        lies = []
        for name, expected in self.expected.items():
            seen = outcomes.pop(name, "not run" if status in (0, 1) else expected)
            if seen != expected:
                lies.append(f"a test that must have {expected} is reported as {seen}")
        return sorted(set(lies))


def start_child(config: dict[str, Any], sentinels: Sentinels, token: str) -> tuple[Any, int, int]:
    """Starts the test process; returns it, the result pipe and the output pipe."""
    user = pwd.getpwnam(config["user"])
    if not user.pw_uid or user.pw_uid == config["score_uid"]:
        raise ValueError(f"the tests must not run as uid {user.pw_uid}")
    home = tempfile.mkdtemp(prefix="home-")
    os.chown(home, user.pw_uid, user.pw_gid)
    result_r, result_w = os.pipe()
    output_r, output_w = os.pipe()
    os.dup2(result_w, PIPE_NUMBER)
    os.close(result_w)
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": home, "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **config["env"],
    }  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-I", "-B", os.path.join(os.path.dirname(__file__), "collect.py")],
        stdin=subprocess.PIPE,
        stdout=output_w,
        stderr=output_w,
        pass_fds=(PIPE_NUMBER,),
        cwd=config["workdir"],
        env=environment,
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=[],
        umask=0o022,
        start_new_session=True,
    )
    os.close(output_w)
    os.close(PIPE_NUMBER)
    # When memory runs out inside, the tests go before this process does.
    with open(f"/proc/{child.pid}/oom_score_adj", "w") as adjust:
        adjust.write("1000")
    keys = ("args", "import_roots", "plugins", "guard", "workdir", "test_paths")
    told = {key: config[key] for key in keys} | {"token": token, "channel": PIPE_NUMBER}
    told["extra"] = sentinels.files
    told["watched"] = [*config["fail_to_pass"], *sentinels.expected]
    with contextlib.suppress(BrokenPipeError):
        assert child.stdin is not None  # noqa: S101 - asked for above
        child.stdin.write(json.dumps(told).encode())
        child.stdin.close()
    return child, result_r, output_r


def follow(child: Any, result: int, output: int, timeout: float) -> tuple[bytes, bytes, bool]:
    """Reads both pipes until the child has ended and they are silent; kills it after the timeout."""
    until = time.monotonic() + timeout
    kept = {result: bytearray(), output: bytearray()}
    open_pipes = {result, output}
    timed_out = False
    gone_at: float | None = None
    while open_pipes:
        now = time.monotonic()
        if gone_at is None and child.poll() is not None:
            gone_at = now
        if gone_at is not None and now > gone_at + AFTER_EXIT_S:
            break  # something that the tests left behind holds a pipe
        if gone_at is None and now > until:
            timed_out = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            continue
        for pipe in select.select(list(open_pipes), [], [], 0.02)[0]:
            data = os.read(pipe, 65536)
            if not data:
                open_pipes.discard(pipe)
            kept[pipe] += data
            if pipe == output:
                del kept[pipe][:-OUTPUT_TAIL]
            elif len(kept[pipe]) > RESULT_BYTES_MAX:
                open_pipes.discard(pipe)
    if child.poll() is None:
        try:
            child.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            timed_out = True
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    return bytes(kept[result]), bytes(kept[output]), timed_out


def read_result(raw: bytes, token: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Returns the child's one message, and a line for anything else on its channel."""
    if not raw:
        return None, []
    lines = raw.split(b"\n")
    prefix = token.encode() + b" "
    real = [line for line in lines if line.startswith(prefix)]
    strange = [line for line in lines if line and not line.startswith(prefix)]
    if strange or len(real) != 1:
        return None, ["something else than the test process wrote to the result channel"]
    message: dict[str, Any] = json.loads(real[0][len(prefix) :])
    return message, []


def sweep(user: str) -> None:
    """Ends every process of the tests' account, however it got away."""
    # Not as root: -1 would stand for everything. The effective user is what kill goes by.
    os.seteuid(pwd.getpwnam(user).pw_uid)
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    finally:
        os.seteuid(0)


def run_score(config: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    """Runs the task's own verifier and returns what it wrote to its channel, and how it ended."""
    order = config["score"]
    told = {key: report[key] for key in ("outcomes", "seconds")} | {"workdir": config["workdir"]}
    text = json.dumps(told)
    result_r, result_w = os.pipe()
    output_r, output_w = os.pipe()
    # A file, not a pipe: it need not read what it is told.
    with tempfile.TemporaryFile("w+") as known:
        known.write(text)
        known.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-I", "-B", order["program"]],
            stdin=known,
            stdout=output_w,
            stderr=output_w,
            pass_fds=(result_w,),
            cwd=config["workdir"],
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8",
                "PYTHONDONTWRITEBYTECODE": "1", "SKERRY_SCORE_FD": str(result_w),
            },
            user=config["score_uid"],
            group=config["score_uid"],
            extra_groups=[],
            umask=0o077,
            start_new_session=True,
        )  # fmt: skip
    os.close(output_w)
    os.close(result_w)
    raw, tail, timed_out = follow(child, result_r, output_r, order["timeout_s"])
    return {
        "text": raw[:SCORE_BYTES_MAX].decode("utf-8", "replace"), "status": child.returncode,
        "timed_out": timed_out, "detail": tail.decode("utf-8", "replace")[-2000:],
    }  # fmt: skip


def verify(config: dict[str, Any]) -> dict[str, Any]:
    """Runs the tests once; returns the report."""
    token = os.urandom(16).hex()
    started = time.monotonic()
    try:
        sentinels = Sentinels(config)
        child, result, output = start_child(config, sentinels, token)
    except (OSError, KeyError, ValueError) as error:
        # What fills the disk's quota to the last block is the submission, and nobody else.
        full = isinstance(error, OSError) and error.errno == errno.EDQUOT
        step = "ran" if full else "setup"
        return {"step": step, "detail": f"{type(error).__name__}: {error}"}
    raw, tail, timed_out = follow(child, result, output, config["timeout_s"])
    if config["sweep"]:
        sweep(config["user"])
    message, forged = read_result(raw, token)
    detail = tail.decode("utf-8", "replace")[-2000:]
    report: dict[str, Any] = {
        "step": "ran", "timed_out": timed_out, "status": child.returncode, "detail": detail,
        "forged": forged, "seconds": time.monotonic() - started,
    }  # fmt: skip
    if message is None:
        return report
    outcomes = message["outcomes"]
    report["forged"] = forged + message["forged"] + sentinels.judge(outcomes, message["status"])
    report["outcomes"] = outcomes
    report["finished"] = not timed_out and child.returncode == message["status"]
    if config["score"] and report["finished"] and not report["forged"]:
        report["score"] = run_score(config, report)
    return report


def main() -> None:
    """Reads the order, carries it out, writes the report."""
    config = json.loads(sys.stdin.buffer.read())
    if config["mode"] == "clear":
        clear(config)
        return
    try:
        report = verify(config)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
        report = {"step": "ran", "detail": f"the runner failed: {type(error).__name__}: {error}"}
    sys.stdout.write(f"SKERRY-REPORT-{config['nonce']} {json.dumps(report)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
