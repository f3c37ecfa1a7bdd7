"""A function call: what may be asked for. What comes back is in `function_result`.

A call runs in a container that is there already, alone in namespaces of its own, and leaves nothing
behind. It names an environment, what to run in it, its input, and limits. Its directory is /call.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec import limits
from skerry.spec.device import DeviceClaim
from skerry.spec.function_limits import COMPILE_LIMITS, CallLimits
from skerry.spec.ids import check_job_id
from skerry.spec.layers import LayerKind, parse_layer_name
from skerry.spec.sandbox import IMAGE_DEFAULT, check_env
from skerry.spec.values import check_json_like

INLINE_BYTES_MAX: Final = 32 * limits.MIB  # of all that a call brings along; more is streamed
CODE_BYTES_MAX: Final = 4 * limits.MIB  # of a script
PYTHON_BYTES_MAX: Final = 2 * limits.MIB  # of Python code with its arguments; as JSON, too
ENTRY_CHARS_MAX: Final = 200
FILES_MAX: Final = 1024  # inline
SOURCES_MAX: Final = 256
PATH_BYTES_MAX: Final = 1000  # of a file in /call, of a pattern
FETCH_MAX: Final = 256  # patterns of files asked for
MODULES_MAX: Final = 64
WORDS_MAX: Final = 4096  # of a command line
WAIT_MAX_S: Final = 600.0  # for a place
POOL_MAX: Final = 256  # containers of a pool
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}(?:\.[A-Za-z_][A-Za-z0-9_]{0,99}){0,15}")
_PYTHON = re.compile(r"python[0-9.]{0,8}|/[!-~]{1,255}")


class Environment(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Where calls run. Two calls share a pool of containers if their environments have one key.

    The `modules` are imported once, before any call, in that order: calls find them there. They are
    for the kind "python" only, as is `python`, a name that is looked up in the image's PATH or a path.
    """

    image: str = IMAGE_DEFAULT
    layers: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    python: str = "python3"

    def key(self) -> str:
        """Returns 24 hexadecimal digits that are the same for what is the same.

        `debian:12` and `base/debian:12` are. The order of layers and of modules counts.
        """
        names = [str(parse_layer_name(self.image, LayerKind.BASE))]
        names += [str(parse_layer_name(name)) for name in self.layers]
        said = msgspec.json.encode([names, self.modules, self.python])
        return hashlib.sha256(said).hexdigest()[:24]

    def check(self) -> Environment:
        """Returns itself if every value is in bounds; raises InvalidRequest naming one that is not."""
        parse_layer_name(self.image, LayerKind.BASE)
        if len(self.layers) > limits.LAYERS_MAX:
            raise InvalidRequest(f"layers: at most {limits.LAYERS_MAX}")
        for name in self.layers:
            parse_layer_name(name)
        if len(self.modules) > MODULES_MAX:
            raise InvalidRequest(f"modules: at most {MODULES_MAX}")
        for name in self.modules:
            if _MODULE.fullmatch(name) is None:
                raise InvalidRequest(f"modules: {name[:80]!r} is no module's name")
        if _PYTHON.fullmatch(self.python) is None:
            raise InvalidRequest(f"python: {self.python[:80]!r} is neither python3 nor a path")
        return self


