"""What the words of `skerry call` mean: a kind of call and its options."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

from skerry.errors import InvalidRequest

LANGUAGES = {
    ".c": "c",
    ".cc": "cpp",
    ".cpp": "cpp",
    ".cxx": "cpp",
    ".f90": "fortran",
    ".go": "go",
    ".java": "java",
    ".rs": "rust",
}
SOURCE_BYTES_MAX = 32 << 20
_NUMBERS = {"wall": float, "cpu": float, "processes": int, "open_files": int}
_SIZES = ("memory", "output", "disk")


def kind_of(words: tuple[str, ...], more: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the kind that the words and options ask for, and its own options; InvalidRequest."""
    if words[:1] == ("--",):
        words = words[1:]
    code, entry, interpreter = more["code"], more["entry"], more["interpreter"]
    if sum((code is not None, more["program"], interpreter is not None)) > 1:
        raise InvalidRequest("of -c, -p and --script one is enough")
    if entry is not None and (more["program"] or interpreter is not None):
        raise InvalidRequest("--entry is for Python code")
    if code is not None:
        return "python", _python(code, entry, words)
    if not words:
        raise InvalidRequest("nothing to call", hint="name a file, or write -c CODE or -p PROGRAM")
    if more["program"]:
        return "program", {"argv": words}
    path, args = words[0], words[1:]
    source = _text_of(path)
    suffix = os.path.splitext(path)[1].lower()
    if interpreter is not None:
        return "script", {"source": source, "interpreter": shlex.split(interpreter), "args": args}
    if suffix == ".py" or entry is not None:
        return "python", _python(source, entry, args)
    if suffix in LANGUAGES:
        options: dict[str, Any] = {
            "language": LANGUAGES[suffix],
            "sources": {os.path.basename(path): source},
            "args": args,
            "flags": more["flags"],
        }
        if limits := given_limits(more["compile_limits"], "--compile-limit"):
            options["compile_limits"] = limits
        return "compile_run", options
    if source.startswith("#!"):
        first = shlex.split(source.partition("\n")[0][2:])
        if os.path.basename(first[0] if first else "") == "env":
            first = first[2:] if first[1:2] == ["-S"] else first[1:]
        if first:
            return "script", {"source": source, "interpreter": first, "args": args}
    raise InvalidRequest(
        f"what is {path!r}? Its name has no ending that is known, and it begins with no #!",
        hint="write --script INTERPRETER, or for a program of the image -p",
    )


def given_limits(pairs: tuple[tuple[str, str], ...], option: str) -> dict[str, Any]:
    """Returns limits by name as the SDK takes them; InvalidRequest for what is none."""
    from skerry.cli.options import seconds

    limits: dict[str, Any] = {}
    for name, value in pairs:
        if name in _SIZES:
            limits[name] = value
        elif name in ("wall", "cpu"):
            limits[name] = seconds(value)
        elif name in _NUMBERS and value.isdecimal():
            limits[name] = int(value)
        elif name in _NUMBERS:
            raise InvalidRequest(f"{option} {name}: {value!r} is no number")
        else:
            known = ", ".join((*_NUMBERS, *_SIZES))
            raise InvalidRequest(f"{option}: {name!r} is none of {known}")
    return limits


def named_files(words: tuple[str, ...]) -> dict[str, Path]:
    """Returns local paths by their name in /call: NAME=PATH, or PATH under its own last name."""
    files: dict[str, Path] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals:
            path = word
            name = os.path.basename(os.path.abspath(word))
        if not os.path.exists(path):
            raise InvalidRequest(f"--file: there is no {path!r}")
        files[name] = Path(path)
    return files


def _python(code: str, entry: str | None, words: tuple[str, ...]) -> dict[str, Any]:
    args = words if entry is None else tuple(map(_value, words))
    return {"code": code, "entry": entry, "args": args}


def _value(word: str) -> Any:
    """Returns what a word says as JSON, or the word."""
    try:
        return json.loads(word)
    except ValueError:
        return word


def _text_of(path: str) -> str:
    try:
        size = os.stat(path).st_size
        if size > SOURCE_BYTES_MAX:
            raise InvalidRequest(f"{path}: {size} bytes are too many for a source")
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidRequest(
            f"there is no file {path!r}", hint="for a program of the image write -p, for code -c"
        ) from None
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path}: it is no text", hint="run it as --file and -p") from None
