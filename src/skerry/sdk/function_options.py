"""What a function call may be given, and the spec that is made of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from skerry.errors import InvalidRequest
from skerry.sdk.typed import listed, typed
from skerry.spec.device import DeviceClaim
from skerry.spec.function import (
    CallKind,
    CallSpec,
    CompileRunCall,
    Environment,
    InputFile,
    Isolation,
    Language,
    ProgramCall,
    PythonCall,
    ScriptCall,
)
from skerry.spec.function_limits import COMPILE_LIMITS, CallLimits
from skerry.spec.limits import parse_bytes

FileContent = bytes | str | os.PathLike[str]
InputFiles = Mapping[str, FileContent] | str | os.PathLike[str]

_KINDS: dict[str, tuple[type[CallKind], str, tuple[str, ...]]] = {
    "python": (PythonCall, "code", ("entry", "args", "kwargs")),
    "script": (ScriptCall, "source", ("interpreter", "args")),
    "program": (ProgramCall, "argv", ()),
    "compile_run": (CompileRunCall, "sources", ("language", "flags", "args", "compile_limits")),
}
_OF_KIND = {name for _, first, names in _KINDS.values() for name in (first, *names)}
_ENVIRONMENT = ("image", "layers", "modules", "python")
_LIMITS = ("wall", "cpu", "memory", "output", "processes", "disk", "open_files")
_FIELD = {"wall": "wall_s", "cpu": "cpu_s"}
_FIELD |= {name: f"{name}_bytes" for name in ("memory", "output", "disk")}
_SIZES = ("memory", "output", "disk")


class CallOptions(TypedDict, total=False):
    """What `call` takes by name, with what holds otherwise.

    Of the kind "python": code (with a function `entry`="main", called with args=() and kwargs={}; with
    entry=None a main program, with args as its texts), modules=() (imported once, before the call).
    "script": source, interpreter="sh" (or a list with its options), args=(). "program": argv.
    "compile_run": language ("c", "cpp", "fortran", "go", "java", "rust"), sources (a text, or texts by
    file name), flags=() for the compiler, args=() for the program, compile_limits={} (by the names of
    limits below; wall=60, memory="2GiB", processes=256).
    image="debian:12", layers=(): names (`kind/name[:tag]`) or digests; python="python3".
    Limits: wall=30.0 (seconds), cpu=None (seconds; as much as wall), memory="512MiB", output="1MiB" (of
    each of stdout and stderr), processes=64, disk="256MiB", open_files=256.
    env={}; fetch=(): files of /call that are wanted back, as paths or patterns such as "out/**".
    isolation="process" or "container"; idempotent=False (it may be run again if its answer is lost);
    wait=60.0 (seconds for a place); job=None, priority=0; device=None (a name, exclusively, or a
    DeviceClaim).
    """

    code: str
    entry: str | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    source: str
    interpreter: str | Sequence[str]
    argv: Sequence[str]
    language: str
    sources: str | Mapping[str, str]
    flags: Sequence[str]
    compile_limits: Mapping[str, Any] | CallLimits
    image: str
    layers: Sequence[str]
    modules: Sequence[str]
    python: str
    wall: float
    cpu: float | None
    memory: int | str
    output: int | str
    processes: int
    disk: int | str
    open_files: int
    env: Mapping[str, str] | None
    fetch: str | Sequence[str]
    isolation: str
    idempotent: bool
    wait: float
    job: str | None
    priority: int
    device: str | DeviceClaim | None


def call_of(kind: str, **options: Unpack[CallOptions]) -> CallSpec:
    """Returns the spec of what a caller asked for; its bounds are to be checked.

    Raises InvalidRequest, and TypeError for an option that there is not, as any call does.
    """
    known = CallOptions.__annotations__.keys()
    if unknown := options.keys() - known:
        raise TypeError(f"a call has no option {min(unknown)!r}; there are {', '.join(known)}")
    given: dict[str, Any] = dict(options)
    fields: dict[str, Any] = {
        name: given[name] for name in ("idempotent", "job", "priority") if name in given
    }
    if "fetch" in given:
        fetch = given["fetch"]
        fields["fetch"] = (fetch,) if isinstance(fetch, str) else tuple(fetch)
    if "wait" in given:
        fields["wait_s"] = given["wait"]
    if given.get("env"):
        fields["env"] = dict(given["env"])
    if "isolation" in given:
        fields["isolation"] = _word("isolation", given["isolation"], Isolation)
    device = given.get("device")
    if device is not None:
        fields["device"] = DeviceClaim(name=device) if isinstance(device, str) else device
    limits = limits_of({name: given[name] for name in _LIMITS if name in given})
    spec = CallSpec(
        kind=_kind_of(kind, given), environment=environment_of(given), limits=limits, **fields
    )
    return typed(spec)


def environment_of(given: Mapping[str, Any]) -> Environment:
    """Returns the environment that options name."""
    fields = {name: given[name] for name in _ENVIRONMENT if name in given}
    fields |= {name: listed(name, fields[name]) for name in ("layers", "modules") if name in fields}
    return typed(Environment(**fields))


def limits_of(given: Mapping[str, Any], above: CallLimits | None = None) -> CallLimits:
    """Returns the limits by the names of options; what is not named is as in `above`."""
    fields = (
        {} if above is None else {name: getattr(above, name) for name in above.__struct_fields__}
    )
    for name, value in given.items():
        if name not in _LIMITS:
            raise InvalidRequest(f"limits: {name!r} is none of {', '.join(_LIMITS)}")
        fields[_FIELD.get(name, name)] = parse_bytes(value, name) if name in _SIZES else value
    return typed(CallLimits(**fields))


def files_of(files: InputFiles | None) -> tuple[dict[str, InputFile], dict[str, Path]]:
    """Returns contents that are here, and local paths that are to be read, by name in /call.

    A single path is a directory, whose content is in /call: its name is "".
    """
    if files is None:
        return {}, {}
    if not isinstance(files, Mapping):
        return {}, {"": Path(files)}
    contents: dict[str, InputFile] = {}
    paths: dict[str, Path] = {}
    for name, content in files.items():
        if isinstance(content, str):
            contents[name] = InputFile(text=content)
        elif isinstance(content, bytes | bytearray | memoryview):
            contents[name] = InputFile(data=bytes(content))
        elif isinstance(content, os.PathLike):
            paths[name] = Path(content)
        else:
            raise InvalidRequest(f"files: {name!r} is neither bytes, a text nor a path")
    return contents, paths


def _kind_of(kind: str, given: dict[str, Any]) -> CallKind:
    if kind not in _KINDS:
        raise InvalidRequest(f"kind: {kind!r} is none of {', '.join(_KINDS)}")
    made, first, more = _KINDS[kind]
    if first not in given:
        raise InvalidRequest(f"{first}: a call of kind {kind!r} needs it")
    wrong = [name for name in given if name in _OF_KIND and name not in (first, *more)]
    if wrong:
        raise InvalidRequest(f"{wrong[0]}: a call of kind {kind!r} has none")
    fields = {name: given[name] for name in (first, *more) if name in given}
    fields |= {
        name: listed(name, fields[name]) for name in ("args", "argv", "flags") if name in fields
    }
    if "kwargs" in fields:
        fields["kwargs"] = dict(fields["kwargs"] or {})
    if isinstance(fields.get("interpreter"), str):
        fields["interpreter"] = (fields["interpreter"],)
    if "interpreter" in fields:
        fields["interpreter"] = tuple(fields["interpreter"])
    if kind == "compile_run":
        _of_sources(fields)
    return typed(made(**fields))


def _of_sources(fields: dict[str, Any]) -> None:
    language = _word("language", fields.get("language"), Language)
    fields["language"] = language
    if isinstance(fields["sources"], str):
        name = "Main.java" if language is Language.JAVA else f"main.{_SUFFIX[language]}"
        fields["sources"] = {name: fields["sources"]}
    fields["sources"] = dict(fields["sources"])
    limits = fields.get("compile_limits")
    if limits is not None and not isinstance(limits, CallLimits):
        fields["compile_limits"] = limits_of(limits, COMPILE_LIMITS)


_SUFFIX = {
    Language.C: "c",
    Language.CPP: "cpp",
    Language.FORTRAN: "f90",
    Language.GO: "go",
    Language.RUST: "rs",
}


def _word(name: str, value: Any, kind: type[Isolation | Language]) -> Any:
    if value not in kind.__members__.values():
        raise InvalidRequest(f"{name} must be one of {', '.join(kind)}, not {value!r}")
    return kind(value)
