"""Archives and wheels by hash: fetched once, by a user who owns nothing, kept in a cache.

The fetching process runs pip's own code and no package's (see `inside/fetch.py`). Under root it runs
as a free uid with no groups, no capabilities, `no_new_privs`, limits on processor time, memory, file
size and processes, and an empty home that is removed afterwards. What it brings is read as hostile:
a regular file, not too large, of exactly the pinned sha256, or nothing.

    CACHE/downloads/<first two digits>/<sha256>/<file name>
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import pwd
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path

from skerry.errors import InvalidRequest, StorageFailed, Unavailable
from skerry.spec.task import ARCHIVE_BYTES_MAX, Archive, TaskSpec
from skerry.worker.inside import program
from skerry.worker.lives import together

PARALLEL = 4
TIMEOUT_S = 300.0
SYSTEM_PYTHON = "/usr/bin/python3"
UIDS = range(61_184, 65_520)  # systemd's range for users that exist only while a service runs
LIMITS = (
    "--cpu=120", "--as=2147483648", f"--fsize={ARCHIVE_BYTES_MAX}", "--nproc=64", "--nofile=256",
    "--core=0",
)  # fmt: skip
ENVIRONMENT = frozenset(
    {
        "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NO_PROXY",
        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "no_proxy", "http_proxy", "https_proxy",
        "all_proxy", "XDG_CONFIG_DIRS",
    }
)  # fmt: skip

Progress = Callable[[str], None]


class Wanted(Archive, frozen=True):
    """An archive, and the project that it belongs to."""

    project: str = ""


def wanted_of(tasks: Iterable[TaskSpec], toolkit: Iterable[Wanted]) -> tuple[Wanted, ...]:
    """Returns every file that the tasks and their toolkit need, each once."""
    files = dict.fromkeys(toolkit)
    for task in tasks:
        package = task.package
        for release in (package.bug, package.fix):
            files[Wanted(release.file, release.sha256, package.name)] = None
        for wheel in task.wheels:
            files[Wanted(wheel.file, wheel.sha256, wheel.name)] = None
    return tuple(files)


class Downloads:
    """The cache. `environment` is what the machine's pip is configured by (PIP_*, certificates)."""

    def __init__(self, cache: Path, environment: Mapping[str, str]) -> None:
        self._root = cache / "downloads"
        self._environment = {
            key: value
            for key, value in environment.items()
            if key in ENVIRONMENT or key.startswith("PIP_")
        }

    def path(self, archive: Archive) -> Path:
        """Returns where a file lies, or will lie, in the cache."""
        return self._root / archive.sha256[:2] / archive.sha256 / archive.file

    def read(self, archive: Archive) -> bytes:
        """Returns a cached file's bytes; raises StorageFailed if they are not what was pinned."""
        data = self.path(archive).read_bytes()
        if hashlib.sha256(data).hexdigest() != archive.sha256:
            raise StorageFailed(f"{self.path(archive)} is damaged: remove it, it is fetched again")
        return data

    async def fetch(self, wanted: Sequence[Wanted], on_progress: Progress | None = None) -> None:
        """Brings what is missing into the cache; raises Unavailable for what cannot be had."""
        missing: dict[str, list[Wanted]] = {}
        for one in wanted:
            if not self.path(one).exists():
                missing.setdefault(one.project, []).append(one)
        if not missing:
            return
        # Wheels of another platform are found with other options of pip: a call of their own.
        calls = [(name, group) for name, files in missing.items() for group in _grouped(files)]
        count = sum(len(group) for _, group in calls)
        if on_progress:
            on_progress(f"fetching {count} files of {len(missing)} projects")
        gate = asyncio.Semaphore(PARALLEL)
        done = 0

        async def one_call(project: str, group: list[Wanted]) -> None:
            nonlocal done
            async with gate:
                await self._fetch_project(project, group)
            done += len(group)
            if on_progress:
                on_progress(f"fetched {done} of {count}: {', '.join(one.file for one in group)}")

        await together(one_call(project, files) for project, files in calls)

    async def _fetch_project(self, project: str, files: list[Wanted]) -> None:
        async with _throwaway(self._environment) as user:
            await user.run(project, [one.file for one in files])
            for one in files:
                await asyncio.to_thread(self._take, user.target / one.file, one)

    def _take(self, source: Path, wanted: Wanted) -> None:
        data = _read_untrusted(source)
        seen = hashlib.sha256(data).hexdigest()
        if seen != wanted.sha256:
            raise InvalidRequest(
                f"{wanted.file}: the index has other bytes than the task pins "
                f"(sha256 {seen}, pinned {wanted.sha256})"
            )
        target = self.path(wanted)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{secrets.token_hex(8)}.part")
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.chmod(0o644)
            partial.replace(target)
        except OSError as error:
            raise StorageFailed(f"{target}: {error.strerror}") from error


