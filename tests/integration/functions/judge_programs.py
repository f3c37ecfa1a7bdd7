"""Public programs with known answers, and what is made of them that has another outcome.

Python: MicroPython's tests of the language, from Debian's source package. Their rule is that a program
prints what CPython prints; `python_answers.txt` has digests of that. C: tests of the Tiny C Compiler,
which come with their outputs; `c_programs.txt` names those that gcc compiles. Both are pinned by hash.
"""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from skerry.spec.function_limits import CallLimits, Limit
from skerry.spec.limits import MIB

HERE = Path(__file__).parent
FETCH = HERE.parents[2] / "scripts" / "source-package.sh"
PYTHON_SOURCE = (
    "micropython", "trixie", "micropython_1.25.0+ds.orig.tar.xz",
    "7b25be99a502f070b2de81dafc08da7051d992325d6e67daa9045a918fffdbea",
)  # fmt: skip
C_SOURCE = (
    "tcc", "bookworm", "tcc_0.9.27+git20200814.62c30a4a.orig.tar.bz2",
    "d63c113bcdd657f51c8ee197a0b0a24203603313e19a52b5f678d40ab7f5df35",
)  # fmt: skip
LIMITS = CallLimits(
    wall_s=20, cpu_s=5, memory_bytes=128 * MIB, output_bytes=MIB // 4, processes=64,
    disk_bytes=8 * MIB,
)  # fmt: skip
QUICK = CallLimits(
    wall_s=20, cpu_s=0.5, memory_bytes=64 * MIB, output_bytes=MIB // 4, processes=64,
    disk_bytes=8 * MIB,
)  # fmt: skip


class Program(NamedTuple):
    """A program, and how its run is judged: a verdict of `judge`."""

    name: str
    code: str
    digest: str  # of what the original prints
    verdict: str = "accepted"
    limits: CallLimits = LIMITS
    beside: str = ""  # of a C program: a second source


def digest(output: bytes) -> str:
    """Returns what `python_answers.txt` has of an output."""
    return hashlib.sha256(output).hexdigest()[:16]


