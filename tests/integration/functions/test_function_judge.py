"""Hundreds of public programs with known answers, right, wrong and worse: every verdict is right."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest
from judge_programs import Program, c_programs, digest, judge, python_programs, variants

from live_node import LiveNode
from skerry.spec.function import CallSpec, CompileRunCall, Environment, Language, PythonCall
from skerry.testing.rootfs import container_reason

STORE = Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry"), "function-judge", "store")
IMAGE = "functions/judge"
PACKAGES = ("python3", "gcc", "libc6-dev")
AT_ONCE = 16


@pytest.fixture(scope="module")
def programs():
    """Both lists; they are fetched once a machine."""
    try:
        return python_programs(), c_programs()
    except RuntimeError as reason:
        pytest.skip(f"the packages with the programs cannot be had: {reason}")


@pytest.fixture(scope="module")
def judge_node():
    """A node whose store is kept between runs: an image with a compiler takes a minute to make."""
    if reason := container_reason():
        pytest.skip(reason)
    STORE.parent.mkdir(parents=True, exist_ok=True)
    with LiveNode(str(STORE)).running() as node:
        yield node


@pytest.fixture
async def judging(judge_node):
    """Judges a list of programs and returns each with its verdict and result."""
    async with judge_node.client() as client:
        await client.images.debian(IMAGE, "bookworm", PACKAGES)
        yield judging_by(client)


def judging_by(client):
    """Returns what `judging` yields."""
    environment = Environment(image=IMAGE)

    def call(program: Program, *, c: bool) -> CallSpec:
        if not c:
            kind = PythonCall(code=program.code, entry=None)
        else:
            sources = {f"{program.name}.c": program.code}
            if program.beside:
                sources["beside.c"] = program.beside
            flags = ("-std=gnu11", "-w", "-lm", "-lpthread")
            kind = CompileRunCall(language=Language.C, sources=sources, flags=flags)
        return CallSpec(kind=kind, environment=environment, limits=program.limits, wait_s=120)

    async def all_of(programs: list[Program], *, c: bool):
        places = asyncio.Semaphore(AT_ONCE)

        async def one(program: Program):
            async with places:
                result = await client.functions.call(call(program, c=c))
                return program, judge(result, program), result

        return await asyncio.gather(*map(one, programs))

    return all_of


def misjudged(seen) -> str:
    """Says which verdicts are not those that should be, and why."""
    return "\n".join(
        f"{program.name}: {verdict}, not {program.verdict}: limit {result.limit}, exit"
        f" {result.exit_code}, signal {result.signal}, {digest(result.stdout)} is not"
        f" {program.digest}, {result.stdout[-200:]!r}, {result.stderr[-300:]!r},"
        f" {result.compile and result.compile.stderr[-300:]!r}"
        for program, verdict, result in seen
        if verdict != program.verdict
    )


async def test_python_programs_are_judged_right(judging, programs) -> None:
    right, _ = programs
    assert len(right) >= 500
    seen = await judging(right, c=False)
    assert not misjudged(seen)


async def test_python_programs_that_are_wrong_or_worse_are_judged_so(judging, programs) -> None:
    right, _ = programs
    seen = await judging(list(variants(right, c=False)), c=False)
    assert not misjudged(seen)
    verdicts = Counter(verdict for _, verdict, _ in seen)
    assert verdicts["wrong answer"] == len(right)
    assert all(verdicts[f"over {what}"] >= 4 for what in ("cpu", "wall", "memory", "output"))
    assert all(verdicts[what] >= 4 for what in ("over processes", "over disk", "crashed", "failed"))


async def test_c_programs_are_compiled_and_judged_right(judging, programs) -> None:
    _, right = programs
    assert len(right) >= 80
    assert not misjudged(await judging(right, c=True))


async def test_c_programs_that_are_wrong_or_worse_are_judged_so(judging, programs) -> None:
    _, right = programs
    seen = await judging(list(variants(right, c=True)), c=True)
    assert not misjudged(seen)
    verdicts = Counter(verdict for _, verdict, _ in seen)
    assert verdicts["wrong answer"] == len(right)
    assert all(
        verdicts[what] >= 4 for what in ("not compiled", "crashed", "over cpu", "over memory")
    )
