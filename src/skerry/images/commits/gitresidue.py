"""What a .git directory remembers beside the commit that HEAD names (rule `git`).

For each repository that the upper touches:

- Where the layers below have HEAD's commit already, nothing that the sandbox wrote into `objects` is
  needed, its deletions there included: all of it is left out.
- Else objects of the upper stay if HEAD's commit needs them. A loose object goes by itself. A pack goes
  if nothing in it is needed and stays if all of it is; one that holds both is refused, with what to do:
  it cannot be taken apart here.
- Of references only HEAD and the branch that it names stay. `logs`, ORIG_HEAD, FETCH_HEAD, stashes,
  unfinished merges and rebases, LFS objects, and whatever else is not named in `_KEPT`, go.
- Staged changes are refused too: the index would name objects that are gone.

What is not understood is refused. All this concerns what the sandbox wrote: a base layer that holds
newer commits holds them still.
"""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from skerry.errors import ImageBroken
from skerry.images.commits.gitobjects import OBJECTS_MAX, ObjectStore, Pack
from skerry.images.commits.merged import Merged
from skerry.images.tree.entry import show
from skerry.images.tree.upper import UpperLimits, UpperView, walk_upper

REFS_BYTES_MAX = 64 << 20
INDEX_BYTES_MAX = 512 << 20
_KEPT = frozenset({b"HEAD", b"config", b"config.worktree", b"description", b"index", b"shallow"})
_KEPT_BELOW = (b"hooks/", b"branches/")
_KEPT_INFO = frozenset({b"info/exclude", b"info/attributes", b"info/sparse-checkout"})
_ID = re.compile(rb"[0-9a-f]{40}")
_REF = re.compile(rb"refs/heads/[^\x00-\x20\x7f~^:?*\[\\]{1,1024}")
_LOOSE = re.compile(rb"objects/([0-9a-f]{2})/([0-9a-f]{38})")
_PACK = re.compile(rb"objects/pack/(pack-[0-9a-f]+)\.(?:pack|idx|rev|promisor|keep)")
_REMEDY = (
    "run `git reflog expire --expire=now --all && git gc --prune=now` there first, after deleting the "
    "branches, tags and stashes that shall not stay"
)


@dataclass
class Repository:
    """What stays of one repository; paths are relative to its directory."""

    path: bytes
    branch: bytes | None  # the reference that HEAD names
    all_objects_go: bool = False
    loose: set[bytes] = field(default_factory=set)  # ids that are needed
    packs: set[bytes] = field(default_factory=set)  # stems of those that stay
    packed_refs: bytes | None = None  # what stands there from now on; None: it goes

    def deletion_goes(self, path: bytes) -> bool:
        """Says whether a deletion in the upper is left out: of what is needed of the layers below."""
        return self.all_objects_go and path.startswith(b"objects/")

    def goes(self, path: bytes, *, directory: bool) -> bool:
        """Says whether what the upper has there is left out."""
        if path in _KEPT or path in _KEPT_INFO or path.startswith(_KEPT_BELOW):
            return False
        if path == b"packed-refs":
            return self.packed_refs is None
        if path == b"objects" or path.startswith(b"objects/"):
            return not directory and self._object_goes(path)
        if path == b"refs" or path.startswith(b"refs/"):
            return not directory and path != self.branch
        if path == b"modules" or path.startswith(b"modules/"):
            return not directory  # what is a repository there is another one
        return not (directory and path in {b"info", b"hooks", b"branches"})

    def _object_goes(self, path: bytes) -> bool:
        if self.all_objects_go:
            return True
        loose, pack = _LOOSE.fullmatch(path), _PACK.fullmatch(path)
        if loose is not None:
            return bytes.fromhex((loose[1] + loose[2]).decode()) not in self.loose
        return pack is None or pack[1] not in self.packs


class Repositories:
    """The repositories of an upper, looked at before it is packed."""

    def __init__(self, view: UpperView, limits: UpperLimits) -> None:
        self._found: dict[bytes, Repository] = {}
        merged = Merged((view.path, *view.lowers))
        below = Merged((view.path, *view.lowers), whiteouts=False)
        try:
            for path in dict.fromkeys(_candidates(view, limits)):
                if _is_repository(merged, path):
                    self._found[path] = _looked(merged, below, path)
        finally:
            merged.close()
            below.close()

    def find(self, path: bytes) -> tuple[Repository, bytes] | None:
        """Returns the innermost repository that holds a path, and the path in it."""
        at = path
        while at:
            at, _, _ = at.rpartition(b"/")
            if at in self._found:
                return self._found[at], path[len(at) + 1 :]
        return None


