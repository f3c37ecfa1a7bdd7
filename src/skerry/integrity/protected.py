"""What may not change in a sandbox that is graded, as data and questions about paths. No I/O.

All paths here are absolute, in POSIX form, as they are seen inside the sandbox.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterable, Mapping

import msgspec

from skerry.spec.integrity import TaskRule
from skerry.spec.task import TaskSpec, is_within

CONFIG_NAMES = frozenset(
    {
        "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml",
        "tox.ini", "setup.cfg", "pyproject.toml", ".coveragerc",
    }
)  # fmt: skip
# Names of modules that Python runs at start, by themselves.
STARTUP_MODULES = frozenset({"sitecustomize", "usercustomize"})
# Standard modules whose names people give to scratch files: dropped, and no evidence.
SCRATCH_MODULES = frozenset({"code", "trace", "profile", "this", "timeit"})
PROGRAM_DIRS = (
    "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
    "/root/.local/bin", "/root/bin",
)  # fmt: skip
_PROGRAM = re.compile(
    r"(python|pypy)[0-9.]*(-config)?|py\.?test|coverage|tox|nox|pip[0-9.]*|(ba|da|z|k|rba|a)?sh"
    r"|busybox|env|su|sudo|setpriv|xargs|rm|cp|mv|cat|ls|tar|git|patch|chmod|chown|mkdir|timeout|nohup"
)
# Tools that a policy may have to install, and that a grader may call by name.
_TOOL = re.compile(
    r"[gm]?awk|g?sed|[ef]?grep|find|sort|head|tail|tee|diff|cmp|test|true|false|make|gmake|cmake|ninja"
    r"|(gcc|g\+\+|cc|c\+\+|clang|ld|as|ar)(-[0-9]+)?|node|npm|npx|yarn|pnpm|java|javac|mvn|gradle|go"
    r"|cargo|rustc|ruby|perl|php|lua|uv|poetry|curl|wget|dpkg|apt|apt-get|which|id|date|sleep|kill|ps"
)
_HOME_PROGRAMS = re.compile(
    r"(/root|/home/[^/]+)/(\.local/bin|bin|\.cargo/bin|\.pyenv/shims|go/bin)"
)
LIBRARY_DIRS = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/lib", "/lib32", "/lib64")
_PYTHON_LIBRARY = re.compile(r"(.*/)?lib/(python[0-9.]*)/?(site-packages|dist-packages)?(/.*)?")
_LIBC = re.compile(
    r"(ld-linux|ld-musl|ld|libc|libm|libdl|libpthread|libpython)[0-9a-z._-]*\.so[0-9.]*"
)
# What graders are known to read: a policy has no reason to write one of these names.
_REWARD_FILE = re.compile(
    r"(reward|verdict|score|grade)s?\.(txt|json|jsonl|xml|yaml)|(reward|verdict)"
)
_REPORT_FILE = re.compile(
    r"junit[\w.-]*\.xml|(test|pytest)?[-_]?(report|result)s?\.(xml|json|jsonl)"
)
REPORT_DIRS = ("/logs", "/verifier", "/results", "/reward")
RESIDUE = frozenset({"__pycache__", ".pytest_cache"})
# Beneath the workdir these never reach the graded sandbox, whatever they hold.
WORKBENCH = frozenset(
    {
        ".git", ".hg", ".svn", ".venv", "venv", ".tox", ".nox", ".eggs", ".mypy_cache",
        ".ruff_cache", ".hypothesis", ".coverage", "node_modules", "htmlcov",
    }
)  # fmt: skip


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """One task's rules. `pristine` maps protected files to the sha256 they have untouched."""

    workdir: str
    protected: tuple[str, ...]
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    import_roots: tuple[str, ...]
    reports: tuple[str, ...] = ()
    modules: frozenset[str] = frozenset()  # top-level names that a workdir must not shadow
    pristine: Mapping[str, str] = {}
    allowed: tuple[str, ...] = ()  # patterns, of the task
    extra: tuple[TaskRule, ...] = ()  # likewise

    def inside(self, path: str) -> str | None:
        """Returns the path relative to the workdir, or None if it lies elsewhere."""
        if not is_within(path, self.workdir) or path == self.workdir:
            return None
        return path[len(self.workdir) + 1 :]

    def is_protected(self, path: str) -> bool:
        """Returns whether the path is protected or lies beneath a protected one."""
        return any(is_within(path, root) for root in self.protected)

    def is_above_protected(self, path: str) -> bool:
        """Returns whether replacing this path would replace something protected, or the workdir."""
        base = path.rstrip("/") + "/"
        return path == self.workdir or any(
            inner.startswith(base) for inner in (self.workdir, *self.protected)
        )

    def is_source(self, path: str) -> bool:
        """Returns whether the path is one that the fix changes, or a directory above one."""
        return any(is_within(source, path) for source in self.sources)


