"""The zygote: an interpreter that imports the named modules once, and forks for every call.

Runs in any CPython from 3.7 on, as root of the container's user namespace with a few capabilities in it
(native/zygote/README.md). Finds its extension, this text and its configuration at descriptor 3, reports
on descriptor 4, and talks to the agent on descriptor 5.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import json
import os
import sys
import time
import traceback
from typing import Any, Callable

OPENMP = ("libgomp", "libomp", "libiomp5")


class Refused(Exception):
    """No zygote can be made of this interpreter and these modules; `kind` says why, to programs."""

    def __init__(self, kind: str, module: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.module = module


def interpreter_check() -> None:
    """Raises Refused for an interpreter that cannot load the extension, before it tries and crashes."""
    found = "%s %s" % (sys.implementation.name, sys.version.split()[0])
    reason = ""
    if sys.implementation.name != "cpython":
        reason = "it is not CPython"
    elif sys.version_info < (3, 7):
        reason = "it is older than 3.7"
    elif "t" in getattr(sys, "abiflags", ""):
        reason = "it is a free-threaded build, which has another binary interface"
    elif hasattr(sys, "getobjects"):
        reason = "it is built with Py_TRACE_REFS, which has another binary interface"
    elif sys.maxsize < 2**32:
        reason = "it is a 32-bit build"
    elif not importlib.machinery.EXTENSION_SUFFIXES:
        reason = "it is built without support for extension modules"
    if reason:
        raise Refused(
            "interpreter", "", "%s (%s) cannot be a zygote: %s" % (sys.executable, found, reason)
        )


def extension_load() -> Any:
    """Returns the extension, which is the beginning of the file at descriptor 3."""
    path = "/proc/self/fd/3"
    try:
        loader = importlib.machinery.ExtensionFileLoader("skerry_zygote", path)
        spec = importlib.machinery.ModuleSpec("skerry_zygote", loader, origin=path)
        module = loader.create_module(spec)
        loader.exec_module(module)
        return module
    except (ImportError, AttributeError) as error:
        raise Refused(
            "interpreter", "", "%s cannot load extension modules: %s" % (sys.executable, error)
        ) from None


def threads_now() -> set[str]:
    """Returns the ids of this process's threads."""
    return set(os.listdir("/proc/self/task"))


def shared_now() -> dict[str, str]:
    """Returns writable mappings that forks share, by address."""
    found = {}
    with open("/proc/self/maps") as file:
        for line in file:
            words = line.split(None, 5)
            if words[1].startswith("rw") and words[1].endswith("s"):
                found[words[0]] = words[5].strip() if len(words) > 5 else "without a name"
    return found