class PythonCall(
    msgspec.Struct,
    tag_field="type",
    tag="python",
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Python code in an interpreter that runs already, with its modules.

    `code` is run, then its function `entry` is called, and what that returns is the call's value: None,
    a bool, int, float, str, or a list or dict of such. With `entry` None the code is a main program, and
    the `args` are texts, its sys.argv[1:]: there is no value, and it exits as under `python3 FILE`.
    """

    code: str
    entry: str | None = "main"
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}

    def check(self) -> None:
        """Raises InvalidRequest naming a value that is out of bounds."""
        total = check_text(self.code, "code", PYTHON_BYTES_MAX)
        if self.entry is None:
            if self.kwargs or not all(type(one) is str for one in self.args):
                raise InvalidRequest("args: a main program takes texts, and no kwargs")
            _check_words(self.args, "args")
        elif not (self.entry.isidentifier() and len(self.entry) <= ENTRY_CHARS_MAX):
            raise InvalidRequest(f"entry: {self.entry[:80]!r} is no function's name")
        elif self.args or self.kwargs:
            check_json_like(self.args, "args")
            check_json_like(self.kwargs, "kwargs")
            total += len(msgspec.json.encode((self.args, self.kwargs)))
        if total > PYTHON_BYTES_MAX:
            raise InvalidRequest(
                f"code and args: {total} bytes, at most {PYTHON_BYTES_MAX}: pass data as files"
            )


class ScriptCall(
    msgspec.Struct,
    tag_field="type",
    tag="script",
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A script for any interpreter of the image: a program by name or path, and its options."""

    source: str
    interpreter: tuple[str, ...] = ("sh",)
    args: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises InvalidRequest naming a value that is out of bounds."""
        check_text(self.source, "source", CODE_BYTES_MAX)
        if not self.interpreter or not self.interpreter[0]:
            raise InvalidRequest("interpreter: the program is empty")
        _check_words((*self.interpreter, *self.args), "args")


class ProgramCall(
    msgspec.Struct,
    tag_field="type",
    tag="program",
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A program of the image, or one of the input files (./NAME), and its arguments."""

    argv: tuple[str, ...]

    def check(self) -> None:
        """Raises InvalidRequest naming a value that is out of bounds."""
        if not self.argv or not self.argv[0]:
            raise InvalidRequest("argv: the program is empty")
        _check_words(self.argv, "argv")


class Language(StrEnum):
    """What `compile_run` compiles, with the compiler that the image has under this name."""

    C = "c"  # gcc, or cc
    CPP = "cpp"  # g++, or c++
    FORTRAN = "fortran"  # gfortran
    GO = "go"  # go
    JAVA = "java"  # javac and java: the class with `main` is in the first source
    RUST = "rust"  # rustc: the first source is the crate's root


class CompileRunCall(
    msgspec.Struct,
    tag_field="type",
    tag="compile_run",
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Sources that are compiled, and the program that they make. It does not run if that fails.

    `sources` are texts by file name, compiled together; headers and data are input files. The call's
    limits are those of the program; `compile_limits` those of the compiler, with more time and memory
    by default. What the compiler said, used and exceeded is told on its own.
    """

    language: Language
    sources: dict[str, str]
    flags: tuple[str, ...] = ()  # for the compiler
    args: tuple[str, ...] = ()  # for the program
    compile_limits: CallLimits = COMPILE_LIMITS

    def check(self) -> None:
        """Raises InvalidRequest naming a value that is out of bounds."""
        if not 1 <= len(self.sources) <= SOURCES_MAX:
            raise InvalidRequest(f"sources: 1 to {SOURCES_MAX}, not {len(self.sources)}")
        for name, text in self.sources.items():
            check_inside(name, "sources")
            check_text(text, "sources", INLINE_BYTES_MAX)
        _check_words((*self.flags, *self.args), "flags and args")
        self.compile_limits.check()


CallKind: TypeAlias = PythonCall | ScriptCall | ProgramCall | CompileRunCall


class Isolation(StrEnum):
    """What a call shares with others."""

    PROCESS = "process"  # a container that serves many calls; namespaces and limits of its own
    CONTAINER = "container"  # nothing: a fresh container, which ends with it


class InputFile(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A file's content: `data`, or the UTF-8 of `text`."""

    data: bytes = b""
    text: str | None = None
    executable: bool = False

    def content(self) -> bytes:
        """Returns the content."""
        return self.data if self.text is None else self.text.encode()


class CallSpec(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One call. `check()` must have passed before anything acts on it.

    `files` stand in /call when it begins, by relative path. `fetch` names files that are wanted of
    /call at its end: relative paths, where * ? and [] match within a name and ** any directories. With
    `idempotent` a call that may have run, and whose answer was lost, is run again; without, it is never.
    """

    kind: CallKind
    environment: Environment = Environment()
    files: dict[str, InputFile] = {}
    stdin: bytes = b""
    limits: CallLimits = CallLimits()
    env: dict[str, str] = {}  # over what the image sets
    fetch: tuple[str, ...] = ()
    isolation: Isolation = Isolation.PROCESS
    idempotent: bool = False
    wait_s: float = 60.0  # in the queue, for a place; then it is refused
    job: str | None = None  # jobs are served in turn
    priority: int = 0  # among the calls of its job that wait: higher first
    device: DeviceClaim | None = None  # of a `compile_run` the program has it, not the compiler

    def check(self, *, streamed: bool = False) -> CallSpec:
        """Returns itself if every value is in bounds; raises InvalidRequest naming one that is not.

        With `streamed` its output may be as long as `CallLimits.check` says.
        """
        self.environment.check()
        self.kind.check()
        self.limits.check(streamed=streamed)
        if self.files:
            _check_files(self.files)
        total = len(self.stdin) + self._text_bytes()
        for file in self.files.values():
            total += len(file.data) if file.text is None else len(file.text)
        if total > INLINE_BYTES_MAX:
            raise InvalidRequest(
                f"files, stdin and code: {total} bytes, at most {INLINE_BYTES_MAX}: stream them"
            )
        check_env(self.env)
        if len(self.fetch) > FETCH_MAX:
            raise InvalidRequest(f"fetch: at most {FETCH_MAX} patterns")
        for pattern in self.fetch:
            check_inside(pattern, "fetch")
        if not 0 <= self.wait_s <= WAIT_MAX_S:  # not a number is neither
            raise InvalidRequest(f"wait must be between 0 and {WAIT_MAX_S:g} s, not {self.wait_s}")
        if self.job is not None:
            check_job_id(self.job)
        if not limits.PRIORITY_MIN <= self.priority <= limits.PRIORITY_MAX:
            raise InvalidRequest(
                f"priority must be between {limits.PRIORITY_MIN} and {limits.PRIORITY_MAX}"
            )
        if self.device is not None:
            self.device.check()
        return self

    def _text_bytes(self) -> int:
        if isinstance(self.kind, CompileRunCall):
            return sum(map(len, self.kind.sources.values()))
        return 0  # others have bounds of their own


def check_text(text: str, what: str, bytes_max: int) -> int:
    """Returns its length in UTF-8; raises InvalidRequest if it is longer, or cannot be said so."""
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what}: holds a lone surrogate, which is no text") from None
    if size > bytes_max:
        raise InvalidRequest(f"{what}: {size} bytes, at most {bytes_max}")
    return size


def check_inside(path: str, what: str) -> None:
    """Raises InvalidRequest unless this is a relative path, or pattern, that stays in /call."""
    parts = path.split("/")
    if "\x00" in path or not {"", ".", ".."}.isdisjoint(parts):
        raise InvalidRequest(
            f"{what}: {path[:200]!r} is no relative path without '.' and '..' and empty parts"
        )
    check_text(path, what, PATH_BYTES_MAX)


def _check_files(files: dict[str, InputFile]) -> None:
    if len(files) > FILES_MAX:
        raise InvalidRequest(f"files: at most {FILES_MAX}: stream them")
    for name, file in files.items():
        check_inside(name, "files")
        if file.text is not None:
            if file.data:
                raise InvalidRequest(f"files: {name[:200]!r} has both text and data")
            check_text(file.text, "files", INLINE_BYTES_MAX)
        if any(above in files for above in _above(name)):
            raise InvalidRequest(f"files: {name[:200]!r} lies beneath another file")


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _check_words(words: tuple[str, ...], what: str) -> None:
    if len(words) > WORDS_MAX:
        raise InvalidRequest(f"{what}: at most {WORDS_MAX} words")
    total = 0
    for word in words:
        if "\x00" in word:
            raise InvalidRequest(f"{what}: a word holds a NUL")
        total += len(word.encode("utf-8", "surrogatepass")) + 6
    if total > limits.MIB:
        raise InvalidRequest(f"{what}: {total} bytes, at most {limits.MIB}")