def _looked(merged: Merged, below: Merged, path: bytes) -> Repository:
    try:
        return _Look(merged, below, path).repository()
    except (ValueError, IndexError, struct.error) as error:  # numbers and texts that are none
        text = f"scrub_git: the repository {show(path)} is not understood: {error}"
        raise ImageBroken(text) from error


def _candidates(view: UpperView, limits: UpperLimits) -> Iterator[bytes]:
    """Gives the directories of the upper that may be repositories."""
    for seen in walk_upper(view, limits):
        if seen.stat is None or seen.whiteout or not seen.path:
            continue
        if stat.S_ISDIR(seen.stat.st_mode) and seen.name in {b"objects", b"refs", b"logs"}:
            yield seen.path.rpartition(b"/")[0]
        elif stat.S_ISDIR(seen.stat.st_mode) and seen.name.endswith(b".git"):
            yield seen.path
        elif seen.name in {b"HEAD", b"ORIG_HEAD", b"FETCH_HEAD"}:
            yield seen.path.rpartition(b"/")[0]


def _is_repository(merged: Merged, path: bytes) -> bool:
    if not path:
        return False
    names = merged.names(path)
    parts = (names.get(b"HEAD"), names.get(b"objects"), names.get(b"refs"))
    if any(part is None for part in parts):
        return False
    return all(stat.S_ISDIR(part.stat.st_mode) for part in parts[1:] if part is not None)


class _Look:
    """One repository, being looked at. `below` shows what is hidden by deletions of the upper too."""

    def __init__(self, merged: Merged, below: Merged, path: bytes) -> None:
        self._merged, self._below, self._path = merged, below, path

    def repository(self) -> Repository:
        for name in (b"objects/info/alternates", b"commondir", b"reftable", b"worktrees"):
            if self._merged.find(self._path + b"/" + name) is not None:
                raise self._refused(f"has {name.decode()}, which is not looked into")
        branch, head = self._head()
        found = Repository(self._path, branch)
        if head is not None and self._lower_has(head):
            found.all_objects_go = True
            with_store = self._below
        else:
            with_store = self._merged
        store = ObjectStore(with_store, self._path + b"/objects")
        try:
            needed = self._needed(store, head)
            if not found.all_objects_go:
                found.loose = needed
                found.packs = {pack.stem for pack in store.packs if self._stays(pack, needed)}
            self._check_index(needed)
        finally:
            store.close()
        self._keep_refs(found, branch, head)
        return found

    def _head(self) -> tuple[bytes | None, bytes | None]:
        """Returns the reference that HEAD names, and the commit."""
        text = (self._read(b"HEAD", 4096) or b"").strip()
        if not text.startswith(b"ref:"):
            return None, self._id(text)
        branch = text[4:].strip()
        if _REF.fullmatch(branch) is None or b".." in branch or branch.endswith(b"/"):
            raise self._refused("has a HEAD that names no branch")
        value = self._read(branch, 4096)
        if value is not None:
            return branch, self._id(value.strip())
        packed = self._packed(self._read(b"packed-refs", REFS_BYTES_MAX) or b"", branch)
        return branch, packed  # None: nothing was committed yet

    def _id(self, text: bytes) -> bytes:
        if _ID.fullmatch(text) is None:
            raise self._refused("has a HEAD that names no commit of SHA-1")
        return bytes.fromhex(text.decode())

    def _packed(self, refs: bytes, branch: bytes) -> bytes | None:
        for line in refs.splitlines():
            value, _, name = line.partition(b" ")
            if name == branch:
                return self._id(value)
        return None

    def _lower_has(self, head: bytes) -> bool:
        store = ObjectStore(self._below, self._path + b"/objects")
        try:
            if store.loose.get(head, 0) > 0:
                return True
            return any(pack.layer > 0 and pack.offset(head) is not None for pack in store.packs)
        finally:
            store.close()

    def _needed(self, store: ObjectStore, head: bytes | None) -> set[bytes]:
        """Returns the ids of all objects that a commit needs, its history included."""
        needed: set[bytes] = set()
        waiting = [] if head is None else [(head, b"commit")]
        shallow = set((self._read(b"shallow", REFS_BYTES_MAX) or b"").split())
        while waiting:
            name, wanted = waiting.pop()
            if name in needed:
                continue
            needed.add(name)
            if len(needed) > OBJECTS_MAX:
                raise self._refused("has too many objects")
            if wanted == b"blob":
                continue
            read = store.read(name)
            if read is None:
                raise self._refused(f"lacks the {wanted.decode()} {name.hex()}")
            kind, content = read
            if kind != wanted:
                raise self._refused(f"has a {kind.decode()} where a {wanted.decode()} should be")
            more = _commit(content, name.hex().encode() in shallow) if kind == b"commit" else None
            waiting += self._tree(content) if more is None else more
        return needed

    def _tree(self, content: bytes) -> list[tuple[bytes, bytes]]:
        entries, at = [], 0
        while at < len(content):
            space = content.find(b" ", at, at + 8)
            end = content.find(b"\0", space)
            if space < 0 or end < 0 or end + 21 > len(content):
                raise self._refused("has a tree that makes no sense")
            mode, name = content[at:space], content[end + 1 : end + 21]
            at = end + 21
            if mode != b"160000":  # of a submodule: in another repository
                entries.append((name, b"tree" if mode in {b"40000", b"040000"} else b"blob"))
        return entries

    def _stays(self, pack: Pack, needed: set[bytes]) -> bool:
        """Says whether a pack stays; raises ImageBroken for one that must not and has to."""
        if pack.layer > 0:
            return True  # of a layer below: it is there whatever is done here
        wanted = sum(name in needed for name in pack.ids())
        if 0 < wanted < pack.count:
            rest = pack.count - wanted
            raise self._refused(
                f"has a pack with {rest} objects that HEAD does not need among {wanted} that it does: "
                f"{_REMEDY}"
            )
        return wanted > 0

    def _check_index(self, needed: set[bytes]) -> None:
        data = self._read(b"index", INDEX_BYTES_MAX)
        if data is None:
            return
        try:
            staged = next((name for name in _index_ids(data) if name not in needed), None)
        except (struct.error, IndexError, ValueError) as error:
            raise self._refused(f"has an index that is not understood: {error}") from error
        if staged is not None:
            raise self._refused(
                f"has staged changes (object {staged.hex()}): commit them, or run `git reset` there"
            )

    def _keep_refs(self, found: Repository, branch: bytes | None, head: bytes | None) -> None:
        """The upper's packed references are replaced by the one that HEAD may need of them."""
        place = self._merged.find(self._path + b"/packed-refs")
        if branch is None or head is None or place is None or place.layer > 0:
            return
        if self._merged.find(self._path + b"/" + branch) is None:
            found.packed_refs = head.hex().encode() + b" " + branch + b"\n"

    def _read(self, name: bytes, bytes_max: int) -> bytes | None:
        return self._merged.read(self._path + b"/" + name, bytes_max)

    def _refused(self, why: str) -> ImageBroken:
        return ImageBroken(f"scrub_git: the repository {show(self._path)} {why}")


