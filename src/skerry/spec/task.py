"""What a task is: a real bug, the tests that show it, and what may not be touched. No I/O.

A task is written as TOML (`docs/guide/tasks.md` explains each field). Parsing is strict: unknown
keys, missing ones and values out of bounds fail with the name of the file and of the field.
Paths in a task are relative to `workdir`, in POSIX form, without `..`.
"""

from __future__ import annotations

import re
import tomllib

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec.grading import ARTIFACTS_MAX, ScoreProgram, SubmissionRules, check_repeats
from skerry.spec.integrity import TaskIntegrity
from skerry.spec.layers import LayerKind, parse_layer_name
from skerry.spec.limits import check_duration, parse_bytes
from skerry.spec.sandbox import check_env
from skerry.spec.stages import Stages

ARCHIVE_BYTES_MAX = 64 * 1024 * 1024
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,254}")
_PYTEST = ("python", "-m", "pytest")


class Archive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a package index, pinned by its sha256."""

    file: str
    sha256: str


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One release of the package: its version and its source archive."""

    version: str
    file: str
    sha256: str

    @property
    def archive(self) -> Archive:
        """The source archive."""
        return Archive(self.file, self.sha256)


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The package with the bug: the release that has it and the one that fixes it."""

    name: str
    bug: Release
    fix: Release
    licence: str = ""


class Wheel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A package that the tests need, as a wheel pinned by its sha256."""

    name: str
    file: str
    sha256: str

    @property
    def archive(self) -> Archive:
        """The wheel's file."""
        return Archive(self.file, self.sha256)


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the tests are run, and what they must say.

    `argv` starts with `python -m pytest`; the verifier keeps what follows. `import_roots` come
    before installed packages on the module path, and after the standard library.
    """

    argv: tuple[str, ...]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: int
    env: dict[str, str] = {}
    import_roots: tuple[str, ...] = (".",)
    plugins: tuple[str, ...] = ()
    timeout_s: float = 120.0
    user: str = "nobody"
    interpreter: str = "/usr/bin/python3"
    memory: str | None = None  # of the verifying sandbox; None: limits.memory
    repeats: int = 1  # each in a sandbox of its own
    passes: int | None = None  # how many of them must pass; None: all
    score: ScoreProgram | None = None

    @property
    def needed(self) -> int:
        """How many of the repeats must pass."""
        return self.repeats if self.passes is None else self.passes

    @property
    def pytest_args(self) -> tuple[str, ...]:
        """What follows `python -m pytest`."""
        return self.argv[len(_PYTEST) :]


class TaskLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What each sandbox of the task gets, and how long a policy may act."""

    cpu: float = 1.0
    memory: str = "512MiB"
    pids: int = 256
    disk: str | None = None
    act_timeout_s: float = 900.0

    @property
    def memory_bytes(self) -> int:
        """The memory limit in bytes."""
        return parse_bytes(self.memory, "memory")


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bug-fix task; see the module's docstring. `check()` must have passed."""

    id: str
    title: str
    bug: str  # in words: what a model is told
    package: Package
    source_files: tuple[str, ...]  # what the real fix changes
    test_paths: tuple[str, ...]  # taken from the fix release when graded
    protected_paths: tuple[str, ...]  # a change here is evidence
    tests: Suite
    report_paths: tuple[
        str, ...
    ] = ()  # where a grader would look for a report: writing it is evidence
    wheels: tuple[Wheel, ...] = ()  # beyond pytest's own
    image: str = "debian:12"
    workdir: str = "/testbed"
    layers: tuple[str, ...] = ()  # further layers, below those built for the task
    limits: TaskLimits = TaskLimits()
    integrity: TaskIntegrity = TaskIntegrity()
    submission: SubmissionRules = SubmissionRules()
    stages: Stages = Stages()

    def repeated(self, repeats: int) -> TaskSpec:
        """Returns the task with so many repeats of its verification, all of which must pass.

        Raises InvalidRequest if they are too many.
        """
        check_repeats(repeats, None)
        tests = msgspec.structs.replace(self.tests, repeats=repeats, passes=None)
        return msgspec.structs.replace(self, tests=tests)

    def check(self) -> TaskSpec:
        """Returns itself if every value is in bounds; raises InvalidRequest naming the field."""
        if _ID.fullmatch(self.id) is None:
            raise InvalidRequest(f"id {self.id!r}: lowercase letters, digits and . _ - only")
        for what, text in (("title", self.title), ("bug", self.bug)):
            if not text.strip() or len(text) > 20_000 or "\x00" in text:
                raise InvalidRequest(f"{what} is empty or too long")
        self._check_package()
        if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", self.workdir) or ".." in self.workdir.split(
            "/"
        ):
            raise InvalidRequest(f"workdir {self.workdir!r} is no absolute path of plain names")
        for field in ("source_files", "test_paths", "protected_paths"):
            if not getattr(self, field):
                raise InvalidRequest(f"{field} is empty")
        for field in ("source_files", "test_paths", "protected_paths", "report_paths"):
            for path in getattr(self, field):
                _check_path(field, path)
        for path in self.test_paths:
            if not any(is_within(path, root) for root in self.protected_paths):
                raise InvalidRequest(f"protected_paths: the test path {path!r} is not protected")
        for path in self.source_files:
            if any(is_within(path, root) for root in self.protected_paths):
                raise InvalidRequest(f"source_files: {path!r} is protected, so nobody could fix it")
        self._check_integrity()
        self._check_tests()
        self._check_submission()
        self._check_limits()
        self.stages.check(self.workdir)
        return self

    def _check_submission(self) -> None:
        artifacts = self.submission.artifacts
        if len(artifacts) > ARTIFACTS_MAX:
            raise InvalidRequest(f"submission.artifacts: at most {ARTIFACTS_MAX}")
        for path in artifacts:
            _check_path("submission.artifacts", path)
            if any(is_within(path, root) for root in self.protected_paths):
                raise InvalidRequest(f"submission.artifacts: {path!r} is protected")
        for path in self.source_files:
            if artifacts and not any(is_within(path, root) for root in artifacts):
                raise InvalidRequest(
                    f"submission.artifacts: the source file {path!r} is below none, "
                    "so the real fix could not be graded"
                )

    def _check_integrity(self) -> None:
        self.integrity.check()
        for path in self.source_files:
            if any(is_within(path, root) for root in self.integrity.protected):
                raise InvalidRequest(
                    f"integrity.protected: the source file {path!r} lies below one"
                )
        for path in self.integrity.allowed:
            if any(is_within(path, root) for root in self.protected_paths):
                raise InvalidRequest(f"integrity.allowed: {path!r} is protected")

    def _check_package(self) -> None:
        if _PACKAGE.fullmatch(self.package.name) is None:
            raise InvalidRequest(f"package.name {self.package.name!r} is no package name")
        archives: list[tuple[str, Archive]] = [
            ("package.bug", self.package.bug.archive),
            ("package.fix", self.package.fix.archive),
        ]
        archives += [(f"wheels: {wheel.name}", wheel.archive) for wheel in self.wheels]
        for where, archive in archives:
            if _FILE.fullmatch(archive.file) is None:
                raise InvalidRequest(f"{where}: {archive.file!r} is no file name")
            if _SHA256.fullmatch(archive.sha256) is None:
                raise InvalidRequest(f"{where}: sha256 must have 64 hexadecimal digits")
        for wheel in self.wheels:
            if _PACKAGE.fullmatch(wheel.name) is None or not wheel.file.endswith(".whl"):
                raise InvalidRequest(f"wheels: {wheel.name!r}, {wheel.file!r} is no wheel")
        for release in (self.package.bug, self.package.fix):
            if not release.file.endswith(".tar.gz"):
                raise InvalidRequest(f"package: {release.file!r} is no source archive (.tar.gz)")

    def _check_tests(self) -> None:
        tests = self.tests
        if tests.argv[: len(_PYTEST)] != _PYTEST:
            raise InvalidRequest("tests.argv must start with: python -m pytest")
        if not tests.fail_to_pass or len(set(tests.fail_to_pass)) != len(tests.fail_to_pass):
            raise InvalidRequest("tests.fail_to_pass is empty or names a test twice")
        for name in tests.fail_to_pass:
            _check_path("tests.fail_to_pass", name.partition("::")[0])
        if tests.pass_to_pass < 0:
            raise InvalidRequest("tests.pass_to_pass must not be negative")
        for root in tests.import_roots:
            if root != ".":
                _check_path("tests.import_roots", root)
        check_env(tests.env)
        check_duration(tests.timeout_s, "tests.timeout_s")
        if re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", tests.user) is None:
            raise InvalidRequest(f"tests.user {tests.user!r} is no user name")
        if tests.user == "root":
            raise InvalidRequest("tests.user: root could read what the verifier keeps to itself")
        if tests.memory is not None:
            parse_bytes(tests.memory, "tests.memory")
        check_repeats(tests.repeats, tests.passes)
        if tests.score is not None:
            tests.score.check()
        if re.fullmatch(r"(/[A-Za-z0-9._-]+)+", tests.interpreter) is None:
            raise InvalidRequest(f"tests.interpreter {tests.interpreter!r} is no absolute path")

    def _check_limits(self) -> None:
        parse_layer_name(self.image, LayerKind.BASE)
        for layer in self.layers:
            parse_layer_name(layer)
        parse_bytes(self.limits.memory, "limits.memory")
        if self.limits.disk is not None:
            parse_bytes(self.limits.disk, "limits.disk")
        check_duration(self.limits.act_timeout_s, "limits.act_timeout_s")


def is_within(path: str, root: str) -> bool:
    """Returns whether `path` is `root` or lies beneath it, by their names alone."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def _check_path(field: str, path: str) -> None:
    parts = path.split("/")
    if not path or "\x00" in path or len(path) > 1024 or any(p in {"", ".", ".."} for p in parts):
        raise InvalidRequest(f"{field}: {path!r} is no relative path without '.' and '..'")


def parse_task(text: str, where: str) -> TaskSpec:
    """Returns the task written in a TOML text; raises InvalidRequest that starts with `where`."""
    try:
        return msgspec.convert(tomllib.loads(text), TaskSpec).check()
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{where}: no valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{where}: {error}") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error.message}", **error.fields) from error
