"""Large files into an S3 store, in parts: nothing is visible before all of it is there.

obstore uploads in parts too, but cannot make the last step conditional, nor list what was broken off.
Both need only signed requests: each part is sent with its sha256, which the server checks, and the
last step carries If-None-Match, so that of several uploads of one key exactly one wins.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import os
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import quote, urlsplit
from xml.sax.saxutils import unescape

from skerry.errors import StorageFailed
from skerry.images.objects import s3_faults
from skerry.images.objects.patience import Failed, Patience
from skerry.images.objects.s3_faults import Trouble
from skerry.images.objects.s3_options import Place, S3Options
from skerry.images.objects.signing import Keys, encoded, signed
from skerry.images.scratch import storage_errors

PARTS_MAX = 9_000  # S3 allows 10,000
ANSWER_BYTES_MAX = 16 << 20
_ENTRY = re.compile(rb"<Upload>(.*?)</Upload>", re.DOTALL)
_PART = re.compile(rb"<Part>(.*?)</Part>", re.DOTALL)


class Upload(NamedTuple):
    """An upload that is begun and not complete."""

    key: str  # the whole key in the bucket
    upload: str
    begun: float  # seconds since 1970, by the store's clock


class _Answer(NamedTuple):
    status: int
    tag: str
    date: float
    body: bytes


class Uploads:
    """Uploads in parts below one place; for several threads, each of which has its own connection."""

    def __init__(
        self, place: Place, options: S3Options, patience: Patience, keys: Callable[[], Keys]
    ) -> None:
        self._place = place
        self._options = options
        self._patience = patience
        self._keys = keys
        url = urlsplit(options.url(place.bucket))
        self._host, self._base = url.netloc, url.path
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        if self._tls is not None and options.ca_file:
            self._tls.load_verify_locations(options.ca_file)

    def put(self, key: str, path: str, what: str) -> bool:
        """Uploads a file to a whole key; False if that is there already.

        After an error nothing of it is left in the store, unless the store itself is gone: then
        `pending` gives it to a later sweep.
        """
        with storage_errors(f"reading {path}"):
            size = os.path.getsize(path)
        part_bytes = max(self._options.part_bytes, -(-size // PARTS_MAX))
        count = max(1, -(-size // part_bytes))
        upload = _field(self._ask("POST", key, {"uploads": ""}, what=what).body, "UploadId")
        if not upload:
            raise StorageFailed(f"{what}: the store gave no name to an upload", reason="refused")
        pool = ThreadPoolExecutor(min(count, self._options.parts_in_flight), "s3-upload")
        failed = threading.Event()
        try:
            with _Source(path) as source:

                def send(number: int) -> str:
                    body = source.read((number - 1) * part_bytes, part_bytes)
                    query = {"partNumber": str(number), "uploadId": upload}
                    try:
                        return self._ask("PUT", key, query, body, what=what, vain=failed.is_set).tag
                    except BaseException:
                        failed.set()  # the other parts need not be patient any more
                        raise

                tags = list(pool.map(send, range(1, count + 1)))
            won = self._complete(key, upload, tags, what)
        except BaseException:
            # A part that is under way could come back to life after the end of its upload.
            pool.shutdown(cancel_futures=True)
            with contextlib.suppress(StorageFailed):
                self.abort(key, upload)
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        if not won:
            self.abort(key, upload)
        return won

    def pending(self) -> Iterator[tuple[Upload, float]]:
        """Gives the uploads below the place that are not complete, with the store's time now."""
        query = {"uploads": "", "prefix": self._place.prefix}
        while True:
            answer = self._ask("GET", "", query, what="listing broken-off uploads")
            for entry in _ENTRY.findall(answer.body):
                one = Upload(
                    _field(entry, "Key"),
                    _field(entry, "UploadId"),
                    _time(_field(entry, "Initiated")),
                )
                # Some stores give those of the whole bucket: others' are none of our business.
                if one.key.startswith(self._place.prefix):
                    yield one, answer.date
            marks = {
                "key-marker": _field(answer.body, "NextKeyMarker"),
                "upload-id-marker": _field(answer.body, "NextUploadIdMarker"),
            }
            if _field(answer.body, "IsTruncated") != "true" or marks.items() <= query.items():
                return
            query |= marks

    def touched(self, one: Upload) -> float:
        """Returns when an upload was last written to, by the store's clock; 0 if it has just ended."""
        last = one.begun
        query = {"uploadId": one.upload}
        while True:
            answer = self._ask("GET", one.key, query, what="looking at an upload", good=(200, 404))
            if answer.status == 404:
                return 0.0
            for part in _PART.findall(answer.body):
                last = max(last, _time(_field(part, "LastModified")))
            marker = _field(answer.body, "NextPartNumberMarker")
            more = _field(answer.body, "IsTruncated") == "true"
            if not more or marker == query.get("part-number-marker"):
                return last
            query["part-number-marker"] = marker

    def abort(self, key: str, upload: str) -> None:
        """Ends an upload and frees what it took; one that is gone already is no error."""
        query = {"uploadId": upload}
        self._ask("DELETE", key, query, what="ending an upload", good=(200, 204, 404))

    def _complete(self, key: str, upload: str, tags: list[str], what: str) -> bool:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
            for number, tag in enumerate(tags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        query = {"uploadId": upload}
        answer = self._ask(
            "POST", key, query, body, {"If-None-Match": "*"}, what=what, good=(200, 404, 412)
        )
        # 404: an earlier try came through though its answer did not, or a sweep took us for dead.
        if answer.status == 404 and not self._is_there(key, what):
            raise s3_faults.of_body(404, answer.body).error(what, self._where)
        return answer.status == 200

    def _is_there(self, key: str, what: str) -> bool:
        return self._ask("HEAD", key, {}, what=what, good=(200, 404)).status == 200

    # --- requests ---

    @property
    def _where(self) -> str:
        return f"s3://{self._place.bucket}/{self._place.prefix} at {self._host}"

    def _ask(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        what: str,
        good: tuple[int, ...] = (200,),
        vain: Callable[[], bool] = lambda: False,
    ) -> _Answer:
        """Sends a signed request until it is answered with a good status."""
        path = f"{self._base}/{encoded(key)}" if key else self._base or "/"
        text = "&".join(f"{name}={quote(query[name], safe='-_.~')}" for name in sorted(query))
        keys = self._keys()

        def attempt(_tries: int) -> _Answer:
            signature = signed(
                method, self._host, path, text, body, keys=keys, region=self._options.region
            )
            target = f"{path}?{text}" if text else path
            try:
                answer = self._send(method, target, body, signature | dict(headers or {}))
            except OSError as error:
                raise Failed(s3_faults.of_os(error)) from error
            except http.client.HTTPException as error:
                raise Failed(Trouble("damaged", "the answer cannot be read")) from error
            # An upload may fail while it is put together, with an error under a good status.
            late = answer.status == 200 and b"<Error>" in answer.body[:1024]
            if answer.status not in good or late:
                status = 500 if late else answer.status
                raise Failed(s3_faults.of_body(status, answer.body))
            return answer

        return self._patience.run(what, attempt, vain=vain)

    def _send(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> _Answer:
        timeout = self._options.timeout_s
        connection = (
            http.client.HTTPSConnection(self._host, timeout=timeout, context=self._tls)
            if self._tls is not None
            else http.client.HTTPConnection(self._host, timeout=timeout)
        )
        try:
            connection.request(method, target, body=body, headers=dict(headers))
            answer = connection.getresponse()
            data = answer.read(ANSWER_BYTES_MAX)
            if answer.length:  # what is still owed: the connection ended early
                raise http.client.IncompleteRead(data, answer.length)
            return _Answer(
                answer.status, answer.headers.get("ETag", ""), _time(answer.headers["Date"]), data
            )
        finally:
            connection.close()


class _Source:
    """A local file, read at any place by any thread."""

    def __init__(self, path: str) -> None:
        with storage_errors(f"reading {path}"):
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by the block
        self._path = path

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()

    def read(self, offset: int, length: int) -> bytes:
        """Returns a part; StorageFailed if the file cannot be read."""
        parts = []
        with storage_errors(f"reading {self._path}"):
            while length and (part := os.pread(self._file.fileno(), length, offset)):
                parts.append(part)
                offset += len(part)
                length -= len(part)
        return b"".join(parts)


def _field(body: bytes, name: str) -> str:
    """Returns the text of the first element of that name; "" if there is none."""
    found = re.search(rf"<{name}>([^<]{{0,4096}})</{name}>".encode(), body)
    return unescape(found[1].decode("utf-8", "replace")) if found else ""


def _time(text: str | None) -> float:
    """Returns a time of a listing (ISO 8601) or a header (RFC 9110) as seconds since 1970; 0: none."""
    for form in ("%Y-%m-%dT%H:%M:%S.%fZ", "%Y-%m-%dT%H:%M:%SZ", "%a, %d %b %Y %H:%M:%S GMT"):
        with contextlib.suppress(ValueError):
            return dt.datetime.strptime(text or "", form).replace(tzinfo=dt.UTC).timestamp()
    return 0.0