def _commit(content: bytes, shallow: bool) -> list[tuple[bytes, bytes]]:
    """Returns what a commit needs: its tree, and its parents unless the history is cut there."""
    found = []
    for line in content.partition(b"\n\n")[0].split(b"\n"):
        word, _, value = line.partition(b" ")
        if word == b"tree" or (word == b"parent" and not shallow):
            kind = b"tree" if word == b"tree" else b"commit"
            found.append((bytes.fromhex(value.decode("ascii", "replace")[:40]), kind))
        elif word not in {b"tree", b"parent"}:
            break
    return found


def _index_ids(data: bytes) -> Iterator[bytes]:
    """Gives the ids of all entries of an index (gitformat-index); submodules' are left out."""
    magic, version, count = struct.unpack_from(">4sII", data)
    if magic != b"DIRC" or version not in {2, 3, 4}:
        raise ValueError(f"version {version}")
    at = 12
    for _ in range(count):
        mode, name = struct.unpack_from(">I", data, at + 24)[0], data[at + 40 : at + 60]
        (flags,) = struct.unpack_from(">H", data, at + 60)
        start = at + 62 + (2 if flags & 0x4000 else 0)
        if version == 4:
            while data[start] & 0x80:
                start += 1
            start += 1
        end = data.index(b"\0", start)
        at = end + 1 if version == 4 else at + (end - at + 8) // 8 * 8
        if mode >> 12 != 0o16:
            yield name
    while at + 8 <= len(data) - 20:
        kind, size = struct.unpack_from(">4sI", data, at)
        if kind == b"link":
            raise ValueError("it is split")
        at += 8 + size
