"""What the agent is asked to start: the zygote, and a call of it (native/PROTOCOL.md, KIND 4 and 3)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from skerry.errors import InvalidRequest
from skerry.wire.starts import START_MORE_MAX

# "threads": modules may have threads, which calls then lack; "shared": memory that all calls write to.
ALLOWANCES: Final = frozenset({"threads", "shared"})
RESULT_BYTES: Final = 16 << 20
PAYLOAD_BYTES_MAX: Final = (
    START_MORE_MAX  # what goes into the first frame is more than other fields take
)

# Descriptor 3 holds the extension (an ELF file does not mind what follows it), two programs and the
# configuration; the last 32 bytes say how long each is. One sealed file: nothing is written into the
# container, and what is loaded cannot be changed.
_PARTS: Final = struct.Struct("<4Q")
# The boot is all that interpreters which are too old must be able to read.
_BOOT: Final = """\
import json, os, sys
if sys.version_info < (3, 7):
    text = "%s is Python %s: a zygote needs 3.7" % (sys.executable, sys.version.split()[0])
    told = {"kind": "interpreter", "type": "Refused", "message": text}
    os.write(4, json.dumps({"error": told}).encode())
    sys.exit(text)
import builtins
end = os.fstat(3).st_size - 32
sizes = [int.from_bytes(os.pread(3, 8, end + 8 * i), "little") for i in range(4)]
at = sizes[0]
spaces = []
for name, size in (("call", sizes[1]), ("start", sizes[2])):
    spaces.append({"__name__": "skerry_" + name, "__builtins__": dict(vars(builtins))})
    exec(compile(os.pread(3, size, at), "<skerry %s>" % name, "exec"), spaces[-1])
    at += size
spaces[1]["main"](json.loads(os.pread(3, sizes[3], at)), spaces[0]["run_call"])
"""


@dataclass(frozen=True)
class ZygoteStart:
    """The fields ARG and SCRIPT of a START of KIND 4."""

    args: tuple[str, ...]
    script: bytes


def start(
    python: str, modules: Sequence[str], *, library: bytes, allow: Iterable[str] = ()
) -> ZygoteStart:
    """Returns what starts a zygote of the image's interpreter `python` with these modules imported.

    `library` is the content of `skerry-zygote.so`. `allow` names what is not refused though calls lose
    or share it: see ALLOWANCES. ValueError: something else is named there.
    """
    allowed = sorted(allow)
    if not ALLOWANCES.issuperset(allowed):
        raise ValueError(f"{allowed}: only {sorted(ALLOWANCES)} can be allowed")
    inside = resources.files("skerry.guest.zygote") / "inside"
    programs = [(inside / f"{name}.py").read_bytes() for name in ("call", "start")]
    config = json.dumps({"modules": list(modules), "allow": allowed}).encode()
    parts = [library, *programs, config]
    script = b"".join(parts) + _PARTS.pack(*(len(part) for part in parts))
    # -s and -B: no directory of a user, and no attempt to write next to the modules of a read-only root.
    return ZygoteStart((python, "-s", "-B", "-c", _BOOT), script)


def payload(
    code: str,
    entry: str | None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    result_bytes: int = RESULT_BYTES,
    threads: bool = True,
) -> bytes:
    """Returns the SCRIPT of a START of KIND 3.

    With `entry`, the code is a module of which that function is called; without, a program whose
    arguments `args` are texts. `env` goes over the zygote's own. A value that takes more than
    `result_bytes` as JSON is answered by an error. `threads` False leaves OpenMP at one thread.
    InvalidRequest: it is longer than a START may be.
    """
    request = {
        "code": code,
        "entry": entry,
        "args": list(args),
        "kwargs": dict(kwargs or {}),
        "env": dict(env or {}),
        "result_bytes": result_bytes,
        "threads": threads,
    }
    # Not as ASCII, which would make texts of other scripts three times as long. JSON's reader in the
    # interpreter takes surrogates as they are.
    said = json.dumps(request, allow_nan=False, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(said) > PAYLOAD_BYTES_MAX:
        raise InvalidRequest(
            f"code and args: {len(said)} bytes as JSON, at most {PAYLOAD_BYTES_MAX}: pass data as files"
        )
    return said