def rules_of(
    task: TaskSpec,
    *,
    installed_modules: Iterable[str] = (),
    pristine: Mapping[str, str] | None = None,
) -> Rules:
    """Returns the rules of a task; `installed_modules` are what its toolkit layers can import."""

    def absolute(paths: Iterable[str]) -> tuple[str, ...]:
        return tuple(posixpath.normpath(posixpath.join(task.workdir, path)) for path in paths)

    own = {posixpath.splitext(path.split("/")[-1])[0] for path in task.source_files}
    own |= {part for path in task.source_files for part in path.split("/")[:-1]}
    modules = (frozenset(installed_modules) | sys.stdlib_module_names) - own
    return Rules(
        workdir=task.workdir,
        protected=absolute((*task.protected_paths, *task.integrity.protected)),
        sources=absolute(task.source_files),
        tests=absolute(task.test_paths),
        import_roots=tuple(dict.fromkeys((*absolute(task.tests.import_roots), task.workdir))),
        reports=absolute(task.report_paths),
        modules=modules,
        pristine=dict(pristine or {}),
        allowed=task.integrity.allowed,
        extra=task.integrity.rules,
    )


def module_name(path: str) -> str:
    """Returns the name under which a file or directory would be imported: what stands before a dot."""
    return posixpath.basename(path).partition(".")[0]


def is_startup_module(path: str) -> bool:
    """Returns whether Python would run this at its start, wherever its search path leads there."""
    # As a file of any kind, or as a package: then a directory above bears the name.
    return module_name(path) in STARTUP_MODULES or bool(STARTUP_MODULES & set(path.split("/")))


def is_program_path(path: str) -> bool:
    """Returns whether the path lies directly in a directory where programs are looked up."""
    where = posixpath.dirname(path)
    return where in PROGRAM_DIRS or _HOME_PROGRAMS.fullmatch(where) is not None


def is_trusted_program(path: str) -> bool:
    """Returns whether the name is that of an interpreter, a shell, a test runner or a basic tool."""
    return _PROGRAM.fullmatch(posixpath.basename(path)) is not None


def is_known_tool(path: str) -> bool:
    """Returns whether the name is that of a tool that builds and graders often call."""
    return _TOOL.fullmatch(posixpath.basename(path)) is not None


def installed_module(path: str) -> str:
    """Returns the top-level module of a Python library that the path belongs to; "" if none."""
    return (python_library(path) or "").split("/")[0].partition(".")[0]


def is_library_path(path: str) -> bool:
    """Returns whether the path lies in the system's libraries, or in any Python's."""
    return any(is_within(path, root) for root in LIBRARY_DIRS) or python_library(path) is not None


def python_library(path: str) -> str | None:
    """Returns what of the path lies beneath a Python library directory; None if it is in none."""
    if not path.startswith(("/usr/", "/opt/", "/root/.local/", "/lib/", "/home/")):
        return None
    match = _PYTHON_LIBRARY.fullmatch(path)
    return (match[4] or "").lstrip("/") if match else None


def is_c_library(path: str) -> bool:
    """Returns whether the name is that of the C library, its loader, or Python's library."""
    return _LIBC.fullmatch(posixpath.basename(path)) is not None


def is_report(path: str, rules: Rules) -> bool:
    """Returns whether a grader might take the file for a report or a reward."""
    name = posixpath.basename(path)
    if any(is_within(path, report) for report in rules.reports):
        return True
    if _REWARD_FILE.fullmatch(name):
        return True
    where = posixpath.dirname(path)
    near = where in {rules.workdir, "/", "/tmp"}  # noqa: S108 - a path inside the sandbox
    if name.startswith("junit") and _REPORT_FILE.fullmatch(name):
        return near or any(is_within(path, root) for root in REPORT_DIRS)
    in_place = where == rules.workdir or any(is_within(path, root) for root in REPORT_DIRS)
    return in_place and _REPORT_FILE.fullmatch(name) is not None
