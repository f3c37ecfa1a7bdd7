"""A request of SandboxFusion's as a function call of ours."""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from skerry.compat.sandboxfusion.wire import RunCode
from skerry.errors import InvalidRequest
from skerry.spec import function as spec
from skerry.spec.function_limits import MEMORY_MIN_BYTES, TIME_MAX_S, CallLimits
from skerry.spec.limits import MIB

HOME: Final = "/call/"
# Java, Go and Node have dozens of threads before they begin.
PROCESSES: Final = 256
OUTPUT_BYTES: Final = 16 * MIB
COMPILER_BYTES: Final = 2048 * MIB
# SandboxFusion limits the time, whatever the number of threads.
PROCESSORS: Final = 16
# A file with the code, and the program of the image that runs it.
_RUN_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "bash": ("bash", "main.sh"),
    "nodejs": ("node", "main.js"),
    "typescript": ("tsx", "main.ts"),
    "php": ("php", "-f", "main.php"),
    "perl": ("perl", "main.pl"),
    "ruby": ("ruby", "main.rb"),
    "lua": ("lua", "main.lua"),
    "R": ("Rscript", "main.R"),
    "julia": ("julia", "main.jl"),
    "racket": ("racket", "main.rkt"),
    "pytest": ("python3", "-m", "pytest", "test_main.py"),
}
_COMPILED: Final[Mapping[str, tuple[spec.Language, str, tuple[str, ...]]]] = {
    "cpp": (spec.Language.CPP, "main.cpp", ("-std=c++17",)),
    "go": (spec.Language.GO, "main.go", ()),
    "java": (spec.Language.JAVA, "Main.java", ()),
    "rust": (spec.Language.RUST, "main.rs", ()),
}
SERVED: Final = ("python", *_COMPILED, *_RUN_BY)


class NotServed(Exception):
    """SandboxFusion has the language, this server has not; the text says which there are."""


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every request of a server."""

    environment: spec.Environment = spec.Environment()
    memory_bytes: int = 1024 * MIB  # of a request that does not say
    wait_s: float = 8.0  # for a place
    job: str | None = None


def call_of(asked: RunCode, defaults: Defaults) -> tuple[spec.CallSpec, dict[str, str]]:
    """Returns the call, and for each file to be fetched its path in it by the name asked for.

    Raises NotServed for a language that is not served, InvalidRequest for a value that cannot be.
    """
    limits = _limits(asked, defaults)
    files = _files(asked.files)
    wanted = {name: path for name in asked.fetch_files if (path := _inside(name)) is not None}
    made = spec.CallSpec(
        kind=_kind(asked, files, limits),
        environment=defaults.environment,
        files=files,
        stdin=(asked.stdin or "").encode(),
        limits=limits,
        fetch=tuple(dict.fromkeys(map(_literal, wanted.values()))),
        wait_s=defaults.wait_s,
        job=defaults.job,
    )
    return made.check(), wanted


def _kind(asked: RunCode, files: dict[str, spec.InputFile], limits: CallLimits) -> spec.CallKind:
    """Returns what is to be run; a file with the code is added to `files` where it has to be one."""
    if asked.language == "python":
        return spec.PythonCall(code=asked.code, entry=None)
    if asked.language in _COMPILED:
        language, name, flags = _COMPILED[asked.language]
        files.pop(name, None)  # the code takes its place, as it does there
        compiler = msgspec.structs.replace(
            limits,
            wall_s=asked.compile_timeout,
            cpu_s=_cpu_s(asked.compile_timeout),
            memory_bytes=max(COMPILER_BYTES, limits.memory_bytes),
        )
        return spec.CompileRunCall(
            language=language, sources={name: asked.code}, flags=flags, compile_limits=compiler
        )
    if asked.language in _RUN_BY:
        argv = _RUN_BY[asked.language]
        code = asked.code
        if asked.language == "php" and "<?php" not in code:
            code = f"<?php\n{code}"
        files[argv[-1]] = spec.InputFile(data=code.encode())
        return spec.ProgramCall(argv=(*argv, *(asked.args if asked.language == "pytest" else ())))
    raise NotServed(f"{asked.language} is not served here; there are {', '.join(SERVED)}")


def _limits(asked: RunCode, defaults: Defaults) -> CallLimits:
    memory = asked.memory_limit_mb * MIB if asked.memory_limit_mb > 0 else defaults.memory_bytes
    return CallLimits(
        wall_s=asked.run_timeout,
        cpu_s=_cpu_s(asked.run_timeout),
        memory_bytes=max(memory, MEMORY_MIN_BYTES),
        output_bytes=OUTPUT_BYTES,
        processes=PROCESSES,
    )


def _cpu_s(wall_s: float) -> float:
    return min(wall_s * PROCESSORS, TIME_MAX_S)


def _files(given: Mapping[str, str | None]) -> dict[str, spec.InputFile]:
    made = {}
    for name, content in given.items():
        if content is None:
            continue
        path = _inside(name)
        if path is None:
            raise InvalidRequest(f"files: {name[:200]!r} does not lie in the program's directory")
        try:
            data = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest(f"files: {name[:200]!r} is not in base64") from None
        made[path] = spec.InputFile(data=data, executable=True)
    return made


def _inside(name: str) -> str | None:
    """Returns the path within the program's directory; None if it lies outside."""
    path = posixpath.normpath(posixpath.join(HOME, name)) if name else ""
    return path.removeprefix(HOME) if path.startswith(HOME) else None


def _literal(path: str) -> str:
    """Returns the pattern that matches this path alone."""
    return re.sub(r"[*?[]", r"[\g<0>]", path)