def held_now() -> dict[int, str]:
    """Returns descriptors above those that a zygote knows of, and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue  # that of the listing itself
    return {number: what for number, what in found.items() if number > 4}


class Importer:
    """Imports modules, and remembers which of them left what."""

    def __init__(self, allowed: list[str]) -> None:
        self.allowed = allowed
        self.threads: dict[str, str] = {}
        self.shared: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def load(self, name: str) -> None:
        """Imports one module; Refused with kind `import`, the traceback as its cause."""
        before = threads_now(), shared_now()
        began = time.time()
        try:
            importlib.import_module(name)
        except BaseException as error:
            text = "%s: %s" % (type(error).__name__, error)
            raise Refused(
                "import", name, "module %s cannot be imported: %s" % (name, text)
            ) from error
        self.seconds[name] = round(time.time() - began, 6)
        for thread in threads_now() - before[0]:
            self.threads[thread] = name
        for address, what in shared_now().items():
            if address not in before[1]:
                self.shared[address] = name
                self.names[address] = what

    def check(self) -> None:
        """Raises Refused for what a fork would lose (threads), or calls would share (memory).

        First a fork of no use: numeric libraries that know of forks (OpenBLAS) end their threads
        before one, and start them again in the process that next needs them.
        """
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        left = threads_now() - {str(os.getpid())}
        if left and "threads" not in self.allowed:
            guilty = sorted({self.threads.get(thread, "?") for thread in left})
            raise Refused(
                "threads",
                guilty[0],
                "importing %s starts %d threads, which a fork would lose: name a module that does "
                'not, or allow "threads"' % (" and ".join(guilty), len(left)),
            )
        shared = [address for address in shared_now() if address in self.shared]
        if shared and "shared" not in self.allowed:
            guilty = sorted({"%s (%s)" % (self.shared[a], self.names[a]) for a in shared})
            raise Refused(
                "shared",
                self.shared[shared[0]],
                "importing %s leaves memory that all calls would write to: name a module that does "
                'not, or allow "shared"' % " and ".join(guilty),
            )


class Numeric:
    """Threads of numeric libraries: none of OpenMP's before the fork, the usual number after it.

    OpenMP reads its number of threads when it is loaded, and a pool that lives at a fork hangs the
    child's next parallel loop. So it is loaded with one thread; calls get the rest by
    omp_set_num_threads, which starts none. OpenBLAS would take OpenMP's variable for its own: it is
    told its number, for it ends its threads before forks. What the environment sets stays as it is.
    """

    def __init__(self) -> None:
        self.forced: dict[str, str] = {}
        self.processors = len(os.sched_getaffinity(0))

    def before_imports(self) -> None:
        """Sets the variables that the libraries read when they are loaded."""
        if "OMP_NUM_THREADS" in os.environ:
            return
        self.force("OMP_NUM_THREADS", "1")
        for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
            if name not in os.environ:
                self.force(name, str(self.processors))

    def force(self, name: str, value: str) -> None:
        """Sets a variable until the imports are done."""
        os.environ[name] = self.forced[name] = value

    def after_imports(self, extension: Any) -> int:
        """Takes the variables back; returns how many threads calls are to ask for, 0: nothing to ask."""
        for name, value in self.forced.items():
            if os.environ.get(name) == value:
                del os.environ[name]
        found = 0
        if "OMP_NUM_THREADS" not in self.forced:
            return 0
        with open("/proc/self/maps") as file:
            paths = {line.split(None, 5)[5].strip() for line in file if "/" in line}
        for path in sorted(paths):
            if os.path.basename(path).startswith(OPENMP):
                found += extension.setter(path, "omp_set_num_threads")
        return self.processors if found else 0


def report(told: dict[str, Any]) -> None:
    """Writes the one report to descriptor 4, if somebody reads it."""
    rest = memoryview(json.dumps(told).encode())
    try:
        while rest:
            rest = rest[os.write(4, rest) :]
    except OSError as error:
        sys.stderr.write("zygote: the report could not be written: %s\n" % error)


def refuse(error: Refused) -> None:
    """Reports why there is no zygote, with the traceback of a failed import, and ends."""
    cause = error.__cause__
    text = ""
    if cause is not None:
        text = "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))
        sys.stderr.write(text)
    sys.stderr.write("zygote: %s\n" % error)
    kind = type(cause or error).__name__
    told = {"kind": error.kind, "module": error.module, "type": kind, "message": str(error)}
    report({"error": dict(told, traceback=text[-65536:])})
    sys.exit(1)


def prepare(config: dict[str, Any]) -> tuple[Any, tuple[int, ...], int]:
    """Imports everything; returns the extension, the modules' descriptors, and the threads of a call."""
    interpreter_check()
    extension = extension_load()
    extension.begin(5)
    known = set(held_now())
    numeric = Numeric()
    numeric.before_imports()
    importer = Importer(config["allow"])
    for name in config["modules"]:
        importer.load(name)
    importer.check()
    threads = numeric.after_imports(extension)
    held = {number: what for number, what in held_now().items() if number not in known}
    for number, what in held.items():
        sys.stderr.write(
            "zygote: a module holds descriptor %d (%s): calls find it empty\n" % (number, what)
        )
    report(
        {
            "ready": {
                "python": sys.version.split()[0],
                "seconds": importer.seconds,
                "threads": threads,
                "held": ["%d %s" % item for item in sorted(held.items())],
            }
        }
    )
    return extension, tuple(sorted(held)), threads


def main(config: dict[str, Any], run_call: Callable[[Any, int], None]) -> None:
    """Serves calls until the agent is gone. In a child it runs the call and never returns."""
    # The interpreter's own program is the driver, no directory of modules.
    if sys.path and sys.path[0] == "":
        del sys.path[0]
    try:
        extension, held, threads = prepare(config)
    except Refused as error:
        refuse(error)
        return
    sys.stdout.flush()
    sys.stderr.flush()
    extension.flush()
    # A collection in a child would write to, and so copy, all that was there before.
    gc.collect()
    gc.freeze()
    if extension.serve(os.fork, held) is not None:
        run_call(extension, threads)
