"""The kernel's structures, to the byte."""

from __future__ import annotations

import struct

import pytest

from skerry.images.lazy import protocol


def init(flags: int, major: int = 7, minor: int = 45) -> memoryview:
    body = struct.pack("<5I", major, minor, 131_072, flags & 0xFFFF_FFFF, flags >> 32)
    return memoryview(body + bytes(44))


def test_answers_have_the_lengths_of_the_header_file() -> None:
    assert len(protocol.init_out(init((1 << 64) - 1), 60)) == 64
    assert len(protocol.entry_out(2, 1)) == 128
    assert len(protocol.attr_out(1, 0)) == 104
    assert len(protocol.open_out()) == 16
    assert len(protocol.statfs_out()) == 80
    assert protocol.HEADER.size == 40


def test_only_what_both_know_is_switched_on() -> None:
    answer = protocol.init_out(init(1 << 0 | 1 << 22 | 1 << 30), 60)
    assert struct.unpack_from("<I", answer, 12)[0] == 1 << 0 | 1 << 22 | 1 << 30
    assert struct.unpack_from("<I", answer, 32)[0] == 0
    everything = protocol.init_out(init((1 << 64) - 1), 60)
    assert struct.unpack_from("<I", everything, 32)[0] == 1 << 7 | 1 << 10  # RESEND, TIMEOUT
    assert struct.unpack_from("<H", everything, 40)[0] == 60
    never = protocol.init_out(init((1 << 64) - 1), 0)
    assert struct.unpack_from("<I", never, 32)[0] == 1 << 7


@pytest.mark.parametrize(("major", "minor"), [(6, 45), (8, 0), (7, 30)])
def test_kernel_that_is_too_old_is_refused(major: int, minor: int) -> None:
    assert protocol.init_out(init(1, major, minor), 60) == b""


def test_request_is_read_from_its_header() -> None:
    body = struct.pack("<QQI", 0, 4096, 512) + bytes(20)
    unique = 1 << 63 | 9  # one that was handed out again
    data = protocol.HEADER.pack(40 + len(body), 15, unique, 77, 0, 0, 0, 0, 0) + body
    request = protocol.parse(memoryview(data + b"rest"), len(data))
    assert (request.op, request.unique, request.node) == (15, unique, 77)
    assert protocol.read_in(request.body) == (4096, 512)
    assert protocol.head(unique, 512) == struct.pack("<IiQ", 528, 0, unique)
    assert protocol.head(unique, error=5) == struct.pack("<IiQ", 16, -5, unique)


def test_batch_of_forgotten_nodes() -> None:
    body = struct.pack("<II", 2, 0) + struct.pack("<QQ", 5, 1) + struct.pack("<QQ", 6, 3)
    assert protocol.batch_forget_in(memoryview(body)) == [5, 6]
