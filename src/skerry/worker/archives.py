"""What is read from source archives and wheels: bytes of regular files, in memory, nothing unpacked.

Archives are foreign. Names are taken apart here, links and devices are passed over, and both a
member's size and the sum of all are bounded; nothing is written to this machine's file system.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping

from skerry.errors import InvalidRequest
from skerry.spec.task import TaskSpec, is_within

MEMBERS_MAX = 20_000
TOTAL_BYTES_MAX = 256 << 20


def source_files(archive: bytes, name: str) -> dict[str, bytes]:
    """Returns the regular files of a source archive by path beneath its one top directory.

    Raises InvalidRequest for an archive that is damaged, too large, or leaves its directory.
    """
    found: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r|gz") as tar:
            for count, member in enumerate(tar):
                total += member.size
                if count > MEMBERS_MAX or total > TOTAL_BYTES_MAX:
                    raise InvalidRequest(f"{name}: too many or too large files")
                parts = member.name.split("/")
                if ".." in parts or member.name.startswith("/"):
                    raise InvalidRequest(
                        f"{name}: the name {member.name[:200]!r} leaves the archive"
                    )
                file = tar.extractfile(member) if member.isreg() else None
                if file is not None:
                    path = "/".join(part for part in parts if part not in {"", "."})
                    found[path.partition("/")[2]] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise InvalidRequest(f"{name}: not a sound archive: {error}") from error
    return found


def gold_patch(task: TaskSpec, bug: Mapping[str, bytes], fix: Mapping[str, bytes]) -> bytes:
    """Returns the unified diff of the task's source files between the releases, for `patch -p1`."""
    out = bytearray()
    for path in task.source_files:
        before, after = bug.get(path, b""), fix.get(path, b"")
        if path not in bug and path not in fix:
            raise InvalidRequest(f"{task.id}: neither release has the source file {path}")
        old = f"a/{path}" if path in bug else "/dev/null"
        new = f"b/{path}" if path in fix else "/dev/null"
        out += unified_diff(before, after, old, new)
    if not out:
        raise InvalidRequest(f"{task.id}: the source files are the same in both releases")
    return bytes(out)


def unified_diff(before: bytes, after: bytes, old: str, new: str) -> bytes:
    """Returns a unified diff, byte exact, with the mark for a missing newline at the end."""
    first, second = _lines(before), _lines(after)
    lines = difflib.diff_bytes(
        difflib.unified_diff, first, second, old.encode(), new.encode(), lineterm=b"\n"
    )
    out = bytearray()
    for line in lines:
        out += line
        if not line.endswith(b"\n"):
            out += b"\n\\ No newline at end of file\n"
    return bytes(out)


def _lines(data: bytes) -> list[bytes]:
    # bytes.splitlines would also split at a lone carriage return, which patch does not.
    parts = data.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return lines + ([parts[-1]] if parts[-1] else [])


def pristine_digests(task: TaskSpec, bug: Mapping[str, bytes]) -> dict[str, str]:
    """Returns the digests of protected files and conftests as the agent finds them, by path inside."""
    return {
        f"{task.workdir}/{path}": f"sha256:{hashlib.sha256(content).hexdigest()}"
        for path, content in bug.items()
        if any(is_within(path, root) for root in (*task.protected_paths, *task.integrity.protected))
        or path.rpartition("/")[2] == "conftest.py"
    }


def top_level_modules(wheels: Iterable[tuple[str, bytes]]) -> frozenset[str]:
    """Returns the names that installing these wheels makes importable."""
    names: set[str] = set()
    for name, data in wheels:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                entries = archive.namelist()[:MEMBERS_MAX]
        except (zipfile.BadZipFile, OSError) as error:
            raise InvalidRequest(f"{name}: not a sound wheel: {error}") from error
        for entry in entries:
            top, slash, _ = entry.partition("/")
            if slash and not top.endswith((".dist-info", ".data")):
                names.add(top)
            elif not slash and top.endswith((".py", ".so")):
                names.add(top.partition(".")[0])
    return frozenset(names)
