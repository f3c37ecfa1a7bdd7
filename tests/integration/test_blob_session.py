"""The FUSE session of the launcher: handed out, kept over crashes, mounted from, and ended.

What is promised: whoever still has a copy of the session's descriptor can give it to who has lost it,
so that reads in flight go on; a session that nobody has is replaced, and its readers get errors.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lazy_stand import Blob, Knobs, blob_of, config_of, content_of, put_list, until
from native_launcher import Launcher, _mkfs_erofs, build_programs, missing
from skerry.images.format.chunks import CHUNK_BYTES, Codec
from skerry.images.lazy.fetch import FetchConfig
from skerry.images.lazy.main import Process, build
from skerry.wire import plan, replies

pytestmark = pytest.mark.root
MIB = 1 << 20
# A read that nobody answers lasts longer than all that must not wait for it.
PATIENT = FetchConfig(range_bytes=CHUNK_BYTES, ahead_bytes=0, wait_s=60.0, threads=4)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := missing():
        pytest.skip(reason)
    if not os.path.exists("/dev/fuse"):
        pytest.skip("there is no /dev/fuse")
    at = tmp_path_factory.mktemp("programs")
    build_programs(at)
    return at


@pytest.fixture
def rig(programs: Path) -> Iterator[Launcher]:
    with tempfile.TemporaryDirectory(prefix="sk", dir="/tmp") as base:
        made = Launcher(programs, Path(base), upper="dir")
        made.begin()
        try:
            yield made
            if made.process.poll() is None:
                made.end()
        finally:
            made.clear()


class Layer:
    """An EROFS pair of one file of 8 MiB."""

    def __init__(self, place: Path, into: Path) -> None:
        (place / "tree").mkdir()
        self.content = content_of(8 * MIB)
        (place / "tree" / "file").write_bytes(self.content)
        data = place / "data"
        data.touch()
        tool = _mkfs_erofs()
        assert tool is not None
        argv = [tool, "-b4096", "--chunksize=1048576", f"--blobdev={data}", into / "meta"]
        subprocess.run([*argv, place / "tree"], check=True, capture_output=True)
        self.blob: Blob = blob_of(data.read_bytes(), Codec.NONE, place)
        put_list(place, self.blob)


def session(rig: Launcher, held: int | None = None) -> tuple[int, bool]:
    """Asks for the session; returns its descriptor and whether it is new."""
    packet = plan.Blobs().encode(7)
    if held is None:
        rig.socket.send(packet)
    else:
        socket.send_fds(rig.socket, [packet], [held])
    answer, passed, _, _ = socket.recv_fds(rig.socket, 1 << 16, 1)
    reply = replies.decode(answer)
    assert isinstance(reply, replies.Reply)
    assert reply.failure is None, reply.failure
    return passed[0], reply.blobs().state


@contextlib.contextmanager
def serving(place: Path, fuse: int, source: Knobs, **changes: object) -> Iterator[Process]:
    """Serves a session within the block, and then ends like a process that dies."""
    (place / "cache").mkdir(exist_ok=True)
    process = build(config_of(place, **changes), fuse, source)
    process.server.start()
    try:
        yield process
    finally:
        process.server.ended.set()
        source.gate.set()


def inside(rig: Launcher, path: str) -> str:
    return f"/proc/{rig.process.pid}/root{path}"


def mount(rig: Launcher, layer: Layer) -> None:
    rig.ok(
        plan.LayerMount(
            layer="lazy-v", path=str(rig.state / "meta"), device=f"/blobs/{layer.blob.name}"
        )
    )


def end_launcher(rig: Launcher) -> None:
    rig.process.send_signal(signal.SIGKILL)
    rig.process.wait()


def test_a_layer_on_the_session_is_read_by_the_chunk(rig: Launcher, tmp_path: Path) -> None:
    layer = Layer(tmp_path, rig.state)
    source = Knobs({layer.blob.name: layer.blob})
    fuse, fresh = session(rig)
    assert fresh
    again, fresh = session(rig)
    assert not fresh
    os.close(again)
    with serving(tmp_path, fuse, source):
        mount(rig, layer)
        assert source.asked == []
        with open(inside(rig, "/layers/lazy-v/file"), "rb", buffering=0) as file:
            file.seek(5 * MIB)
            assert file.read(4096) == layer.content[5 * MIB :][:4096]
            assert len(source.asked) == 1
            file.seek(0)
            assert file.read(8 * MIB) == layer.content
        rig.ok(plan.LayerUnmount("lazy-v"))
        rig.ok(plan.Shutdown())
        rig.process.wait(20)
    os.close(fuse)


def test_ids_say_whether_a_layer_is_on_the_session(rig: Launcher, tmp_path: Path) -> None:
    layer = Layer(tmp_path, rig.state)
    meta, device = str(rig.state / "meta"), f"/blobs/{layer.blob.name}"
    assert rig.failure(plan.LayerMount(layer="lazy-v", path=meta, device=device)).errno == (
        errno.ENOTCONN
    )
    os.close(session(rig)[0])
    for name, on in (("lazy", device), ("lazy-v", str(rig.state / "meta")), ("lazy-v", None)):
        failure = rig.failure(plan.LayerMount(layer=name, path=meta, device=on))
        assert (failure.error_step, failure.errno) == ("layer", errno.EINVAL)


def test_a_launcher_after_a_crash_is_given_the_session_and_reads_go_on(
    rig: Launcher, tmp_path: Path
) -> None:
    layer = Layer(tmp_path, rig.state)
    source = Knobs({layer.blob.name: layer.blob})
    fuse, _ = session(rig)
    with serving(tmp_path, fuse, source), ThreadPoolExecutor(1) as threads:
        mount(rig, layer)
        source.gate.clear()
        with open(inside(rig, "/layers/lazy-v/file"), "rb", buffering=0) as file:
            reading = threads.submit(os.pread, file.fileno(), 4096, 5 * MIB)
            until(lambda: len(source.asked) == 1)
            end_launcher(rig)
            rig.begin()
            wrong = os.open("/dev/fuse", os.O_RDWR)
            copy, fresh = session(rig, fuse)
            os.close(wrong)
            assert not fresh
            os.close(copy)
            assert not reading.done()
            source.gate.set()
            assert reading.result(10) == layer.content[5 * MIB :][:4096]
        assert "lazy-v" in rig.ok(plan.Status()).status().layer
        rig.ok(plan.LayerUnmount("lazy-v"))
    os.close(fuse)


def test_a_session_that_nobody_has_is_replaced_and_its_readers_get_errors(
    rig: Launcher, tmp_path: Path
) -> None:
    layer = Layer(tmp_path, rig.state)
    source = Knobs({layer.blob.name: layer.blob})
    fuse, _ = session(rig)
    with serving(tmp_path, fuse, source, server=config_of(tmp_path).server) as process:
        mount(rig, layer)
        file = os.open(inside(rig, "/layers/lazy-v/file"), os.O_RDONLY)
        assert os.pread(file, 100, 0) == layer.content[:100]
        end_launcher(rig)
        rig.begin()
        fresh_fuse, fresh = session(rig)  # the launcher was not given the one that lives here
        assert fresh
        assert process.server.ended.wait(5)
        with pytest.raises(OSError, match=r"Input/output|not connected|aborted"):
            os.pread(file, 100, 5 * MIB)
        os.close(file)
        assert "lazy-v" not in rig.ok(plan.Status()).status().layer
        process.close()
    os.close(fuse)
    with serving(tmp_path, fresh_fuse, source):
        mount(rig, layer)
        with open(inside(rig, "/layers/lazy-v/file"), "rb") as again:
            assert again.read() == layer.content
        rig.ok(plan.LayerUnmount("lazy-v"))
    os.close(fresh_fuse)


def test_the_end_of_the_launcher_waits_for_no_read(rig: Launcher, tmp_path: Path) -> None:
    layer = Layer(tmp_path, rig.state)
    source = Knobs({layer.blob.name: layer.blob})
    fuse, _ = session(rig)
    with (
        serving(tmp_path, fuse, source, fetch=PATIENT) as process,
        ThreadPoolExecutor(1) as threads,
    ):
        mount(rig, layer)
        source.gate.clear()
        file = os.open(inside(rig, "/layers/lazy-v/file"), os.O_RDONLY)
        reading = threads.submit(os.pread, file, 4096, 5 * MIB)
        until(lambda: len(source.asked) == 1)
        rig.ok(plan.Shutdown())
        rig.process.wait(20)
        with pytest.raises(OSError, match=r"Input/output|not connected|aborted"):
            reading.result(5)
        os.close(file)
        assert process.server.ended.wait(5)
    os.close(fuse)


def test_unmounting_behind_a_read_under_way_holds_up_nobody(rig: Launcher, tmp_path: Path) -> None:
    layer = Layer(tmp_path, rig.state)
    source = Knobs({layer.blob.name: layer.blob})
    fuse, _ = session(rig)
    with serving(tmp_path, fuse, source, fetch=PATIENT):
        mount(rig, layer)
        source.gate.clear()
        path = inside(rig, "/layers/lazy-v/file")
        reader = subprocess.Popen(
            [sys.executable, "-c", f"open({path!r}, 'rb', buffering=0).read(4096)"]
        )
        until(lambda: len(source.asked) == 1)
        reader.kill()
        reader.wait(20)  # whoever waits for a page can be killed
        rig.socket.send(plan.LayerUnmount("lazy-v").encode(9))
        rig.socket.send(plan.Status().encode(10))
        first = replies.decode(rig.socket.recv(1 << 16))
        assert isinstance(first, replies.Reply)
        assert first.request_id == 10
        source.gate.set()
        second = replies.decode(rig.socket.recv(1 << 16))
        assert isinstance(second, replies.Reply)
        assert (second.request_id, second.failure) == (9, None)
    os.close(fuse)
