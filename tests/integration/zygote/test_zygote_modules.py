"""What may be imported before the fork, and what of it is another's for each call."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from zygote_stand import LIBRARY, Warden, Zygote, pythons

from native_build import build

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.getuid() != 0, reason="needs root")]

MODULES = {
    "quiet": "import random\nstate = random.random()\ndrawn = random.Random(7)\n",
    "threaded": "import threading as t, time\n"
    "t.Thread(target=time.sleep, args=[1000], daemon=True).start()\n",
    "sharing": "import mmap\nboard = mmap.mmap(-1, 4096)\n",
    "opening": "import os\nfile = os.open('/etc/passwd', os.O_RDONLY)\n",
    "broken": "def deep():\n    return {}['nothing']\ndeep()\n",
    "leaving": "raise SystemExit(3)\n",
    "talking": "import sys\nprint('hello from the import')\nsys.stderr.write('and more\\n')\n",
    "hooked": "import os\nos.register_at_fork(before=lambda: 1 / 0)\n",
}


@pytest.fixture(scope="module")
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="zygote-", dir="/var/tmp") as made:
        os.chmod(made, 0o755)
        for name, text in MODULES.items():
            (Path(made) / f"{name}.py").write_text(text)
        yield made


def begin(warden: Warden, python: str, path: str, *modules: str, **options: object) -> Zygote:
    return Zygote(warden, python, list(modules), env={"PYTHONPATH": path}, **options)


@pytest.mark.parametrize("version", sorted(pythons()))
def test_module_that_starts_a_thread_is_refused_by_name(
    warden: Warden, path: str, version: str
) -> None:
    made = begin(warden, pythons()[version], path, "quiet", "threaded")
    assert made.report.error is not None
    assert (made.report.error.kind, made.report.error.module) == ("threads", "threaded")
    assert "importing threaded starts 1 threads" in made.report.error.message
    made.stop()


def test_module_that_is_allowed_threads_runs_without_them(
    warden: Warden, newest: str, path: str
) -> None:
    made = begin(warden, newest, path, "threaded", allow=["threads"])
    assert made.report.error is None
    assert made.value("import os\ndef main(): return len(os.listdir('/proc/self/task'))") == 1
    made.stop()


def test_module_whose_memory_all_calls_would_share_is_refused(
    warden: Warden, newest: str, path: str
) -> None:
    made = begin(warden, newest, path, "sharing")
    assert made.report.error is not None
    assert (made.report.error.kind, made.report.error.module) == ("shared", "sharing")
    made.stop()
    # That it would be a way to leave something:
    allowed = begin(warden, newest, path, "sharing", allow=["shared"])
    assert allowed.call("import sharing; sharing.board[:4] = b'left'", None).exit_code == 0
    assert allowed.value("import sharing\ndef main(): return sharing.board[:4].decode()") == "left"
    allowed.stop()


def test_module_that_fails_is_reported_with_its_traceback(
    warden: Warden, newest: str, path: str
) -> None:
    made = begin(warden, newest, path, "quiet", "broken")
    error = made.report.error
    assert error is not None
    assert (error.kind, error.module, error.type) == ("import", "broken", "KeyError")
    assert "return {}['nothing']" in error.traceback
    assert "KeyError" in made.read_log()
    made.stop()
    for name in ("leaving", "no_such_module"):
        gone = begin(warden, newest, path, name)
        assert gone.report.error is not None
        assert (gone.report.error.kind, gone.report.error.module) == ("import", name)
        gone.stop()


def test_log_of_the_import_is_the_zygotes_own(warden: Warden, newest: str, path: str) -> None:
    made = begin(warden, newest, path, "talking")
    ended = made.call("print('mine')", None)
    assert (ended.stdout, ended.stderr) == (b"mine\n", b"")
    assert sorted(made.read_log().splitlines()) == ["and more", "hello from the import"]
    made.stop()


def test_file_that_a_module_has_open_is_empty_in_calls_and_its_number_is_taken(
    warden: Warden, newest: str, path: str
) -> None:
    made = begin(warden, newest, path, "opening")
    assert len(made.report.held) == 1
    assert made.report.held[0].endswith(" /etc/passwd")
    code = (
        "import os, opening\ndef main():\n    name = '/proc/self/fd/%d' % opening.file\n"
        "    return [os.read(opening.file, 10).decode(), os.readlink(name)]\n"
    )
    assert made.value(code) == ["", "/dev/null"]
    assert "opening" not in made.read_log()  # it knows the file, not whose it is
    made.stop()


def test_generators_that_a_module_has_made_go_on_where_it_left_them(
    warden: Warden, newest: str, path: str
) -> None:
    made = begin(warden, newest, path, "quiet")
    code = (
        "import quiet, random\ndef main():\n"
        "    return [quiet.state, quiet.drawn.random(), random.random()]\n"
    )
    one, two = made.value(code), made.value(code)
    assert one[:2] == two[:2]
    assert one[2] != two[2]
    made.stop()


def test_fork_hook_that_fails_costs_the_zygote_nothing(
    warden: Warden, newest: str, path: str
) -> None:
    made = begin(warden, newest, path, "hooked")
    assert made.report.error is None
    assert made.value("def main(): return 1") == 1
    assert "ZeroDivisionError" in made.read_log()
    made.stop()


def test_extension_asks_for_no_library_and_only_for_the_stable_interface() -> None:
    build("build/release/skerry-zygote.so")
    dynamic = subprocess.run(
        ["readelf", "-Wd", LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    assert "NEEDED" not in dynamic
    names = subprocess.run(
        ["nm", "-D", "--undefined-only", LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split() for line in names.splitlines()]
    assert {name for kind, name in rows if kind == "w"} == {"fflush", "dlopen", "dlsym"}
    # Everything else is the interpreter's own, in the oldest that there is.
    oldest = min(pythons(), key=lambda version: (len(version), version))
    code = "import ctypes, sys\nfor n in sys.argv[1:]: getattr(ctypes.pythonapi, n)\n"
    wanted = [name for kind, name in rows if kind == "U"]
    assert wanted
    subprocess.run([pythons()[oldest], "-c", code, *wanted], check=True)


# A program with the functions that an interpreter has, which do nothing.
MUSL = """
#include <dlfcn.h>
#include <stdio.h>
#define F(name) void *name(void) { return 0; }
%s
void *PyExc_OSError, *PyExc_ValueError, *_Py_NoneStruct[2];
static const struct { void *object[2], *init; long index; void *copy; const char *name; } *made;
void *PyModule_Create2(void *definition, int version)
{
    made = definition;
    return version == 3 ? definition : 0;
}
int main(int count, char **words) {
    void *library = dlopen(words[1], RTLD_NOW);
    void *(*init)(void) = library ? (void *(*)(void))dlsym(library, "PyInit_skerry_zygote") : 0;
    if (!init || !init()) { puts(dlerror()); return 1; }
    puts(made->name);
    return count - 2;
}
"""


@pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="needs musl-gcc")
def test_extension_loads_beside_musl(tmp_path: Path) -> None:
    build("build/release/skerry-zygote.so")
    names = subprocess.run(
        ["nm", "-D", "--undefined-only", LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    functions = [
        name
        for kind, name in (line.split() for line in names.splitlines())
        if kind == "U" and not name.startswith(("PyExc", "_Py", "PyModule"))
    ]
    source, program = tmp_path / "host.c", tmp_path / "host"
    source.write_text(MUSL % "\n".join(f"F({name})" for name in functions))
    subprocess.run(["musl-gcc", "-rdynamic", "-o", program, source], check=True)
    assert (
        "ld-musl"
        in subprocess.run(
            ["readelf", "-l", program], capture_output=True, text=True, check=True
        ).stdout
    )  # not the other library
    done = subprocess.run([program, LIBRARY], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("skerry_zygote\n", 0)


OLD = sorted(str(at) for at in (Path.home() / ".pyenv/versions").glob("[23].[67].*/bin/python"))


@pytest.mark.parametrize("python", [path for path in OLD if "/3.7." not in path])
def test_interpreter_that_is_too_old_says_so(warden: Warden, python: str) -> None:
    made = Zygote(warden, python)
    assert made.report.error is not None
    assert made.report.error.kind == "interpreter"
    assert "a zygote needs 3.7" in made.report.error.message
    made.stop()


def test_interpreter_that_cannot_load_it_says_so(warden: Warden, path: str, newest: str) -> None:
    """Before it tries: an interface that it only believes to be its own would crash it."""
    pretend = Path(path) / "sitecustomize.py"
    for line, words in (
        ("sys.abiflags = 't'", "free-threaded"),
        ("sys.implementation.name = 'pypy'", "it is not CPython"),
        ("sys.getobjects = len", "Py_TRACE_REFS"),
        ("import importlib.machinery as m; m.EXTENSION_SUFFIXES.clear()", "without support"),
    ):
        pretend.write_text(f"import sys\n{line}\n")
        made = begin(warden, newest, path)
        assert made.report.error is not None, line
        assert made.report.error.kind == "interpreter"
        assert words in made.report.error.message
        made.stop()
    pretend.unlink()
    made = begin(warden, newest, path, library=b"\x7fELF, but broken")
    assert made.report.error is not None
    assert made.report.error.kind == "interpreter"
    assert "cannot load extension modules" in made.report.error.message
    made.stop()


NUMPY = [
    version
    for version, python in pythons().items()
    if subprocess.run([python, "-c", "import numpy"], capture_output=True, check=False).returncode
    == 0
]


@pytest.fixture(scope="module")
def numpy(warden: Warden) -> Iterator[Zygote]:
    if not NUMPY:
        pytest.skip("no interpreter here has numpy")
    made = Zygote(warden, pythons()[NUMPY[0]], ["numpy"])
    assert made.report.error is None, made.report
    yield made
    made.stop()


def test_numpy_is_seeded_anew_and_its_threads_begin_after_the_fork(numpy: Zygote) -> None:
    code = (
        "import numpy, os, random\ndef main():\n"
        "    before = len(os.listdir('/proc/self/task'))\n"
        "    a = numpy.ones((700, 700)); total = float((a @ a)[0, 0])\n"
        "    return [float(numpy.random.random()), before, len(os.listdir('/proc/self/task')), total, "
        "[k for k in os.environ if k.endswith('NUM_THREADS')]]\n"
    )
    one, two = numpy.value(code), numpy.value(code)
    assert one[0] != two[0]
    assert (one[1], one[3], one[4]) == (1, 700.0, [])
    assert one[2] == min(len(os.sched_getaffinity(0)), 64)
    typed = numpy.call("import numpy\ndef main(): return [numpy.int64(3)]")
    assert typed.answer.error is not None
    assert "value[0] is of type numpy.int64" in typed.answer.error.message
    assert numpy.value("import numpy\ndef main(): return numpy.float64(0.5)") == 0.5
