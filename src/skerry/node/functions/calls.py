"""What the kinds of a call come to: operations in a cell, and the result that they make."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import msgspec

from skerry.errors import Bug, DiskFull, InvalidRequest
from skerry.guest import zygote as zygotes
from skerry.guest.api import Kind, Stream
from skerry.node.functions import languages
from skerry.node.functions.api import CallStreams
from skerry.node.functions.cellrun import HOME, CellRun, Sink
from skerry.node.functions.outcome import step_of
from skerry.node.functions.sink import CallSink, StreamSink
from skerry.spec.function import (
    CallSpec,
    CompileRunCall,
    InputFile,
    ProgramCall,
    PythonCall,
    ScriptCall,
)
from skerry.spec.function_limits import Limit
from skerry.spec.function_result import VALUE_BYTES_MAX, CallError, CallResult, Step
from skerry.spec.values import check_json_like

WRITTEN: Final = 946_684_800  # when a call's files were: archivers want a year after 1980
MAIN: Final = "main.py"  # where the zygote puts a call's code
READ_AT_ONCE_BYTES: Final = 64 << 10
SCRIPT: Final = ".skerry-script"  # in /call, unless the call brings a file of that name

_reading: Final = ThreadPoolExecutor(1, thread_name_prefix="skerry-value")


async def execute(
    run: CellRun, spec: CallSpec, streams: CallStreams | None, *, queued_s: float
) -> CallResult:
    """Returns how the call ended, but for its files.

    Raises NotStarted, Lost, and what is the caller's fault.
    """
    kind = spec.kind
    if isinstance(kind, PythonCall):
        run.open(spec.limits)
        await bring(run, spec.files, streams)
        return await _python(run, spec, kind, streams, queued_s)
    compiled = None
    if isinstance(kind, CompileRunCall):
        compiled = await compile_in(run, spec, kind, streams)
        if not compiled.ok:
            return CallResult(compile=compiled)
        argv = languages.RECIPES[kind.language].run(kind, spec.limits)
        run.open(spec.limits)
    else:
        run.open(spec.limits)
        files = dict(spec.files)
        argv = _argv(run, kind, files)
        await bring(run, files, streams)
    step = await run_in(run, spec, argv, streams, queued_s)
    return _result(step, compile=compiled)


async def run_compiled(
    run: CellRun,
    spec: CallSpec,
    built: AsyncIterator[bytes],
    streams: CallStreams | None,
    *,
    compiled: Step,
    queued_s: float,
) -> CallResult:
    """Returns how a program ended that was compiled in another cell, of which `built` is an archive."""
    if not isinstance(spec.kind, CompileRunCall):
        raise Bug("what is not compiled has no artifact")
    run.open(spec.limits)
    await _unpack(run, built)
    argv = languages.RECIPES[spec.kind.language].run(spec.kind, spec.limits)
    step = await run_in(run, spec, argv, streams, queued_s)
    return _result(step, compile=compiled)


async def compile_in(
    run: CellRun, spec: CallSpec, kind: CompileRunCall, streams: CallStreams | None
) -> Step:
    """Returns how compiling ended; the program lies in the cell afterwards.

    InvalidRequest if the image has none of the compilers.
    """
    run.open(kind.compile_limits)
    sources = {name: InputFile(text=text) for name, text in kind.sources.items()}
    await bring(run, {**spec.files, **sources}, streams)
    recipe = languages.RECIPES[kind.language]
    env = _env(recipe.env | spec.env)
    for compiler in recipe.compilers:
        argv = (compiler, *recipe.compile(kind, kind.compile_limits))
        ended = await run.run(argv=_encoded(argv), env=env)
        step = step_of(ended, kind.compile_limits, compiler)
        if step.start_error is None or ended.outcome.errno != 2:  # ENOENT
            return step
    lacks = languages.RECIPES[kind.language].compilers[0]
    raise InvalidRequest(languages.missing(kind.language), language=str(kind.language), lacks=lacks)


async def run_in(
    run: CellRun,
    spec: CallSpec,
    argv: tuple[str, ...],
    streams: CallStreams | None,
    queued_s: float,
) -> Step:
    """Returns how a program ended."""
    extra = {}
    if isinstance(spec.kind, CompileRunCall):
        extra = languages.RECIPES[spec.kind.language].env
    ended = await run.run(
        argv=_encoded(argv),
        env=_env(extra | spec.env),
        stdin=_stdin(spec, streams),
        make_sink=_sink(streams),
    )
    return step_of(ended, spec.limits, argv[0], queued_s)


# -- Python -----------------------------------------------------------------------------------------


async def _python(
    run: CellRun, spec: CallSpec, kind: PythonCall, streams: CallStreams | None, queued_s: float
) -> CallResult:
    run.own = None if MAIN in spec.files else MAIN
    answer = CallSink(VALUE_BYTES_MAX, lambda: run.end(Limit.OUTPUT))
    payload = zygotes.payload(
        kind.code,
        kind.entry or None,
        kind.args,
        kind.kwargs,
        env=spec.env,
        result_bytes=2 * VALUE_BYTES_MAX,  # above the limit it is ended by that, whatever it says
    )
    ended = await run.run(
        kind=Kind.CALL,
        script=payload,
        stdin=_stdin(spec, streams),
        make_sink=_sink(streams),
        result=answer,
    )
    step = step_of(ended, spec.limits, "python", queued_s)
    if step.start_error is not None:
        raise Bug(f"a call of the zygote did not start: {step.start_error}")
    said = answer.output(Stream.STDOUT)
    if len(said) <= READ_AT_ONCE_BYTES:
        return _valued(step, kind, said)
    # Millions of values take seconds, in which others have their turns. One at a time: each may take
    # fifty times its length of memory.
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_reading, _valued, step, kind, said)


def _valued(step: Step, kind: PythonCall, said: bytes) -> CallResult:
    """Returns the result with its value or its error: both are what the call itself wrote."""
    error = None
    try:
        told = zygotes.read_answer(said)
    except ValueError as wrong:  # it wrote there itself, or was cut off
        told = zygotes.Answer()
        if step.limit is None:
            error = CallError(type="ValueError", message=str(wrong)[:1000])
    if told.error is not None and told.error.kind == "size" and step.limit is None:
        step = msgspec.structs.replace(step, limit=Limit.OUTPUT)
    if told.error is not None and told.error.kind not in ("exit", "size"):
        error = CallError(
            type=told.error.type, message=told.error.message, traceback=told.error.traceback
        )
    if not kind.entry:
        return _result(step, error=error)
    returned = told.returned and step.exit_code == 0 and step.limit is None
    value = told.value if returned else None
    if returned:
        try:
            check_json_like([value], "value")
        except InvalidRequest as wrong:
            value, returned = None, False
            error = CallError(type="TypeError", message=wrong.message)
    return _result(step, value=value, returned=returned, error=error)


def _result(step: Step, **more: object) -> CallResult:
    """Returns a result with that end."""
    return CallResult(**msgspec.structs.asdict(step), **more)  # type: ignore[arg-type]


# -- input ------------------------------------------------------------------------------------------


def _argv(
    run: CellRun, kind: ScriptCall | ProgramCall, files: dict[str, InputFile]
) -> tuple[str, ...]:
    """Returns the command line; a script is put among the files, for any interpreter can read one."""
    if isinstance(kind, ProgramCall):
        return kind.argv
    name = SCRIPT
    while name in files:
        name += "_"
    files[name] = InputFile(text=kind.source)
    run.own = name
    return (*kind.interpreter, f"{HOME}/{name}", *kind.args)


async def bring(run: CellRun, files: Mapping[str, InputFile], streams: CallStreams | None) -> None:
    """Puts the call's files into its cell. What does not fit there is the caller's fault."""
    if files:
        await _unpack(run, _pieces(_tar(files)))
    if streams is not None and streams.files is not None:
        run.taken = True
        await _unpack(run, streams.files)


async def _unpack(run: CellRun, tar: AsyncIterator[bytes]) -> None:
    try:
        await run.files.tree_put(HOME, tar)
    except DiskFull as error:
        raise InvalidRequest(
            f"files: more than the call's limits hold (disk {run.limits.disk_bytes} bytes, memory "
            f"{run.limits.memory_bytes})"
        ) from error


def _tar(files: Mapping[str, InputFile]) -> bytes:
    """Returns an archive of them, with the directories above them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, file in files.items():
            content = file.content()
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755 if file.executable else 0o644
            info.mtime = WRITTEN
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _stdin(spec: CallSpec, streams: CallStreams | None) -> bytes | AsyncIterator[bytes] | None:
    if streams is not None and streams.stdin is not None:
        return streams.stdin
    return spec.stdin or None


def _sink(streams: CallStreams | None) -> Callable[[int, Callable[[], None]], Sink]:
    return CallSink if streams is None else partial(StreamSink, give=streams.output)


def _encoded(words: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(map(os.fsencode, words))


def _env(env: Mapping[str, str]) -> tuple[bytes, ...]:
    return tuple(os.fsencode(f"{name}={value}") for name, value in env.items())
