"""Objects in an S3-compatible store, through obstore; large uploads through `s3_uploads`.

    s3://BUCKET/PREFIX/KEY       an object; its key in the bucket is PREFIX/KEY

S3 is strongly consistent, shows an object only when all of it is there, and refuses a
second one where If-None-Match says so; a store that ignores that header cannot be used, and
`s3_check` finds that out. Every call is repeated while its failure may pass (`patience`), at most
for `patience_s` and one request more; then StorageFailed says in `reason` what it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from skerry.errors import Bug, ImageBroken, InvalidRequest, NotFound, Unavailable
from skerry.images.objects import s3_faults
from skerry.images.objects.api import Stat, check_key, check_prefix
from skerry.images.objects.patience import Failed, Patience
from skerry.images.objects.s3_faults import Trouble
from skerry.images.objects.s3_options import KEYS_FRESH_S, S3Options, parse_place
from skerry.images.objects.s3_uploads import Uploads
from skerry.images.objects.signing import Keys
from skerry.images.scratch import storage_errors

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, S3Config, S3Store

_T = TypeVar("_T")
_LIST_PAGE = 1000
STREAM_BYTES = 128 << 10  # a piece of a stream, at least
_CONNECT_S = 5.0
_DELETE_S = 5.0  # one request, and so long for repeats


class S3Objects:
    """Objects below a place such as "s3://layers/team-a". Opening it asks nothing of the store.

    Raises InvalidRequest if the options make no sense or a named secret is not there, Unavailable if
    obstore is not installed.
    """

    lag_s = 1.0  # nothing is cached; a second for what other hosts have under way

    def __init__(self, place: str, options: S3Options | None = None) -> None:
        self.options = (options or S3Options()).check()
        self.where = place.rstrip("/")
        self.place = parse_place(place)
        self._keys = _FreshKeys(self.options)
        at = self.options.endpoint or f"Amazon's S3 in {self.options.region}"
        self.patience = Patience(f"{self.where} at {at}", self.options.patience_s)
        self._store = _open(self.place.bucket, self.options, self._keys)
        # A collector's removal must not come late: others may rely on the object again by then.
        brief = dataclasses.replace(self.options, timeout_s=min(_DELETE_S, self.options.timeout_s))
        self._brief = _open(self.place.bucket, brief, self._keys)
        self._brief_patience = Patience(f"{self.where} at {at}", min(_DELETE_S, brief.patience_s))
        self._uploads = Uploads(self.place, self.options, self.patience, self._keys.read)

    # --- putting ---

    def put_file(self, key: str, path: str) -> bool:
        """Uploads a file: in one request if it is small, in parts if not."""
        what = f"storing {check_key(key)}"
        with storage_errors(f"reading {path}"):
            small = os.path.getsize(path) <= self.options.part_bytes
            data = Path(path).read_bytes() if small else b""
        if small:
            return self._put(key, data, "create", what)
        # Asking first saves an upload that would be in vain; the last word has the conditional one.
        return self.stat(key) is None and self._uploads.put(self._whole(key), path, what)

    def put_bytes(self, key: str, data: bytes, *, replace: bool) -> bool:
        """Puts an object with one request."""
        return self._put(key, data, "overwrite" if replace else "create", f"storing {key}")

    def _put(self, key: str, data: bytes, mode: Any, what: str) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        whole = self._whole(key)

        def put(tries: int) -> bool:
            try:
                obstore.put(self._store, whole, data, mode=mode, use_multipart=False)
            except AlreadyExistsError:
                # It may have been our own try, whose answer was lost.
                return tries > 0 and self._read_all(whole, len(data)) == data
            return True

        return self._run(what, put)

    # --- reading ---

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """Returns a small object; what is too large is not read."""
        whole = self._whole(key)
        return self._run(f"reading {key}", lambda _tries: self._read_all(whole, max_bytes))

    def _read_all(self, whole: str, max_bytes: int) -> bytes | None:
        import obstore

        try:
            found = obstore.get(self._store, whole)
        except FileNotFoundError as error:
            _refuse_no_bucket(error)
            return None
        size = found.meta["size"]
        if size > max_bytes:
            raise ImageBroken(f"{whole} in {self.where} is larger than {max_bytes} bytes")
        data = bytes(found.bytes())
        if len(data) != size:
            raise Failed(Trouble("damaged", f"{len(data)} bytes came instead of {size}"))
        return data

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Reads a range with one request."""
        whole = self._whole(key)
        if length <= 0:
            return b""
        found = self._run(f"reading {key}", lambda _tries: self._range(whole, offset, length))
        if found is None:
            raise NotFound(f"there is no {key} in {self.where}")
        return found

    def _range(self, whole: str, offset: int, length: int) -> bytes | None:
        import obstore
        from obstore.exceptions import BaseError

        try:
            found = obstore.get(self._store, whole, options={"range": (offset, offset + length)})
        except FileNotFoundError as error:
            _refuse_no_bucket(error)
            return None
        except BaseError as error:
            if "416 " in str(error)[:400]:
                return b""  # it ends before the offset
            raise
        wanted = min(length, found.meta["size"] - offset)
        data = bytes(found.bytes())
        if len(data) != wanted or found.range[0] != offset:
            raise Failed(Trouble("damaged", f"{len(data)} bytes came instead of {wanted}"))
        return data

    def stream(self, key: str, offset: int, length: int) -> Iterator[bytes]:
        """Gives a range piece by piece with one request; what fails in its midst is not repeated.

        Raises as `read` does.
        """
        import obstore
        from obstore.exceptions import BaseError

        whole, what = self._whole(key), f"reading {key}"
        options: Any = {"range": (offset, offset + length)}
        try:
            found = obstore.get(self._store, whole, options=options)
            wanted, first = min(length, found.meta["size"] - offset), found.range[0]
            came = 0
            for piece in found.stream(min_chunk_size=STREAM_BYTES):
                came += len(piece)
                yield bytes(piece)
        except FileNotFoundError as error:
            trouble = s3_faults.of_obstore(error)
            if trouble.reason in ("bucket", "endpoint"):
                raise trouble.error(what, self.patience.where) from None
            raise NotFound(f"there is no {key} in {self.where}") from None
        except BaseError as error:
            if "416 " in str(error)[:400]:
                return  # it ends before the offset
            raise s3_faults.of_obstore(error).error(what, self.patience.where) from None
        if came != wanted or first != offset:
            raise Trouble("damaged", f"{came} bytes came instead of {wanted}").error(
                what, self.patience.where
            )

    def stat(self, key: str) -> Stat | None:
        """Asks for an object's head."""
        whole = self._whole(key)

        def head(_tries: int) -> Stat | None:
            import obstore
            from obstore.exceptions import PermissionDeniedError

            try:
                return self._stat(obstore.head(self._store, whole))
            except (FileNotFoundError, PermissionDeniedError):
                # An answer without a body does not say why: a read of a byte does.
                self._range(whole, 0, 1)
                return None

        return self._run(f"looking at {key}", head)

    def list(self, prefix: str) -> Iterator[tuple[str, Stat]]:
        """Gives objects page by page; a page that fails is asked for again, from where it began."""
        whole = self.place.prefix + check_prefix(prefix)
        last = ""
        while True:
            page = self._page(whole, last)
            for found in page:
                key = found["path"].removeprefix(self.place.prefix)
                if _is_key(key):  # others may keep what they like in a bucket
                    yield key, self._stat(found)
            if len(page) < _LIST_PAGE:
                return
            last = page[-1]["path"]

    def _page(self, whole: str, after: str) -> Sequence[ObjectMeta]:
        import obstore

        def page(_tries: int) -> Sequence[ObjectMeta]:
            stream = obstore.list(
                self._store, whole.rstrip("/") or None, offset=after or None, chunk_size=_LIST_PAGE
            )
            return next(iter(stream), [])

        return self._run(f"listing {whole or 'objects'}", page)

    # --- removing ---

    def delete(self, key: str) -> None:
        """Deletes an object, or fails: in any case it is decided within ten seconds."""
        import obstore

        whole = self._whole(key)
        self._run(
            f"removing {key}",
            lambda _tries: obstore.delete(self._brief, whole),
            self._brief_patience,
        )

    def local_path(self, key: str) -> str | None:
        """Returns None: there are no files here that a kernel could mount."""
        check_key(key)
        return None

    def sweep(self, older_than_s: float) -> int:
        """Ends uploads to which nothing was written for that long, by the store's own clock."""
        swept = 0
        for one, now in tuple(self._uploads.pending()):
            if not now or now - one.begun <= older_than_s:
                continue
            touched = self._uploads.touched(one)  # a large one may well take hours
            if touched and now - touched > older_than_s:
                self._uploads.abort(one.key, one.upload)
                swept += 1
        return swept

    @property
    def repeats(self) -> int:
        """How many requests were made again."""
        return self.patience.repeats + self._brief_patience.repeats

    @property
    def failures(self) -> int:
        """How many calls failed all the same."""
        return self.patience.failures + self._brief_patience.failures

    def hurry(self) -> None:
        """The process is to end: from now on no call is repeated."""
        self.patience.hurry()
        self._brief_patience.hurry()

    # --- inner parts ---

    def _whole(self, key: str) -> str:
        return self.place.prefix + check_key(key)

    def _stat(self, meta: ObjectMeta) -> Stat:
        version = f"{meta['path']} {meta['e_tag']} {meta['size']}"
        return Stat(meta["size"], meta["last_modified"].timestamp(), version)

    def _run(self, what: str, work: Callable[[int], _T], patience: Patience | None = None) -> _T:
        from obstore.exceptions import BaseError

        def attempt(tries: int) -> _T:
            try:
                return work(tries)
            except FileNotFoundError as error:  # obstore's for a bucket that is not there, too
                raise Failed(s3_faults.of_obstore(error)) from None
            except BaseError as error:
                raise Failed(s3_faults.of_obstore(error)) from None

        return (patience or self.patience).run(what, attempt)


