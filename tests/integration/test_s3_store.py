"""An S3 store against a real server, through a link that is slow, broken, or gone."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from s3_place import s3_options
from skerry.errors import StorageFailed
from skerry.images.objects.check import try_out
from skerry.images.objects.s3 import S3Objects
from skerry.images.objects.s3_uploads import _field
from skerry.testing.link import Fault
from waiting import soon

MIB = 1 << 20
CONTENT = random.Random(4).randbytes(20 * MIB)
LAST_STEP = "^POST .*uploadId="


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "source").write_bytes(CONTENT)
    return str(tmp_path / "source")


@pytest.fixture
def objects(s3_server, s3_link, tmp_path: Path) -> S3Objects:
    options = s3_options(s3_server, tmp_path, endpoint=s3_link.endpoint, timeout_s=2, patience_s=10)
    return S3Objects(f"s3://{s3_server.bucket}/{tmp_path.name}", options)


def impatient(objects: S3Objects, server, directory: Path, **more) -> S3Objects:
    given = {"endpoint": objects.options.endpoint, "timeout_s": 1, "patience_s": 1} | more
    place = given.pop("place", objects.where)
    return S3Objects(place, s3_options(server, directory, **given))


# --- what passes ---


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", times=2, retry_after=1),
        Fault("status", times=2, status=500, code="InternalError"),
        Fault("status", times=1, status=429, code="TooManyRequests"),
        Fault("truncate", times=2, after=1000),
        Fault("short", times=2, after=7),
        Fault("cut", times=2, after=300_000),
        Fault("cut", times=2),
        Fault("stall", times=1, after=1000, seconds=4),
        Fault("stall", times=1, seconds=4),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.after or fault.status}",
)
def test_read_through_a_passing_fault_gives_the_bytes(
    objects: S3Objects, s3_link, source: str, fault: Fault
) -> None:
    objects.put_file("blob", source)
    s3_link.faults(fault)
    assert objects.read("blob", 3 * MIB, MIB) == CONTENT[3 * MIB : 4 * MIB]
    assert s3_link.counts().injected == {fault.kind: fault.times}
    assert objects.patience.repeats == fault.times


def test_upload_through_faults_is_whole(objects: S3Objects, s3_link, source: str) -> None:
    s3_link.faults(
        Fault("status", match="^PUT .*partNumber=2", times=2),
        Fault("cut", match="^PUT .*partNumber=1", times=1),
        Fault("status", match="^POST .*uploads=", status=500, times=1),
    )
    assert objects.put_file("blob", source) is True
    assert objects.read("blob", 0, len(CONTENT)) == CONTENT


def test_store_that_is_gone_and_back_is_waited_for(
    objects: S3Objects, s3_link, source: str
) -> None:
    objects.put_file("blob", source)
    s3_link.leave()
    back = threading.Timer(1.5, s3_link.come_back)
    back.start()
    assert objects.read("blob", 0, 100) == CONTENT[:100]
    back.join()


def test_crashed_and_restarted_server_has_what_it_took(s3_server, tmp_path: Path) -> None:
    """A server of its own: the others would wait for it."""
    with type(s3_server)().running() as server:
        objects = S3Objects(
            f"s3://{server.bucket}", s3_options(server, tmp_path, patience_s=60, timeout_s=2)
        )
        objects.put_bytes("tags/x", b"taken", replace=False)
        server.kill()
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(objects.get, "tags/x", 100)
            server.start()
            assert reading.result() == b"taken"


def test_slow_store_is_slow_and_no_error(objects: S3Objects, s3_link, source: str) -> None:
    objects.put_file("blob", source)
    s3_link.set(rate=2 * MIB, latency_s=0.05)
    began = time.monotonic()
    assert objects.read("blob", 0, MIB) == CONTENT[:MIB]
    assert time.monotonic() - began > 0.45


# --- what does not pass ---


def test_store_that_stays_away_is_an_error_in_bounded_time(
    objects: S3Objects, s3_server, s3_link, tmp_path: Path
) -> None:
    hasty = impatient(objects, s3_server, tmp_path)
    s3_link.leave()
    began = time.monotonic()
    with pytest.raises(StorageFailed, match="nothing answers") as caught:
        hasty.read("blob", 0, 100)
    assert time.monotonic() - began < 30
    assert caught.value.fields["reason"] == "unreachable"
    assert objects.options.endpoint in caught.value.message


def test_store_that_stalls_is_an_error_in_bounded_time(
    objects: S3Objects, s3_server, s3_link, source: str, tmp_path: Path
) -> None:
    objects.put_file("blob", source)
    hasty = impatient(objects, s3_server, tmp_path)
    s3_link.faults(Fault("stall", after=1000, seconds=120))
    began = time.monotonic()
    with pytest.raises(StorageFailed, match="too slowly"):
        hasty.read("blob", 0, MIB)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"place": "s3://no-such-bucket/a"}, "bucket"),
        ({"endpoint": "http://127.0.0.1:1"}, "unreachable"),
        ({"endpoint": "http://no-such-host.invalid"}, "unreachable"),
    ],
)
def test_wrong_place_is_named_by_every_call(
    s3_server, tmp_path: Path, source: str, change: dict[str, str], reason: str
) -> None:
    options = s3_options(s3_server, tmp_path, patience_s=0, endpoint=change.get("endpoint", ""))
    wrong = S3Objects(change.get("place", "s3://layers/a"), options)
    for call in (
        lambda: wrong.get("x", 10),
        lambda: wrong.read("x", 0, 10),
        lambda: wrong.stat("x"),
        lambda: list(wrong.list("x/")),
        lambda: wrong.put_bytes("x", b"", replace=True),
        lambda: wrong.put_bytes("x", b"", replace=False),
        lambda: wrong.put_file("x", source),
        lambda: wrong.delete("x"),
        lambda: wrong.sweep(1.0),
    ):
        with pytest.raises(StorageFailed) as caught:
            call()
        assert caught.value.fields["reason"] == reason, caught.value.message


def test_https_where_http_answers_is_a_wrong_endpoint(
    objects: S3Objects, s3_server, tmp_path: Path
) -> None:
    endpoint = f"https://127.0.0.1:{s3_server.port}"
    wrong = impatient(objects, s3_server, tmp_path, endpoint=endpoint)
    for call in (lambda: wrong.get("x", 10), lambda: wrong.sweep(1.0)):
        with pytest.raises(StorageFailed, match="endpoint right"):
            call()


def test_keys_that_only_read_may_not_write(
    objects: S3Objects, s3_server, tmp_path: Path, source: str
) -> None:
    objects.put_bytes("x", b"x", replace=True)
    reader = impatient(objects, s3_server, tmp_path, keys=s3_server.reader)
    assert reader.get("x", 10) == b"x"
    for call in (
        lambda: reader.put_bytes("y", b"", replace=False),
        lambda: reader.put_file("y", source),
        lambda: reader.delete("x"),
    ):
        with pytest.raises(StorageFailed, match="lack the right") as caught:
            call()
        assert caught.value.fields["tries"] == 1
    assert objects.get("x", 10) == b"x"


def test_wrong_secret_is_refused_and_never_shown(
    objects: S3Objects, s3_server, s3_link, tmp_path: Path, caplog
) -> None:
    caplog.set_level(logging.DEBUG)
    keys = type(s3_server.keys)(s3_server.keys.access, "a-wrong-but-private-word")
    wrong = impatient(objects, s3_server, tmp_path, keys=keys)
    s3_link.faults(Fault("status", times=1))  # a repeat is logged
    told = [repr(wrong.options), repr(wrong), repr(vars(wrong))]
    for call in (
        lambda: wrong.get("x", 10),
        lambda: wrong.put_file("x", __file__),
        lambda: wrong.stat("x"),
    ):
        with pytest.raises(StorageFailed, match="does not accept these keys") as caught:
            call()
        told += [str(caught.value), repr(caught.value.fields)]
    told.append(caplog.text)
    assert "trying again" in caplog.text
    assert not [text for text in told if keys.secret in text]


def test_clock_that_is_off_is_named(objects: S3Objects, s3_link) -> None:
    s3_link.faults(Fault("status", status=403, code="RequestTimeTooSkewed"))
    with pytest.raises(StorageFailed, match="clocks"):
        objects.get("x", 10)


def test_environment_does_not_lead_elsewhere(
    objects: S3Objects, s3_server, tmp_path: Path, monkeypatch
) -> None:
    elsewhere = {"ENDPOINT": "http://127.0.0.1:1", "ENDPOINT_URL": "http://127.0.0.1:1",
                 "ENDPOINT_URL_S3": "http://127.0.0.1:1", "REGION": "mars-1",
                 "SKIP_SIGNATURE": "true", "ACCESS_KEY_ID": "nobody", "BUCKET": "other",
                 "VIRTUAL_HOSTED_STYLE_REQUEST": "true"}  # fmt: skip
    for name, value in elsewhere.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    objects.put_bytes("x", b"x", replace=True)
    assert impatient(objects, s3_server, tmp_path).get("x", 10) == b"x"


# --- uploads in parts ---


def test_broken_off_upload_is_invisible_and_leaves_nothing(
    objects: S3Objects, s3_server, s3_link, source: str, tmp_path: Path
) -> None:
    hasty = impatient(objects, s3_server, tmp_path, timeout_s=5)
    s3_link.faults(Fault("status", match="partNumber=3"))
    with pytest.raises(StorageFailed, match="less often"):
        hasty.put_file("blob", source)
    s3_link.faults()
    assert objects.stat("blob") is None
    assert list(objects.list("")) == []
    assert list(objects._uploads.pending()) == []


def test_lost_answer_to_the_last_step_is_no_loss(objects: S3Objects, s3_link, source: str) -> None:
    s3_link.faults(Fault("truncate", match=LAST_STEP, times=1, after=5))
    objects.put_file("blob", source)
    assert objects.read("blob", 0, len(CONTENT)) == CONTENT
    assert list(objects._uploads.pending()) == []


def test_lost_answer_to_a_conditional_put_still_wins(objects: S3Objects, s3_link) -> None:
    s3_link.faults(Fault("cut", match="^PUT", times=1, after=0))
    assert objects.put_bytes("a", b"mine", replace=False) is True
    s3_link.faults(Fault("stall", match="^PUT", times=1, seconds=4))
    assert objects.put_bytes("b", b"mine", replace=False) is True
    assert s3_link.counts().injected == {"cut": 1, "stall": 1}
    assert objects.put_bytes("b", b"mine", replace=False) is False


def put_again(objects: S3Objects, source: str) -> bool:
    return objects._uploads.put(objects.place.prefix + "blob", source, "racing")


def test_of_many_uploads_in_parts_one_wins(objects: S3Objects, source: str) -> None:
    """SeaweedFS judges the condition before it writes: of two at one moment both may have won."""
    gate = threading.Barrier(3)

    def put(_number: int) -> bool:
        gate.wait()
        return S3Objects(objects.where, objects.options)._uploads.put(
            objects.place.prefix + "blob", source, "racing"
        )

    with ThreadPoolExecutor(3) as threads:
        assert any(threads.map(put, range(3)))
    assert put_again(objects, source) is False
    assert objects.read("blob", 0, len(CONTENT)) == CONTENT
    assert list(objects._uploads.pending()) == []


KILLED = """
import sys
from skerry.images.objects.s3 import S3Objects
from skerry.images.objects.s3_uploads import _field
from skerry.images.objects.s3_options import S3Options
S3Objects(sys.argv[1], S3Options(endpoint=sys.argv[2], access_key=sys.argv[3],
          secret_key=sys.argv[4])).put_file("blob", sys.argv[5])
