"""Misbehaviour that uses the node up or brings it down, by intent or by accident."""

from __future__ import annotations

from behaviours import Aim, Behaviour, Weakness, row
from behaviours_escaping import python

N, ROOMY = Aim.NODE, Weakness.ROOMY
BOMB = python(
    """
import os, signal, time
children = []
try:
    while len(children) < 300:
        pid = os.fork()
        if not pid:
            signal.pause()
        children.append(pid)
    print("reached: 300 processes")
except OSError:
    pass
for pid in children:
    os.kill(pid, signal.SIGKILL)
"""
)
MEMORY = python(
    """
held = []
for _ in range(24):
    held.append(bytearray(b"x" * (8 << 20)))
print("reached: 192 MiB")
"""
)
DEEP = python(
    """
import os
# Names longer than a path may be: what walks by whole paths ends here.
os.makedirs("/srv/deep")
os.chdir("/srv/deep")
for _ in range(1500):
    os.mkdir("d" * 64)
    os.chdir("d" * 64)
open("bottom", "w").write("x")
"""
)

# By its whole name, as a naive walk would.
FIND_BOTTOM = (
    "python3", "-c",
    "import os, sys; sys.exit(not os.path.exists('/srv/deep' + ('/' + 'd' * 64) * 1500 + '/bottom'))",
)  # fmt: skip

FLOODING: tuple[Behaviour, ...] = (
    row(
        "output without end", "P 6.4", N, ROOMY, "flood output_flood",
        "yes 'reached: everything was kept' | head -c 25000000", verdicts="failed",
        output_limit=1 << 16, roomy={"output_limit": 32 << 20},
    ),
    row(
        "full disk", "issue 5", N, ROOMY, "flood outside",
        "head -c 100000000 /dev/zero > /srv/big && echo 'reached: 100 MB'", verdicts="failed",
        spec={"disk": "64MiB"}, roomy={"disk": "256MiB"},
    ),
    row(
        "full shared memory", "own", N, ROOMY, "flood",
        "head -c 48000000 /dev/zero > /dev/shm/big && echo 'reached: 48 MB'; rm -f /dev/shm/big",
        verdicts="failed", spec={"memory": "32MiB"}, roomy={"memory": "256MiB"},
    ),
    row(
        "memory without end", "own", N, ROOMY, "out_of_memory", MEMORY, verdicts="failed",
        spec={"memory": "128MiB"}, roomy={"memory": "512MiB"},
    ),
    row(
        "fork bomb", "issue 5", N, ROOMY, "fork_bomb", BOMB, verdicts="failed",
        spec={"pids": 128}, roomy={"pids": 512},
    ),
    row(
        "deleted system", "P 6.4", N, Weakness.SAME_SANDBOX, "deletes_system",
        "rm -rf --no-preserve-root / 2>/dev/null", after=("/bin/true",),
    ),
    row(
        "every process killed", "own", N, Weakness.SAME_SANDBOX, "kills_all",
        "setsid sleep 1000 & sleep 0.1; kill -9 -1", verdicts="failed",
        after=("sh", "-c", "grep -lx sleep /proc/[0-9]*/comm"),
    ),
    row(
        "tree without bottom", "own", N, Weakness.SAME_SANDBOX, "ungradable", DEEP, verdicts="failed",
        after=FIND_BOTTOM,
    ),
)  # fmt: skip