class _FreshKeys:
    """The named secrets, read again when they may have been replaced."""

    def __init__(self, options: S3Options) -> None:
        self._options = options
        self._last = options.keys()

    def read(self) -> Keys:
        """Returns the keys; while they cannot be read, those of before."""
        # One that is being replaced, or gone: the store will say what it thinks of the old ones.
        with contextlib.suppress(InvalidRequest):
            self._last = self._options.keys()
        return self._last

    def __call__(self) -> Any:
        """Returns them as obstore wants them."""
        keys = self.read()
        until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=KEYS_FRESH_S)
        return {
            "access_key_id": keys.access,
            "secret_access_key": keys.secret,
            "token": keys.token,
            "expires_at": until if self._options.files() else None,
        }


def _open(bucket: str, options: S3Options, keys: _FreshKeys) -> S3Store:
    """Returns obstore's client. It would read AWS_* of the environment: what matters is set here."""
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise Unavailable("S3 stores need obstore: pip install 'skerry[s3]'") from error
    config: S3Config = {
        "endpoint": options.url(bucket).removesuffix(f"/{bucket}")
        if options.path_style
        else options.url(bucket),
        "region": options.region,
        "virtual_hosted_style_request": not options.path_style,
        "skip_signature": False,
        "conditional_put": "etag",
        "s3_express": False,
        "unsigned_payload": False,
        "disable_bulk_delete": True,  # not every store has it, and it hides who was refused what
    }
    config["aws_endpoint_url_s3"] = config["endpoint"]
    client: ClientConfig = {
        "allow_http": options.endpoint.startswith("http://"),
        "allow_invalid_certificates": False,
        "timeout": dt.timedelta(seconds=options.timeout_s),
        "connect_timeout": dt.timedelta(seconds=min(_CONNECT_S, options.timeout_s)),
    }
    if options.ca_file:
        with storage_errors(f"reading {options.ca_file}"):
            client["root_certificate"] = Path(options.ca_file).read_bytes()
    never = dt.timedelta(seconds=options.timeout_s)
    return S3Store(
        bucket,
        config=config,
        client_options=client,
        # `Patience` repeats, and knows which failures do not pass.
        retry_config={"max_retries": 0, "retry_timeout": never},
        credential_provider=keys,
    )


def _is_key(key: str) -> bool:
    try:
        check_key(key)
    except Bug:
        return False
    return True


def _refuse_no_bucket(error: FileNotFoundError) -> None:
    """Raises Failed if it is not the object that is missing, but the bucket or the whole store."""
    trouble = s3_faults.of_obstore(error)
    if trouble.reason in ("bucket", "endpoint"):
        raise Failed(trouble) from None
