"""What a repository remembers beside HEAD, with real repositories of git: left out, or refused."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from image_uppers import Layers

from skerry.errors import ImageBroken
from skerry.images.commits.commit import Wish, read_upper
from skerry.images.commits.inplace import InPlace
from skerry.images.commits.residue import Residue
from skerry.images.tree.entry import OPAQUE
from skerry.images.tree.notes import Notes
from skerry.spec.files import FileType

pytestmark = [
    pytest.mark.root,
    pytest.mark.usefixtures("as_root"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]
ANSWER = "the-answer-is-forty-two"
WHO = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
    "HOME": "/nowhere", "PATH": os.environ["PATH"],
}  # fmt: skip


def git(where: Path, *words: str, ok: bool = True) -> str:
    argv = ["git", "-c", "safe.directory=*", "-c", "gc.auto=0", *words]
    done = subprocess.run(argv, cwd=where, env=WHO, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not ok, done.stderr
    return done.stdout.strip()


def write(where: Path, name: str, text: str, message: str = "m") -> str:
    """Commits a file and returns the commit."""
    (where / name).parent.mkdir(parents=True, exist_ok=True)
    (where / name).write_text(text)
    git(where, "add", name)
    git(where, "commit", "-q", "-m", message)
    return git(where, "rev-parse", "HEAD")


def repository(where: Path, commits: int = 4) -> str:
    """A repository with some history; returns its HEAD."""
    where.mkdir(parents=True)
    git(where, "init", "-q", "-b", "main")
    rng = random.Random(commits)
    head = ""
    for number in range(commits):
        lines = "".join(f"{rng.random()} line {line}\n" for line in range(200))
        head = write(where, f"src/file{number % 3}.txt", lines, f"commit {number}")
    return head


def scrubbed(layers: Layers, dest: Path) -> list[str]:
    """Composes what stays with the lowers at `dest`; returns the paths that the rule took."""
    with contextlib.closing(InPlace(layers.view.path)) as contents:
        wish = Wish(Notes(), Residue(("git",)))
        tree = read_upper(layers.view, contents, wish)
        shutil.copytree(layers.bottom, dest, symlinks=True)
        for entry in tree.entries(contents):
            at, node = os.path.join(os.fsencode(dest), entry.path), entry.node
            gone = node.type is FileType.CHARACTER or OPAQUE in node.xattrs
            if gone and os.path.isdir(at):
                shutil.rmtree(at)
            elif os.path.lexists(at) and node.type is not FileType.DIRECTORY:
                os.unlink(at)
            if node.type is FileType.DIRECTORY:
                os.makedirs(at, exist_ok=True)
            elif node.type is FileType.FILE and entry.data is not None:
                Path(os.fsdecode(at)).write_bytes(b"".join(entry.data()))
                os.chmod(at, node.mode)
        return [path for one in wish.scrub.report() for path in one.paths]


def everything(where: Path) -> str:
    """What all objects of a repository say, reachable or not."""
    names = git(where, "cat-file", "--batch-check=%(objectname)", "--batch-all-objects")
    return "".join(git(where, "cat-file", "-p", name) for name in names.split())


def leave_answers(work: Path, head: str) -> None:
    """Leaves the answer in every corner of a repository, and goes back to `head`."""
    write(work, "fix.txt", ANSWER + " committed")
    git(work, "branch", "solution")
    git(work, "tag", "-a", "-m", ANSWER, "solved")
    git(work, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(work, "notes", "add", "-m", ANSWER + " noted")
    git(work, "reset", "-q", "--hard", head)
    (work / "src/file0.txt").write_text(ANSWER + " stashed")
    git(work, "stash", "-q")
    write(work, "x.txt", ANSWER + " amended")
    git(work, "reset", "-q", "--hard", head)
    (work / ".git/COMMIT_EDITMSG").write_text(ANSWER)
    (work / ".git/lfs/objects").mkdir(parents=True)
    (work / ".git/lfs/objects/a").write_text(ANSWER)
    (work / ".git/rebase-merge").mkdir()
    (work / ".git/rebase-merge/patch").write_text(ANSWER)


def check_clean(work: Path, head: str, before: dict[str, str]) -> None:
    """It is a whole repository at that commit, and knows nothing of the answer."""
    git(work, "fsck", "--full", "--strict")
    assert git(work, "rev-parse", "HEAD") == head
    assert git(work, "status", "--porcelain") == ""
    assert {path: (work / path).read_text() for path in before} == before
    assert ANSWER not in everything(work)
    grep = subprocess.run(
        ["grep", "-r", "-l", ANSWER, str(work)], capture_output=True, text=True, check=False
    )
    assert grep.stdout == ""
    assert git(work, "for-each-ref", "--format=%(refname)") in {"refs/heads/main", ""}


def texts(work: Path) -> dict[str, str]:
    return {path: (work / path).read_text() for path in git(work, "ls-files").split()}


def test_answers_beside_head_go_where_the_repository_is_all_of_the_sandboxes(
    layers: Layers, tmp_path: Path
) -> None:
    work = layers.upper / "srv/app"
    head = repository(work)
    before = texts(work)
    git(work, "repack", "-adq")  # the base is packed, what comes after is loose
    leave_answers(work, head)
    git(work, "pack-refs", "--all")
    assert ANSWER in everything(work)  # the control
    taken = scrubbed(layers, tmp_path / "d")
    check_clean(tmp_path / "d/srv/app", head, before)
    assert git(tmp_path / "d/srv/app", "log", "--oneline").count("\n") == 3
    assert taken


def test_answers_beside_head_go_where_the_layer_below_has_the_commit(
    layers: Layers, tmp_path: Path
) -> None:
    """Even if the sandbox has packed everything anew and deleted what the layer has."""
    head = repository(layers.bottom / "srv/app")
    git(layers.bottom / "srv/app", "gc", "-q")
    before = texts(layers.bottom / "srv/app")
    work = tmp_path / "work"
    shutil.copytree(layers.bottom / "srv/app", work)
    leave_answers(work, head)
    git(work, "gc", "-q", "--prune=never")
    assert ANSWER in everything(work)
    shutil.copytree(work, layers.upper / "srv/app")
    there, below = layers.upper / "srv/app/.git", layers.bottom / "srv/app/.git"
    for file in below.rglob("*"):
        same = there / file.relative_to(below)
        if not same.exists():
            os.mknod(same, 0o020000, os.makedev(0, 0))
    scrubbed(layers, tmp_path / "d")
    check_clean(tmp_path / "d/srv/app", head, before)


def test_commit_on_top_of_the_layers_stays_with_what_it_needs(
    layers: Layers, tmp_path: Path
) -> None:
    repository(layers.bottom / "srv/app")
    git(layers.bottom / "srv/app", "repack", "-adq")
    work = layers.upper / "srv/app"
    shutil.copytree(layers.bottom / "srv/app", work)
    leave_answers(work, git(work, "rev-parse", "HEAD"))
    head = write(work, "src/new.txt", "wanted")
    shutil.rmtree(work / ".git/objects/pack")  # as overlayfs: what was not written is not there
    scrubbed(layers, tmp_path / "d")
    check_clean(tmp_path / "d/srv/app", head, {"src/new.txt": "wanted"})


@pytest.mark.parametrize("detached", [False, True])
def test_repository_that_was_cleaned_by_git_is_kept_whole(
    layers: Layers, tmp_path: Path, detached: bool
) -> None:
    work = layers.upper / "srv/app"
    repository(work, 40)
    if detached:
        git(work, "checkout", "-q", "HEAD~20")
        git(work, "branch", "-q", "-D", "main")
    git(work, "reflog", "expire", "--expire=now", "--all")
    git(work, "gc", "-q", "--prune=now", "--aggressive")
    head, before = git(work, "rev-parse", "HEAD"), texts(work)
    count = git(work, "rev-list", "--count", "HEAD")
    scrubbed(layers, tmp_path / "d")
    dest = tmp_path / "d/srv/app"
    git(dest, "fsck", "--full", "--strict")
    assert (git(dest, "rev-parse", "HEAD"), texts(dest)) == (head, before)
    assert git(dest, "rev-list", "--count", "HEAD") == count
    assert list(dest.rglob("pack-*.pack"))
    assert not (dest / ".git/logs").exists()


def test_pack_that_holds_both_is_refused_with_what_to_do(layers: Layers, tmp_path: Path) -> None:
    work = layers.upper / "srv/app"
    head = repository(work)
    leave_answers(work, head)
    git(work, "gc", "-q", "--prune=never")
    with pytest.raises(ImageBroken, match="git gc --prune=now"):
        scrubbed(layers, tmp_path / "d")


def test_staged_changes_and_worktrees_and_what_is_not_understood_are_refused(
    layers: Layers, tmp_path: Path
) -> None:
    work = layers.upper / "srv/app"
    repository(work)
    (work / "staged.txt").write_text(ANSWER)
    git(work, "add", "staged.txt")
    with pytest.raises(ImageBroken, match="staged changes"):
        scrubbed(layers, tmp_path / "a")
    git(work, "reset", "-q", "--hard")
    git(work, "worktree", "add", "-q", str(tmp_path / "tree"))
    with pytest.raises(ImageBroken, match="worktrees"):
        scrubbed(layers, tmp_path / "b")
    shutil.rmtree(work / ".git/worktrees")
    (work / ".git/HEAD").write_text("ref: ../../etc/passwd\n")
    with pytest.raises(ImageBroken, match="names no branch"):
        scrubbed(layers, tmp_path / "c")
    (work / ".git/HEAD").write_text("0" * 40)
    with pytest.raises(ImageBroken, match="lacks the commit"):
        scrubbed(layers, tmp_path / "e")


def test_commit_whose_tree_is_no_number_is_refused(layers: Layers, tmp_path: Path) -> None:
    work = layers.upper / "srv/app"
    repository(work)
    text = b"tree zzzz\n\nm"
    data = b"commit %d\0" % len(text) + text
    name = hashlib.sha1(data).hexdigest()
    place = work / ".git/objects" / name[:2] / name[2:]
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(zlib.compress(data))
    (work / ".git/refs/heads/main").write_text(name + "\n")
    with pytest.raises(ImageBroken, match="not understood"):
        scrubbed(layers, tmp_path / "d")


def test_submodules_shallow_clones_and_odd_names_are_kept_right(
    layers: Layers, tmp_path: Path
) -> None:
    origin = tmp_path / "origin"
    repository(origin, 6)
    work = layers.upper / "srv/app"
    work.parent.mkdir(parents=True)
    git(tmp_path, "clone", "-q", "--depth", "2", f"file://{origin}", str(work))
    git(work, "config", "protocol.file.allow", "always")
    git(work, "-c", "protocol.file.allow=always", "submodule", "-q", "add", str(origin), "sub mod")
    head = write(work, "na\xefve\tname.txt", "x")
    (work / "sub mod/src/file0.txt").write_text(ANSWER)
    git(work / "sub mod", "stash", "-q")
    scrubbed(layers, tmp_path / "d")
    dest = tmp_path / "d/srv/app"
    assert git(dest, "rev-parse", "HEAD") == head
    git(dest, "fsck", "--full")
    git(dest / ".git/modules/sub mod", "--bare", "fsck", "--full")
    assert ANSWER not in everything(dest / ".git/modules/sub mod")
    assert git(dest, "rev-parse", "--is-shallow-repository") == "true"
    assert git(dest, "status", "--porcelain", "--ignore-submodules=all") == ""


def test_damaged_packs_and_objects_are_errors_and_never_more(
    layers: Layers, tmp_path: Path
) -> None:
    """Hostile bytes: each run ends, with a layer or with ImageBroken."""
    work = layers.upper / "srv/app"
    repository(work, 12)
    git(work, "repack", "-adq", "--depth=50", "--window=50")
    write(work, "loose.txt", "x")
    rng = random.Random(7)
    victims = [
        one for one in (work / ".git").rglob("*") if one.is_file() and "hooks" not in str(one)
    ]
    refused = 0
    for number in range(150):
        victim = rng.choice(victims)
        whole = victim.read_bytes()
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            if damaged and rng.random() < 0.9:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            else:
                del damaged[rng.randrange(len(damaged) + 1) :]
        victim.chmod(0o644)
        victim.write_bytes(damaged)
        try:
            scrubbed(layers, tmp_path / f"d{number}")
        except ImageBroken:
            refused += 1
        finally:
            victim.write_bytes(whole)
            shutil.rmtree(tmp_path / f"d{number}", ignore_errors=True)
    assert refused > 20