def source(which: tuple[str, ...]) -> Path:
    """Returns the package's file; RuntimeError with the reason if it cannot be had."""
    done = subprocess.run([str(FETCH), *which], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    return Path(done.stdout.strip())


def texts(which: tuple[str, ...], below: str) -> dict[str, bytes]:
    """Returns the files of a folder of the archive, by their path from there."""
    found = {}
    with tarfile.open(source(which)) as archive:
        for member in archive:
            _, marker, path = f"/{member.name}".partition(f"/{below}/")
            if marker and member.isfile() and (file := archive.extractfile(member)) is not None:
                found[path] = file.read()
    return found


def python_programs() -> list[Program]:
    """Returns those whose answers are known, as they are."""
    files = texts(PYTHON_SOURCE, "tests")
    lines = (HERE / "python_answers.txt").read_text().splitlines()
    return [
        Program(name, files[name.removeprefix("tests/")].decode(), known)
        for known, name in map(str.split, lines)
    ]


def c_programs() -> list[Program]:
    """Returns those whose answers are known, as they are."""
    files = texts(C_SOURCE, "tests/tests2")
    names = (HERE / "c_programs.txt").read_text().split()
    return [
        Program(name, files[f"{name}.c"].decode(), digest(files[f"{name}.expect"]))
        for name in names
    ]


# What is added to a Python program: before it, after it, and its verdict then.
PYTHON_WRONG = (
    ("", "\nprint('?')\n"),  # it says more
    ("raise SystemExit\n", ""),  # it says nothing
    ("print(end='\\x00')\n", ""),
    ("", "\nopen(1, 'w', closefd=False).write('\\n')\n"),  # one line more
)
PYTHON_ENDS = (
    ("while True: pass", "over cpu"),
    ("import threading\nfor n in range(4): threading.Thread(target=exec, args=['while 1: 0']).start()",
     "over cpu"),
    ("import time; time.sleep(99)", "over wall"),
    ("import signal\nsignal.pthread_sigmask(0, range(1, 65))\nsignal.pause()", "over wall"),
    ("x = []\nwhile True: x.append(bytearray(1 << 20))", "over memory"),
    ("import mmap\nm = mmap.mmap(-1, 1 << 28)\nfor n in range(0, 1 << 28, 4096): m[n] = 1",
     "over memory"),
    ("while True: print('x' * 4096)", "over output"),
    ("import os\nwhile True: os.write(2, b'x' * 4096)", "over output"),
    ("import os\nwhile True: os.fork()", "over processes"),
    ("with open('/tmp/big', 'wb') as f:\n  while True: f.write(bytes(1 << 16))", "over disk"),
    ("import os; os.abort()", "crashed"),
    ("import ctypes; ctypes.string_at(0)", "crashed"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "crashed"),
    ("raise SystemExit(7)", "failed"),
    ("import os; os._exit(1)", "failed"),
    ("raise ValueError('judge')", "failed"),
    ("import sys; sys.exit('no')", "failed"),
    (")", "failed"),
)  # fmt: skip
# A second source of a C program, whose code runs when that has ended, and the verdict then.
C_WRONG = "extern int puts(const char *);\n"
C_AT_END = "__attribute__((destructor)) static void at_end(void)"
C_ENDS = (
    (C_AT_END + " { for (;;); }", "over cpu"),
    ("extern int pause(void);\n" + C_AT_END + " { for (;;) pause(); }", "over wall"),
    ("extern void *malloc(unsigned long); extern void *memset(void *, int, unsigned long);\n" + C_AT_END
     + " { for (;;) memset(malloc(1 << 20), 1, 1 << 20); }", "over memory"),
    ("extern int puts(const char *);\n" + C_AT_END + ' { for (;;) puts("more and more"); }',
     "over output"),
    ("extern int fork(void);\n" + C_AT_END + " { for (;;) fork(); }", "over processes"),
    (C_AT_END + " { __builtin_trap(); }", "crashed"),
    ("static int down(volatile int n) { volatile char room[4096]; room[n % 4096] = 1;\n"
     "return down(n + 1) + room[0]; }\n" + C_AT_END + " { down(0); }", "crashed"),
    ("extern void _exit(int);\n" + C_AT_END + " { _exit(3); }", "failed"),
    ("int broken = ;", "not compiled"),
    ('#include "no such file"', "not compiled"),
    ('char zeros[] = {\n#include "/dev/zero"\n};', "not compiled"),
)  # fmt: skip


def variants(right: list[Program], *, c: bool) -> Iterator[Program]:
    """Yields of each program one with a wrong answer, and of some one that ends in another way."""
    for number, program in enumerate(right):
        if c:
            says = "?" * (1 + number % 3)
            beside = f'{C_WRONG}{C_AT_END} {{ puts("{says}"); }}'
            yield program._replace(verdict="wrong answer", beside=beside)
        else:
            before, after = PYTHON_WRONG[number % len(PYTHON_WRONG)]
            code = before + program.code + after
            yield program._replace(verdict="wrong answer", code=code)
    for number, (text, verdict) in enumerate(C_ENDS if c else PYTHON_ENDS):
        # Each in more than one program: what they leave behind differs.
        for program in right[number :: len(right) // 4]:
            limits = QUICK
            if verdict == "over wall":
                limits = CallLimits(wall_s=0.5, memory_bytes=64 * MIB, processes=64)
            changed = program._replace(verdict=verdict, limits=limits)
            if c:
                yield changed._replace(beside=text)
            else:
                yield changed._replace(code=f"{program.code}\n{text}\n")


def judge(result, program: Program) -> str:
    """Returns the verdict on how a program ended."""
    if result.compile is not None and not result.compile.ok:
        return "not compiled"
    if result.limit is not None:
        return f"over {Limit(result.limit)}"
    if result.signal is not None:
        return "crashed"
    if result.exit_code != 0:
        return "failed" if result.start_error is None else f"not started: {result.start_error}"
    return "accepted" if digest(result.stdout) == program.digest else "wrong answer"
