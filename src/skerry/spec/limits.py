"""Bounds on everything a caller may ask for, and the parsing of sizes and durations."""

from __future__ import annotations

import math
import re

from skerry.errors import InvalidRequest

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

ARGV_BYTES_MAX = 2 * MIB  # of argv, of a shell line, of a command's environment
ENV_BYTES_MAX = 60_000  # of a sandbox's environment
PATH_BYTES_MAX = 4096
STDIN_BYTES_MAX = 64 * MIB  # inline standard input; larger content goes through files
OUTPUT_LIMIT_DEFAULT = MIB  # per stream, kept as half head and half tail
OUTPUT_LIMIT_MAX = 64 * MIB
TIMEOUT_MAX_S = 7 * 24 * 3600.0
LABELS_MAX = 32
LABEL_BYTES_MAX = 256
BATCH_MAX = 20_000
LAYERS_MAX = 32
MOUNTS_MAX = 64  # of a sandbox: its layers and their parts (native/spawn/request.h)
CHAIN_COMMITS_MAX = 32  # that are mounted on each other, before they have to be merged
CPU_MAX = 1024.0
CPU_WEIGHT = 100
CPU_WEIGHT_MAX = 10_000
MEMORY_MIN_BYTES = 8 * MIB
PIDS_MIN = 4
PIDS_MAX = 32_768
NOFILE_MAX = 20_000
PRIORITY_MIN, PRIORITY_MAX = -10, 10
CREATE_WAIT_MAX_S = 86_400.0  # how long a create may wait for room

_UNITS = {"": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB}
_UNITS |= {"t": 1024 * GIB, "tib": 1024 * GIB, "kb": 1000, "mb": 1000**2, "gb": 1000**3}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")


def split_limit(limit: int) -> tuple[int, int]:
    """Returns how many bytes of long output are kept from its head and from its tail."""
    return limit - limit // 2, limit // 2


def parse_bytes(value: int | str, what: str = "size") -> int:
    """Returns a size in bytes from an int or a text like "512MiB"; raises InvalidRequest."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidRequest(f"{what} must be a number of bytes or a text like '4GiB'")
    if isinstance(value, int):
        size = value
    else:
        match = _SIZE.fullmatch(value.strip())
        if match is None or match[2].lower() not in _UNITS:
            raise InvalidRequest(f"{what}: {value!r} is no size; write it like '512MiB' or '4GiB'")
        size = int(float(match[1]) * _UNITS[match[2].lower()])
    if size < 0 or size > 1 << 50:
        raise InvalidRequest(f"{what}: {value!r} is out of bounds")
    return size


def check_duration(
    value: float | None, what: str, maximum_s: float = TIMEOUT_MAX_S
) -> float | None:
    """Returns the duration in seconds if it is None or finite, above 0 and at most the maximum."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{what} must be a number of seconds")
    if not math.isfinite(value) or value <= 0 or value > maximum_s:
        raise InvalidRequest(
            f"{what} must be above 0 and at most {maximum_s:g} seconds, not {value}"
        )
    return float(value)
