"""Identifiers: how they look and how they are made from given randomness (decision 23)."""

from __future__ import annotations

import re
from typing import Final

from skerry.errors import InvalidRequest

ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"
NODE_PATTERN: Final = re.compile(r"[a-z2-7]{5}")
SANDBOX_PATTERN: Final = re.compile(r"s[a-z2-7]{20}")
OP_PATTERN: Final = re.compile(r"[0-9a-f]{32}")
JOB_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
ROLLOUT_CHARS_MAX: Final = 256

SandboxId = str
OpId = str


def base32(value: int, digits: int) -> str:
    """Returns `value` in lowercase base32 with exactly `digits` digits, the low ones if it is larger."""
    out = []
    for _ in range(digits):
        out.append(ALPHABET[value & 31])
        value >>= 5
    return "".join(reversed(out))


def sandbox_id(node: str, epoch: int, random: bytes) -> SandboxId:
    """Returns `s` + 5 characters node + 3 epoch + 12 random (60 bits, so not guessable)."""
    if NODE_PATTERN.fullmatch(node) is None:
        raise InvalidRequest(f"node name {node!r} is not five characters of base32")
    return "s" + node + base32(epoch, 3) + base32(int.from_bytes(random[:8], "big"), 12)


def check_sandbox_id(value: str) -> SandboxId:
    """Returns the id if it has the form of one; raises InvalidRequest."""
    if SANDBOX_PATTERN.fullmatch(value) is None:
        raise InvalidRequest(f"{value[:64]!r} is not a sandbox id")
    return value


def check_op_id(value: str) -> OpId:
    """Returns the operation id (32 hexadecimal digits) if it is one; raises InvalidRequest."""
    if OP_PATTERN.fullmatch(value) is None:
        raise InvalidRequest(f"{value[:64]!r} is not an operation id (32 hexadecimal digits)")
    return value


def check_job_id(value: str) -> str:
    """Returns the id of a job if it is one; raises InvalidRequest."""
    if JOB_PATTERN.fullmatch(value) is None:
        raise InvalidRequest(
            f"job: {value[:80]!r} is not 1 to 64 of a-z, 0-9, '-', '_' and '.', a letter or digit first"
        )
    return value


def check_rollout(value: str) -> str:
    """Returns the key of a rollout if it has 1 to 256 printable characters; raises InvalidRequest."""
    if not 1 <= len(value) <= ROLLOUT_CHARS_MAX or not value.isprintable():
        raise InvalidRequest(
            f"rollout: {value[:80]!r} is not 1 to {ROLLOUT_CHARS_MAX} printable characters"
        )
    return value
