"""Public programs with known answers, and what is made of them that has another outcome.

C: tests of the Tiny C Compiler, from Debian's source package, pinned by hash, which come with their
outputs; `c_programs.txt` names those that gcc compiles.
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
SHORT = CallLimits(wall_s=0.5, memory_bytes=64 * MIB, processes=64)


class Program(NamedTuple):
    """A program, and how its run is judged: a verdict of `judge`."""

    name: str
    code: str
    digest: str  # of what the original prints
    verdict: str = "accepted"
    limits: CallLimits = LIMITS
    beside: str = ""  # of a C program: a second source


def digest(output: bytes) -> str:
    """Returns what is compared of an output."""
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


def c_programs() -> list[Program]:
    """Returns those whose answers are known, as they are."""
    files = texts(C_SOURCE, "tests/tests2")
    names = (HERE / "c_programs.txt").read_text().split()
    return [
        Program(name, files[f"{name}.c"].decode(), digest(files[f"{name}.expect"]))
        for name in names
    ]


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


def c_variants(right: list[Program]) -> Iterator[Program]:
    """Yields of each program one with a wrong answer, and of some one that ends in another way."""
    for number, program in enumerate(right):
        beside = f'{C_WRONG}{C_AT_END} {{ puts("{"?" * (1 + number % 3)}"); }}'
        yield program._replace(verdict="wrong answer", beside=beside)
    for number, (text, verdict) in enumerate(C_ENDS):
        # Each in more than one program: what they leave behind differs.
        for program in right[number :: len(right) // 4]:
            limits = SHORT if verdict == "over wall" else QUICK
            yield program._replace(verdict=verdict, limits=limits, beside=text)


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
