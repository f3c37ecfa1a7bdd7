"""The floor of function calls: a warmed Python forks, the child calls a function, the parent reaps it.

It shares no code with the product. Usage: forkfloor.py MODE SECONDS WORKERS

- `bare`: fork; the child calls the function, writes its value as JSON into a pipe, exits; the parent
  reads the value and waits.
- `isolated`: the same by clone with new mount, pid, ipc, net and uts namespaces; before it calls, the
  child makes every mount private, binds / read-only over an empty directory, mounts a tmpfs and a proc
  in it, and makes that its root.

Left out, although a product has them: messages from a client, limit groups, a user namespace, dropped
rights, a seccomp filter, and the hand-over of code that is not known beforehand. The clock of a life
runs from before the fork until the child has been reaped. Prints one line of JSON, as spawnloop does.
"""

import ctypes
import json
import os
import signal
import sys
import tempfile
import time

CLONES = 0x20000 | 0x20000000 | 0x8000000 | 0x40000000 | 0x4000000  # mnt, pid, ipc, net, uts
SYS_CLONE, SYS_PIVOT_ROOT = (220, 41) if os.uname().machine == "aarch64" else (56, 155)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 1, 2, 4, 32, 4096
MS_REC, MS_PRIVATE, MNT_DETACH = 16384, 1 << 18, 2
libc = ctypes.CDLL(None, use_errno=True)


def check(done: int) -> int:
    """Raise what a call of the C library that failed says."""
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def mount(source: bytes, target: bytes, kind: bytes, flags: int, data: bytes = b"") -> None:
    check(libc.mount(source, target, kind, ctypes.c_ulong(flags), data))


def isolate(root: bytes) -> None:
    """Of the child: its own view of the files."""
    mount(b"", b"/", b"", MS_REC | MS_PRIVATE)
    mount(b"/", root, b"", MS_BIND)
    mount(b"", root, b"", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    mount(b"tmpfs", root + b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, b"size=64m,nr_inodes=4096")
    mount(b"proc", root + b"/proc", b"proc", MS_NOSUID | MS_NODEV)
    os.chdir(root)
    check(libc.syscall(SYS_PIVOT_ROOT, b".", b"."))
    check(libc.umount2(b".", MNT_DETACH))
    os.chdir("/tmp")


def forked(isolated: bool) -> int:
    """Return what fork returns; a raw clone is announced to the interpreter as a fork is."""
    if not isolated:
        return os.fork()
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = libc.syscall(SYS_CLONE, ctypes.c_long(CLONES | signal.SIGCHLD), 0, 0, 0, 0)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return check(pid)


def life(call, root: bytes | None) -> None:
    """One call; RuntimeError unless its value is right."""
    reading, writing = os.pipe()
    pid = forked(root is not None)
    if pid == 0:
        try:
            if root is not None:
                isolate(root)
            os.write(writing, json.dumps(call(7)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    value = os.read(reading, 100)
    os.close(reading)
    os.waitpid(pid, 0)
    if value != b"49":
        raise RuntimeError(f"a life said {value!r}")


def work(seconds: float, root: bytes | None) -> list[int]:
    """Return the microseconds of each life of a closed loop."""
    names: dict = {}
    exec(compile("def main(x): return x * x", "floor", "exec"), names)
    taken, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        start = time.perf_counter_ns()
        life(names["main"], root)
        taken.append((time.perf_counter_ns() - start) // 1000)
    return taken


def main(mode: str, seconds: float, workers: int) -> int:
    """Run the workers and print their sum."""
    if mode not in ("bare", "isolated"):
        return 2
    start = time.monotonic()
    taken: list[int] = []
    with tempfile.TemporaryDirectory(prefix="bench-floor-") as place:
        root = os.fsencode(place) if mode == "isolated" else None
        pipes = []
        for _ in range(workers):
            reading, writing = os.pipe()
            if os.fork() == 0:
                os.close(reading)
                with open(writing, "w") as out:
                    json.dump(work(seconds, root), out)
                os._exit(0)
            os.close(writing)
            pipes.append(reading)
        for reading in pipes:
            with open(reading) as out:
                taken += json.load(out)  # nothing where a worker failed: then this does
        for _ in range(workers):
            os.wait()
    taken.sort()
    seconds = time.monotonic() - start
    last = len(taken) - 1
    print(
        json.dumps(
            {"lives": len(taken), "seconds": round(seconds, 3), "workers": workers,
             "lives_per_second": round(len(taken) / seconds, 1), "p50_us": taken[last // 2],
             "p99_us": taken[round(last * 0.99)], "max_us": taken[last], "failures": 0}
        )
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
