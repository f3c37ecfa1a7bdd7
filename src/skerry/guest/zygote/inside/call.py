"""One call, in a child of the zygote: from its payload to its answer and the end of its process.

Runs in any CPython from 3.7 on, in the user's cell, as the user. What it needs is imported before the
fork; what a call changes (builtins, modules) it does not look at again, for its globals are its own.

The payload is a JSON object: code, entry (null: the code is a program), args, kwargs, env,
result_bytes, threads. The answer is at most one JSON object: {"value": V} or
{"error": {kind, type, message, traceback}}.
"""

from __future__ import annotations

import _io
import atexit
import builtins
import gc
import io
import json
import linecache
import math
import os
import sys
import traceback
import types
from typing import Any, NoReturn

DEPTH_MAX = 200  # of a value: what JSON readers everywhere accept
TEXT_MAX = 65536  # of a message, of a traceback
ANSWER_FD = 230  # high: code that counts descriptors, or closes low ones, does not meet it
PLAIN = {str, int, float, bool, type(None)}
encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode
safe_encode = json.JSONEncoder().encode


class EntryMissing(Exception):
    """The code has no function of the asked name."""


class Unfit(Exception):
    """A returned value that is not JSON-like; says which part of it, and why."""


class TooLong(Exception):
    """A returned value that takes more bytes than the call may answer."""


def shape_is_plain(value: Any, depth: int) -> bool:
    """Whether it is made of exact JSON types only; quick, since it mostly looks at sets of types."""
    kind = type(value)
    if kind in PLAIN:
        return True
    if kind is dict:
        if not set(map(type, value)) <= {str}:
            return False
        parts = value.values()
    elif kind is list or kind is tuple:
        parts = value
    else:
        return False
    if set(map(type, parts)) <= PLAIN:
        return True
    return depth > 0 and all(shape_is_plain(part, depth - 1) for part in parts)


def complain(value: Any, path: str, depth: int) -> None:
    """Raises Unfit for the first part that is not JSON-like."""
    name = type(value).__module__ + "." + type(value).__qualname__
    name = name[9:] if name.startswith("builtins.") else name
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unfit(
                "%s is a str with half of a surrogate pair, which JSON cannot hold" % path
            ) from None
    elif isinstance(value, int):
        try:
            int.__repr__(value)
        except ValueError:
            raise Unfit("%s is an int of more digits than may be written out" % path) from None
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Unfit("%s is %s, which JSON cannot hold" % (path, float.__repr__(value)))
    elif not isinstance(value, (list, tuple, dict)):
        raise Unfit(
            "%s is of type %s, which is not JSON-like: return str, int, float, bool, None, and lists "
            "and dicts of them" % (path, name)
        )
    elif depth == 0:
        raise Unfit("%s... is nested deeper than %d levels" % (path[:80], DEPTH_MAX))
    elif isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise Unfit(
                    "%s has a key of type %s: keys must be str" % (path, type(key).__qualname__)
                )
            complain(key, "a key of " + path, depth)
            complain(part, "%s[%r]" % (path, key) if len(path) < 200 else path, depth - 1)
    else:
        for index, part in enumerate(value):
            complain(part, "%s[%d]" % (path, index) if len(path) < 200 else path, depth - 1)


def encode_value(value: Any, limit: int) -> bytes:
    """Returns the answer of a value; Unfit, TooLong."""
    try:
        if not shape_is_plain(value, DEPTH_MAX):
            complain(value, "value", DEPTH_MAX)
        answer = ('{"value":' + encode(value) + "}").encode()
    except RecursionError:
        raise Unfit("value is nested deeper than the recursion limit allows to look") from None
    except (TypeError, ValueError) as error:
        complain(value, "value", DEPTH_MAX)
        raise Unfit("value cannot be written as JSON: %s" % error) from None
    if len(answer) > limit:
        raise TooLong("value takes %d bytes as JSON; the limit is %d" % (len(answer), limit))
    return answer