def _grouped(files: list[Wanted]) -> list[list[Wanted]]:
    plain = [one for one in files if not one.file.endswith(".whl") or one.file.endswith("-any.whl")]
    special = [[one] for one in files if one not in plain]
    return ([plain] if plain else []) + special


def _read_untrusted(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_size > ARCHIVE_BYTES_MAX:
            raise InvalidRequest(f"{path.name} is no file of at most {ARCHIVE_BYTES_MAX} bytes")
        return file.read(ARCHIVE_BYTES_MAX + 1)


class _Throwaway:
    """One call's user and directories; nothing of them is left afterwards."""

    def __init__(self, home: Path, uid: int | None, environment: dict[str, str]) -> None:
        self._home = home
        self._uid = uid
        self._environment = environment
        self.target = home / "files"

    async def run(self, project: str, files: list[str]) -> None:
        """Runs the fetching program; raises Unavailable with its last words if it fails."""
        python, pip_at = await self._interpreter()
        start = f"import sys, runpy; sys.path[:0] = {[str(pip_at)] if pip_at else []!r}; "
        fetch = str(self._home / "fetch.py")
        start += f"sys.argv[0] = 'fetch'; runpy.run_path({fetch!r}, run_name='__main__')"
        code, words = await self._call(
            [python, "-I", "-c", start, project, str(self.target), *files]
        )
        if code != 0:
            last = " ".join(words.split()[-60:])
            raise Unavailable(f"cannot download {', '.join(files)}: {last or f'status {code}'}")

    async def _interpreter(self) -> tuple[str, Path | None]:
        # The worker's own interpreter may lie where other users cannot go (a home directory).
        candidates = list(dict.fromkeys((sys.executable, SYSTEM_PYTHON)))
        usable = None
        for python in candidates:
            code, words = await self._call([python, "-I", "-c", "import pip; print('pip')"])
            if code == 0:
                return python, None
            if usable is None and "No module named" in words:
                usable = python
        if usable is None:
            raise Unavailable("no Python interpreter that an unprivileged user may run")
        return usable, await asyncio.to_thread(self._copy_pip)

    def _copy_pip(self) -> Path:
        place = self._home / "pip"
        for entry in sys.path:
            if (Path(entry) / "pip" / "__init__.py").exists():
                shutil.copytree(Path(entry) / "pip", place / "pip")
                return place
        raise Unavailable("there is no pip on this machine: install python3-pip")

    async def _call(self, command: list[str]) -> tuple[int, str]:
        prefix = ["prlimit", *LIMITS, "--"]
        if self._uid is not None:
            drop = ["--no-new-privs", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
            prefix = [
                "setpriv", f"--reuid={self._uid}", f"--regid={self._uid}", *drop,
                "--pdeathsig=KILL", "--", *prefix,
            ]  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *prefix,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self._home,
            env=self._environment,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                out, _ = await process.communicate()
        except TimeoutError:
            return 124, f"no answer within {TIMEOUT_S:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.wait()
        return process.returncode or 0, out[-8000:].decode("utf-8", "replace")


@contextlib.asynccontextmanager
async def _throwaway(environment: dict[str, str]) -> AsyncIterator[_Throwaway]:
    home = Path(tempfile.mkdtemp(prefix="skerry-fetch-"))
    uid = free_uid() if os.geteuid() == 0 else None
    settings = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home / "home"),
        "LANG": "C.UTF-8",
    } | environment
    settings |= {
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "TMPDIR": str(home / "tmp"),
    }
    try:
        home.chmod(0o755)
        (home / "fetch.py").write_text(program("fetch"))
        (home / "fetch.py").chmod(0o644)
        for name in ("home", "tmp", "files"):
            (home / name).mkdir(mode=0o700)
            if uid is not None:
                os.chown(home / name, uid, uid)
        own = _own_configuration()
        if own is not None and "PIP_CONFIG_FILE" not in settings:
            shutil.copyfile(own, home / "pip.conf")
            (home / "pip.conf").chmod(0o400)
            if uid is not None:
                os.chown(home / "pip.conf", uid, uid)
            settings["PIP_CONFIG_FILE"] = str(home / "pip.conf")
        yield _Throwaway(home, uid, settings)
    finally:
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)


def _own_configuration() -> Path | None:
    """Returns the pip configuration of the user who runs this, which the throw-away user has not."""
    home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    for path in (home / ".config/pip/pip.conf", home / ".pip/pip.conf"):
        if path.is_file():
            return path
    return None


def free_uid() -> int:
    """Returns a user id that no account and no process has."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    for status in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            taken.add(status.stat().st_uid)
    free = [uid for uid in UIDS if uid not in taken]
    if not free:
        raise Unavailable("no free user id for downloads")
    return secrets.choice(free)
