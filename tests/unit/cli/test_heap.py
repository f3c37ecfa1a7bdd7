"""A node's heap: as many arenas as it says, and large buffers that leave nothing behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import ctypes, resource, sys, threading

libc = ctypes.CDLL(None)
if sys.argv[1] == "bounded":
    from skerry.cli.heap import bound_heap
    bound_heap()
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)
libc.fopen.restype = libc.fdopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes = (ctypes.c_int, ctypes.c_void_p)
libc.fflush.argtypes = (ctypes.c_void_p,)


class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


libc.mallinfo2.restype = Info
turn = threading.Barrier(9)


def work():
    block = libc.malloc(4000)
    turn.wait()  # all have one at once
    turn.wait()
    libc.free(block)


threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
turn.wait()
out = libc.fdopen(1, b"w")
libc.malloc_info(0, out)
libc.fflush(out)
turn.wait()
for thread in threads:
    thread.join()
libc.free(libc.malloc(16 << 20))
before = libc.mallinfo2().hblks
block = libc.malloc(1 << 20)
mapped = libc.mallinfo2().hblks - before
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    b"".join([b"x" * 65536] * 4)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
print("then", mapped, faults, flush=True)
"""


def probe(how: str) -> tuple[int, int, int]:
    """Returns the arenas of eight threads, the mappings of a large buffer, and page faults of pieces."""
    argv = [sys.executable, "-c", PROBE, how]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    mapped, faults = said.rsplit("then ", 1)[1].split()
    return said.count("<heap nr="), int(mapped), int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="the options are those of glibc")
def test_threads_share_two_arenas_and_large_buffers_are_mappings() -> None:
    arenas, mapped, _ = probe("bounded")
    assert 1 <= arenas <= 2
    assert mapped == 1


def test_pieces_of_files_use_the_same_memory_again() -> None:
    _, _, faults = probe("bounded")
    assert faults < 200  # of 100 pieces of 64 pages each: those of the first ones


def test_without_it_each_thread_has_an_arena_and_a_freed_buffer_raises_the_threshold() -> None:
    arenas, mapped, _ = probe("as it is")
    assert arenas > 2
    assert mapped == 0