def cut(text: str) -> str:
    """Returns a text that is short enough, and that UTF-8 can hold."""
    if len(text) > TEXT_MAX:
        half = TEXT_MAX // 2
        text = (
            text[:half]
            + "\n... %d characters left out ...\n" % (len(text) - 2 * half)
            + text[-half:]
        )
    return text.encode("utf-8", "backslashreplace").decode()


def own_frames_dropped(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Returns the traceback from where the user's code begins."""
    mine = encode_value.__code__.co_filename
    while trace is not None and trace.tb_frame.f_code.co_filename == mine:
        trace = trace.tb_next
    return trace


def encode_error(kind: str, error: BaseException) -> bytes:
    """Returns the answer of an exception; whatever its own methods do."""
    name = type(error).__qualname__
    if type(error).__module__ not in ("builtins", "__main__", "main"):
        name = "%s.%s" % (type(error).__module__, name)
    try:
        message = str(error)
    except BaseException as other:  # noqa: BLE001 - the user's own __str__
        message = "<its message cannot be made: %s>" % type(other).__name__
    try:
        text = "".join(
            traceback.format_exception(type(error), error, own_frames_dropped(error.__traceback__))
        )
    except BaseException as other:  # noqa: BLE001 - likewise, or no memory is left
        text = "<its traceback cannot be made: %s>" % type(other).__name__
    told = {"kind": kind, "type": cut(name), "message": cut(message), "traceback": cut(text)}
    return safe_encode({"error": told}).encode()


def answer_place() -> int:
    """Moves the answer's descriptor out of the way; -1 if nobody wants an answer."""
    try:
        place = os.dup2(4, ANSWER_FD, inheritable=False)
    except OSError:
        try:
            place = os.dup(4)  # so low a limit of descriptors
        except OSError:
            return -1
    os.close(4)
    return ANSWER_FD if place is None else place


def send(place: int, answer: bytes) -> None:
    """Writes the answer; a call that has closed its descriptor has none."""
    rest = memoryview(answer)
    try:
        while rest:
            rest = rest[os.write(place, rest) :]
    except OSError as error:
        os.write(2, b"the answer of the call could not be written: %s\n" % str(error).encode())


class Call:
    """A call that has been read, before any of its code has run."""

    def __init__(self, extension: Any, threads: int) -> None:
        self.extension = extension
        self.threads = threads
        self.pid = os.getpid()
        # Not by a file object: code that has not run yet in this process is dear at first.
        self.request = json.loads(os.pread(3, os.fstat(3).st_size, 0))
        os.close(3)
        self.answer = answer_place()
        self.path = "<call>"
        self.entry = self.request["entry"]
        self.main = types.ModuleType("__main__" if self.entry is None else "main")

    def settle(self) -> None:
        """Gives the process what a fresh interpreter has: streams, random state, `__main__`."""
        for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
            stream = self.stream(fd, mode, getattr(sys, "__%s__" % name))
            setattr(sys, name, stream)
            setattr(sys, "__%s__" % name, stream)
        place = os.getcwd()
        who = str(os.getuid())
        # The zygote's are root's.
        own = {"HOME": place, "USER": who, "LOGNAME": who}
        os.environ.update(own, **self.request["env"])
        legacy = sys.modules.get("numpy.random")
        if legacy is not None:  # module random does so by itself at every fork
            legacy.seed()
        if self.threads and self.request["threads"]:
            self.extension.threads(self.threads)
        sys.path.insert(0, place)
        self.write_source(place)
        sys.argv = [self.path]
        if self.entry is None:
            sys.argv += self.request["args"]
        self.main.__dict__["__builtins__"] = builtins  # not ours
        sys.modules["__main__"] = sys.modules[self.main.__name__] = self.main

    def stream(self, fd: int, mode: str, like: Any) -> Any:
        """Returns a new standard stream, whose coding is that of the zygote's."""
        buffering = 1 if fd == 2 else -1
        return io.open(fd, mode, buffering, like.encoding, like.errors, closefd=False)

    def write_source(self, place: str) -> None:
        """Puts the code where tracebacks, inspect and child processes look for it, if possible."""
        code = self.request["code"]
        path = os.path.join(place, "main.py")
        whole = False
        try:
            text = code.encode()
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                whole = os.write(file, text) == len(text)
            finally:
                os.close(file)
                if not whole:
                    os.unlink(path)
        except (OSError, UnicodeError):
            pass  # a file of the caller's has that name, or the disk is full: then without
        if whole:
            self.path = self.main.__file__ = path
        lines = code.splitlines(True)
        linecache.cache[self.path] = (len(code), None, lines, self.path)

    def run(self) -> tuple[bytes | None, int]:
        """Runs the code; returns its answer and the process's exit code."""
        try:
            self.settle()
            code = compile(self.request["code"], self.path, "exec", dont_inherit=True)
            exec(code, self.main.__dict__)  # noqa: S102 - that is what it is for
            if self.entry is None:
                return None, 0
            return encode_value(self.enter(), self.request["result_bytes"]), 0
        except SystemExit as error:
            told = None if self.entry is None else encode_error("exit", error)
            return told, self.exit_code(error)
        except Unfit as error:
            return encode_error("value", error), 1
        except TooLong as error:
            return encode_error("size", error), 1
        except EntryMissing as error:
            self.show(error)
            return encode_error("entry", error), 1
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is answered
            answer = encode_error("exception", error)
            self.show(error)
            return answer, 130 if isinstance(error, KeyboardInterrupt) else 1

    def enter(self) -> Any:
        """Calls the entry function; returns what it returns."""
        entry = self.main.__dict__.get(self.entry)
        if not callable(entry):
            what = "has no function" if entry is None else "defines, but not as a function,"
            raise EntryMissing("the code %s %r" % (what, self.entry))
        value = entry(*self.request["args"], **self.request["kwargs"])
        if isinstance(value, types.CoroutineType):
            import asyncio  # large, and seldom needed

            value = asyncio.run(value)
        return value

    def exit_code(self, error: SystemExit) -> int:
        """Returns the exit code that python3 would have; a text is shown, as there."""
        code = error.code
        if code is None:
            return 0
        if isinstance(code, int):
            return code & 255
        try:
            sys.stderr.write(str(code) + "\n")
        except Exception:  # noqa: BLE001 - its stream, or its text
            os.write(2, b"SystemExit\n")
        return 1

    def show(self, error: BaseException) -> None:
        """Tells stderr, as an interpreter does at its end."""
        trace = own_frames_dropped(error.__traceback__)
        try:
            sys.excepthook(type(error), error.with_traceback(trace), trace)
        except BaseException:  # noqa: BLE001 - a hook of the user's
            os.write(2, b"the call's sys.excepthook has failed\n")

    def finish(self, answer: bytes | None, code: int) -> NoReturn:
        """Answers, and ends the process as an interpreter ends: threads, atexit, what is unwritten."""
        ours = os.getpid() == self.pid  # a fork of the user's that came back here has no say
        if ours and answer is not None:
            send(self.answer, answer)
        try:
            threads = sys.modules.get("threading")
            if threads is not None:
                threads._shutdown()  # noqa: SLF001
            atexit._run_exitfuncs()  # noqa: SLF001
        except BaseException as error:  # noqa: BLE001
            self.show(error)
        code = self.write_out() or code
        self.extension.leave(code)
        raise AssertionError  # not reached

    def write_out(self) -> int:
        """Flushes what is left, as the end of the interpreter does; 120 if the output could not be."""
        if len(sys._current_frames()) == 1:  # noqa: SLF001 - daemon threads still use it
            self.main.__dict__.clear()
            gc.collect()
        for thing in gc.get_objects():  # without those of before the fork, which are frozen
            if issubclass(type(thing), _io._IOBase):  # noqa: SLF001
                flushed(thing)
        done = [flushed(sys.stdout), flushed(sys.stderr)]
        return 0 if done[0] else 120


def flushed(stream: Any) -> bool:
    """Whether a stream has nothing unwritten any more; it may be of a user's class."""
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except BaseException:  # noqa: BLE001
        return False
    return True


def run_call(extension: Any, threads: int) -> NoReturn:
    """Runs the call whose payload is at descriptor 3, with so many OpenMP threads. Never returns."""
    call = Call(extension, threads)
    answer, code = call.run()
    call.finish(answer, code)
