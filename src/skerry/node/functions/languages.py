"""The languages of `compile_run`: how each is compiled and run, with the image's own toolchain.

Everything that a toolchain writes lies in /call: its home, its caches, its temporary files. The
program is /call/a.out, but for Java.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import NamedTuple

from skerry.spec.function import CompileRunCall, Language
from skerry.spec.function_limits import CallLimits
from skerry.spec.limits import MIB

PROGRAM = "a.out"
SUFFIXES = {
    Language.C: (".c",),
    Language.CPP: (".cpp", ".cc", ".cxx", ".C"),
    Language.FORTRAN: (".f90", ".f95", ".f03", ".f", ".for"),
    Language.GO: (".go",),
    Language.JAVA: (".java",),
    Language.RUST: (".rs",),
}


Words = Callable[[CompileRunCall, CallLimits], tuple[str, ...]]


class Recipe(NamedTuple):
    """How a language is compiled. `compilers` are tried in order: the first that the image has."""

    compilers: tuple[str, ...]
    compile: Words  # after the compiler
    run: Words
    env: dict[str, str]


def _sources(call: CompileRunCall) -> tuple[str, ...]:
    """Returns what the compiler is given by name: other sources are found by those (headers)."""
    suffixes = SUFFIXES[call.language]
    named = tuple(f"./{name}" for name in call.sources if name.endswith(suffixes))
    return named or tuple(f"./{name}" for name in call.sources)


def _unix(*words: str, last: tuple[str, ...] = ()) -> Words:
    def made(call: CompileRunCall, _limits: CallLimits) -> tuple[str, ...]:
        return (*words, *call.flags, "-o", PROGRAM, *_sources(call), *last)

    return made


def _rust(call: CompileRunCall, _limits: CallLimits) -> tuple[str, ...]:
    root = next(iter(call.sources))
    return ("--crate-name", "main", *call.flags, "-o", PROGRAM, f"./{root}")


def _java(call: CompileRunCall, limits: CallLimits) -> tuple[str, ...]:
    heap = tuple(f"-J{word}" for word in _heap(limits))
    return (*heap, "-d", ".", *call.flags, *_sources(call))


def _heap(limits: CallLimits) -> tuple[str, ...]:
    """Returns a heap within the call's memory: a quarter of the host's is Java's own choice."""
    return (f"-Xmx{limits.memory_bytes * 7 // 10 // MIB}m", "-XX:+UseSerialGC")


def _program(call: CompileRunCall, _limits: CallLimits) -> tuple[str, ...]:
    return (f"./{PROGRAM}", *call.args)


def _java_run(call: CompileRunCall, limits: CallLimits) -> tuple[str, ...]:
    """The class with `main` is the first source's, in the package that its text names."""
    first, text = next(iter(call.sources.items()))
    name = posixpath.basename(first).removesuffix(".java")
    return ("java", *_heap(limits), "-cp", ".", _package(text) + name, *call.args)


def _package(text: str) -> str:
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["package"] and len(words) > 1:
            return words[1].rstrip(";") + "."
        if words[:1] in (["import"], ["public"], ["class"]):
            break
    return ""


_GO = {
    "GOCACHE": "/call/.cache/go-build",
    "GOPATH": "/call/.go",
    "GOFLAGS": "-buildvcs=false",
    "GO111MODULE": "off",
    "GOTOOLCHAIN": "local",  # no other version is fetched: there is no network
}

RECIPES: dict[Language, Recipe] = {
    Language.C: Recipe(("gcc", "cc", "clang"), _unix("-O2", last=("-lm",)), _program, {}),
    Language.CPP: Recipe(("g++", "c++", "clang++"), _unix("-O2"), _program, {}),
    Language.FORTRAN: Recipe(("gfortran",), _unix("-O2"), _program, {}),
    Language.GO: Recipe(("go",), _unix("build"), _program, _GO),
    Language.JAVA: Recipe(("javac",), _java, _java_run, {}),
    Language.RUST: Recipe(("rustc",), _rust, _program, {}),
}


# Debian's, all that a hosted program needs: gcc alone brings no headers of the C library.
PACKAGES: dict[Language, tuple[str, ...]] = {
    Language.C: ("gcc", "libc6-dev"),
    Language.CPP: ("g++",),
    Language.FORTRAN: ("gfortran",),
    Language.GO: ("golang",),
    Language.JAVA: ("default-jdk-headless",),
    Language.RUST: ("rustc",),
}


def missing(language: Language) -> str:
    """Returns what is said when the image has no compiler for it, and how to get one."""
    names = " nor ".join(RECIPES[language].compilers)
    lead = "neither " if " nor " in names else "no "
    packages = " ".join(f"--package {name}" for name in PACKAGES[language])
    return (
        f"language {language}: the image has {lead}{names}: name an image or a layer that has the "
        "toolchain; skerry image build base/NAME --suite bookworm --package python3 "
        f"{packages} makes one"
    )