"""


def test_upload_of_a_killed_process_is_swept_when_it_is_old(
    objects: S3Objects, s3_link, source: str
) -> None:
    s3_link.faults(Fault("stall", match="partNumber=3", seconds=60))
    options = objects.options
    argv = [objects.where, options.endpoint, options.access_key, options.secret_key, source]
    child = subprocess.Popen([sys.executable, "-c", KILLED, *argv])
    try:
        assert soon(lambda: bool(s3_link.counts().injected))
    finally:
        child.kill()
        child.wait()
    s3_link.faults()
    assert len(list(objects._uploads.pending())) == 1
    assert list(objects.list("")) == []
    assert objects.sweep(3600) == 0
    elsewhere = S3Objects(f"{objects.where}-other", options)
    assert elsewhere.sweep(-1) == 0
    assert objects.sweep(-1) == 1
    assert list(objects._uploads.pending()) == []


def test_upload_that_goes_on_is_not_swept_however_old_it_is(objects: S3Objects) -> None:
    uploads, key = objects._uploads, f"{objects.place.prefix}blob"
    upload = _field(uploads._ask("POST", key, {"uploads": ""}, what="t").body, "UploadId")
    began = time.monotonic()
    while time.monotonic() - began < 3.2:  # the store counts whole seconds
        time.sleep(0.4)
        query = {"partNumber": "1", "uploadId": upload}
        uploads._ask("PUT", key, query, b"more", what="t")
    assert objects.sweep(2.0) == 0
    assert len(list(uploads.pending())) == 1
    assert objects.sweep(-1) == 1


def test_file_that_vanishes_is_no_fault_of_the_store(objects: S3Objects, tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="absent"):
        objects.put_file("blob", str(tmp_path / "absent"))
    assert list(objects._uploads.pending()) == []


# --- listing, trying out ---


def test_listing_goes_over_pages_and_through_faults(objects: S3Objects, s3_link) -> None:
    keys = [f"many/{number:04}" for number in range(2100)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: objects.put_bytes(key, b"", replace=True), keys))
    listing = objects.list("many/")
    first = next(listing)
    s3_link.faults(Fault("status", times=1), Fault("cut", times=1, after=100))
    rest = [key for key, _ in listing]
    assert [first[0], *rest] == keys
    assert s3_link.counts().injected == {"status": 1, "cut": 1}


def test_what_others_keep_in_the_bucket_is_not_listed(objects: S3Objects, s3_server) -> None:
    objects.put_bytes("tags/x", b"x", replace=True)
    for name in (".hidden", "tags/a%20b", "tags/.part", "tags//x", "tags/%C3%A9"):
        path = f"/{s3_server.bucket}/{objects.place.prefix}{name}"
        assert s3_server.request("PUT", path, body=b"?")[0] == 200
    assert [key for key, _ in objects.list("")] == ["tags/x"]
    assert [key for key, _ in objects.list("tags/")] == ["tags/x"]


def test_good_store_is_found_good_and_left_empty(objects: S3Objects) -> None:
    found = try_out(objects)
    assert 0 < found.read_ms < 5000
    assert not found.clock_is_off
    assert list(objects.list("")) == []


def test_store_without_conditional_writes_is_found_out(
    objects: S3Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = objects._put
    monkeypatch.setattr(
        objects, "_put", lambda key, data, mode, what: put(key, data, "overwrite", what)
    )
    with pytest.raises(StorageFailed, match="If-None-Match"):
        try_out(objects)
    assert list(objects.list("")) == []


def test_replaced_secret_file_is_taken_up(objects: S3Objects, s3_server, tmp_path: Path) -> None:
    """An upload signs itself and reads its keys anew."""
    secret = Path(objects.options.secret_key.removeprefix("file:"))
    secret.write_text("no longer good")
    with pytest.raises(StorageFailed, match="keys"):
        objects.sweep(1.0)
    secret.write_text(s3_server.keys.secret)
    assert objects.sweep(1.0) == 0
    os.unlink(secret)
    assert objects.sweep(1.0) == 0
