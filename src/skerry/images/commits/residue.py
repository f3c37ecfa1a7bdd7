"""What each rule of `skerry.spec.residue` matches in what a sandbox wrote.

A path that matches is left out as if the sandbox had not written it: where the layers below have
the file, theirs shows. Deletions stay, but for those below a directory that was left out. Every
file that was left out is counted, with the first paths by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from skerry.images.scratch import Spool
from skerry.images.tree.entry import Node, Tree, show
from skerry.spec.files import FileType
from skerry.spec.residue import PATHS_MAX, Scrubbed

CONTENT_BYTES_MAX = 256 << 10  # of a file that is looked into

HOMES_MAX = 256
PASSWD_BYTES_MAX = 1 << 20


def _any(*patterns: bytes) -> bytes:
    return b"|".join(b"(?:" + one + b")" for one in patterns)


# By rule: paths that are left out, each with all that is below it. `~/` is any home, or the root.
_PATHS: dict[str, bytes] = {
    "temporary": _any(rb"tmp/.+", rb"var/tmp/.+"),
    "packages": _any(
        rb"var/cache/(?:apt|dnf|yum|apk|pacman|debconf)/.+",
        rb"var/lib/apt/lists/.+",
        rb"var/log/(?:apt/.+|dpkg\.log.*|alternatives\.log.*|dnf.*|yum.*)",
    ),
    "caches": _any(
        rb"~/\.cache/.+",
        rb"~/\.(?:npm/_(?:cacache|logs|npx)|yarn/cache|pnpm-store|gradle/caches)/.+",
        rb"~/\.(?:cargo/(?:registry/cache|git/db)|bundle/cache|m2/repository)/.+",
        rb"~/go/pkg/mod/cache/.+",
        # Not what was installed: each sandbox would have to compile that again.
        rb"(?!(?:.*/)?(?:site|dist)-packages/|usr/(?:local/)?lib/)(?:.+/)?(?:__pycache__|\.pytest_cache|\.mypy_cache|\.ruff_cache|\.hypothesis)",
        rb"(?:.+/)?node_modules/\.cache",
    ),
    "histories": _any(
        rb"~/\.(?:bash|zsh|ash|sh|python|node_repl|psql|mysql|sqlite|rediscli|mongo|less|irb"
        rb"|gdb|lldb|php|scala|R|octave|julia)_?(?:history|hst|hist)",
        rb"~/\.(?:viminfo|nviminfo|wget-hsts|histfile|recently-used|Rhistory|dbshell)",
        rb"~/\.(?:lldb/.*history|julia/logs/.+|zsh_sessions/.+|bash_sessions/.+)",
        rb"~/\.ipython/profile_[^/]+/(?:history\.sqlite.*|log/.+)",
        rb"~/\.local/share/(?:fish/fish_history|nano/.+history|recently-used\.xbel)",
        rb"~/\.local/(?:share|state)/nvim/(?:shada|undo|swap|backup)/.+",
        rb"~/\.vim/(?:undo|swap|backup)[^/]*/.+",
        rb"~/\.emacs\.d/(?:auto-save-list|backups)/.+",
    ),
    "editors": _any(
        rb"(?:.*/)?\.[^/]+\.sw[a-p]",
        rb"(?:.*/)?\.[^/]+\.un~",
        rb"(?:.*/)?[^/]+~",
        rb"(?:.*/)?\.?#[^/]+#?",
    ),
    "logs": _any(rb"var/log/.+"),
    "credentials": _any(
        rb"~/[._]netrc",
        rb"~/\.(?:pypirc|npmrc|yarnrc\.yml|git-credentials|pgpass|my\.cnf|mylogin\.cnf)",
        rb"~/\.(?:vault-token|dockercfg|boto|s3cfg|terraformrc|condarc|hgrc|cifs.*)",
        rb"~/\.(?:aws|azure|oci|kube|gnupg|terraform\.d|databricks|databrickscfg)(?:/.+)?",
        rb"~/\.docker/(?:config\.json|trust/.+|contexts/.+)",
        rb"~/\.(?:cargo/credentials(?:\.toml)?|gem/credentials|composer/auth\.json)",
        rb"~/\.(?:m2/settings(?:-security)?\.xml|gradle/gradle\.properties|huggingface/.+)",
        rb"~/\.(?:cache/huggingface/token|kaggle/kaggle\.json|wandb/.+)",
        rb"~/\.config/(?:git/credentials|gh/.+|glab-cli/.+|hub|gcloud/.+|doctl/.+|op/.+)",
        rb"~/\.config/(?:containers/auth\.json|pypoetry/auth\.toml|uv/credentials.*)",
        rb"~/\.local/share/(?:keyrings|python_keyring|uv/credentials)/.+",
        rb"~/\.ssh/(?:id_[^/]*(?<!\.pub)|identity|.+\.(?:pem|key)|agent/.+)",
        rb"etc/ssh/ssh_host_[^/]+_key",
        rb"etc/(?:netrc|docker/.*auth\.json|apt/auth\.conf(?:\.d/.+)?)",
    ),
    "builds": _any(
        rb"(?:.+/)?(?:build|dist|target|_build|CMakeFiles|cmake-build-[^/]+)",
        rb"(?:.+/)?\.(?:eggs|gradle|tox|nox|next|nuxt|parcel-cache|turbo|build)",
    ),
}
# By rule: files that are left out if they hold something.
_CONTENTS: dict[str, tuple[tuple[bytes, bytes], ...]] = {
    "credentials": (
        (
            _any(rb"(?:.+/)?\.(?:npmrc|yarnrc(?:\.yml)?)", rb"(?:usr/local/)?etc/npmrc"),
            _any(rb"_auth(?:Token)?\b", rb"_password\b", rb"npmAuth(?:Token|Ident)\b"),
        ),
        (
            _any(
                rb"(?:.+/)?pip\.(?:conf|ini)",
                rb"(?:.+/)?(?:\.condarc|uv\.toml|\.pydistutils\.cfg)",
                rb"(?:.+/)?\.config/[^/]+/.+",
            ),
            _any(rb"://[^/\s:@]*:[^/\s@]+@"),
        ),
        (_any(rb"~/\.ssh/.+"), _any(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----")),
    ),
}
# Where a password may stand in what has to stay: told, not taken.
_SUSPECT = re.compile(rb"(?:.+/)?\.git/config", re.DOTALL)
_URL_PASSWORD = re.compile(_any(rb"://[^/\s@]+@", rb"(?i:extraheader\s*=\s*authorization)"))


@dataclass
class _Count:
    files: int = 0
    bytes: int = 0
    paths: list[str] = field(default_factory=list)


class Residue:
    """The rules of one commit, and what they have taken so far."""

    def __init__(self, rules: Iterable[str], homes: Iterable[bytes] = ()) -> None:
        self.rules = tuple(rules)
        more = b"".join(b"|" + re.escape(home) for home in homes)
        home = b"(?:(?:root|home/[^/]+" + more + b")/)?"

        def compiled(pattern: bytes) -> re.Pattern[bytes]:
            return re.compile(pattern.replace(b"~/", home), re.DOTALL)

        self._paths = [(name, compiled(_PATHS[name])) for name in self.rules if name in _PATHS]
        self._contents = [
            (name, compiled(where), re.compile(what, re.DOTALL))
            for name in self.rules
            for where, what in _CONTENTS.get(name, ())
        ]
        self._taken: dict[str, _Count] = {}

    def rule_for(self, path: bytes, size: int | None, content: Callable[[], bytes]) -> str | None:
        """Returns the rule that leaves a path out; `size` is None for what is no regular file.

        `content` is called only for small files whose place says that they may hold secrets.
        """
        for name, pattern in self._paths:
            if pattern.fullmatch(path):
                return name
        if size is None or size > CONTENT_BYTES_MAX:
            return None
        for name, where, what in self._contents:
            if where.fullmatch(path) and what.search(content()):
                return name
        return None

    def is_suspect(self, path: bytes, size: int | None, content: Callable[[], bytes]) -> bool:
        """Whether a file that stays seems to hold a password."""
        return (
            "credentials" in self.rules
            and size is not None
            and size <= CONTENT_BYTES_MAX
            and _SUSPECT.fullmatch(path) is not None
            and _URL_PASSWORD.search(content()) is not None
        )

    def take(self, rule: str, path: bytes, size: int) -> None:
        """Counts what was left out."""
        count = self._taken.setdefault(rule, _Count())
        count.files += 1
        count.bytes += size
        if len(count.paths) < PATHS_MAX:
            count.paths.append(show(path))

    def report(self) -> tuple[Scrubbed, ...]:
        """Returns what was left out, in the order of the rules."""
        return tuple(
            Scrubbed(name, count.files, count.bytes, tuple(count.paths))
            for name in self.rules
            if (count := self._taken.get(name)) is not None
        )


def sweep_tree(tree: Tree, spool: Spool, residue: Residue) -> None:
    """Takes out of a tree what the rules match, each directory with all below it. Deletions stay."""
    pending = [(b"", tree.root)]
    while pending:
        above, directory = pending.pop()
        children = directory.children or {}
        for name, node in list(children.items()):
            path = above + name
            rule = None if node.type is FileType.CHARACTER else _rule_of(path, node, spool, residue)
            if rule is not None:
                del children[name]
                _take_all(rule, path, node, residue)
            elif node.children is not None:
                pending.append((path + b"/", node))


def _rule_of(path: bytes, node: Node, spool: Spool, residue: Residue) -> str | None:
    held = node.content
    if held is None:
        return residue.rule_for(path, None, bytes)
    return residue.rule_for(path, held.size, lambda: b"".join(spool.read(held)))


def _take_all(rule: str, path: bytes, node: Node, residue: Residue) -> None:
    pending = [(path, node)]
    while pending:
        at, one = pending.pop()
        if one.children is None:
            residue.take(rule, at, one.content.size if one.content else 0)
        else:
            pending += [(at + b"/" + name, child) for name, child in one.children.items()]


def homes_in(passwd: bytes) -> tuple[bytes, ...]:
    """Returns the homes of users (relative, as paths are) that are neither /root nor below /home."""
    found: dict[bytes, None] = {}
    for line in passwd.splitlines():
        fields = line.split(b":")
        home = fields[5].strip(b"/") if len(fields) > 5 and fields[5].startswith(b"/") else b""
        plain = home and len(home) <= 1024 and not {b"", b".", b".."} & set(home.split(b"/"))
        if plain and home != b"root" and not home.startswith(b"home/"):
            found[home] = None
        if len(found) == HOMES_MAX:
            break
    return tuple(found)
