"""The root file system of a Debian suite as an archive, through mmdebstrap and the host's own apt.

Packages come from the archives that the machine's apt is configured for, however it reaches them;
nothing of that configuration, and no name of the machine, stays in the result. Equal inputs and
an unchanged archive give equal bytes. The result is cached by its inputs until `refresh`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import IO, cast

from skerry.errors import InvalidRequest, StorageFailed, Unavailable
from skerry.images.format.erofs import Log
from skerry.images.scratch import scratch_directory, storage_errors
from skerry.images.sources.debian_hook import CUSTOMIZE

SUITES = {"11": "bullseye", "12": "bookworm", "13": "trixie"}
# What agents and test suites expect of a machine, beyond minbase.
PACKAGES = (
    "adduser",
    "ca-certificates",
    "git",
    "iputils-ping",
    "less",
    "passwd",
    "patch",
    "procps",
    "python-is-python3",
    "python3",
    "python3-pip",
    "python3-venv",
    "sudo",
    "xz-utils",
)
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_FORMAT = "1"  # raised when what is made of the same inputs changes
_TIME_LIMIT_S = 3600.0
# Own mount and pid namespaces: the kernel ends every mount and process of the build when it ends
# or is killed, whatever a package's script did. The network is needed inside.
_PRIVATE = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--propagation", "private", "--mount-proc"),
    *("--pid", "--fork", "--kill-child=KILL"),
)
_MMDEBSTRAP = ("mmdebstrap", "--mode=root", "--variant=minbase", "--format=tar")
_NO_UPDATES = ("sid", "unstable", "experimental")
_DROPPED = ("man", "doc", "doc-base", "info", "lintian", "linda", "locale")
_HOST_SETTINGS = re.compile(r"Acquire::(http|https|Check|Retries|tor|ftp|ForceIPv)")


def recipe(suite: str, packages: Sequence[str]) -> dict[str, str]:
    """Returns what a manifest records of the inputs; raises InvalidRequest for bad ones."""
    return {
        "suite": _code_name(suite),
        "packages": " ".join(_all_packages(packages)),
        "format": _FORMAT,
    }


def root_tar(
    suite: str, packages: Sequence[str], cache_dir: str, log: Log, *, refresh: bool = False
) -> str:
    """Returns the path of the archive in the cache, made if it is not there.

    Takes a minute or so and needs root. One process at a time builds. Raises Unavailable if
    mmdebstrap or the archives cannot be used, StorageFailed if the disk is full.
    """
    inputs = recipe(suite, packages)
    architecture = _run(["dpkg", "--print-architecture"]).strip()
    key = hashlib.sha256("\n".join([*inputs.values(), architecture, CUSTOMIZE]).encode())
    directory = os.path.join(cache_dir, "debian")
    cached = os.path.join(directory, f"{inputs['suite']}-{key.hexdigest()[:16]}.tar")
    with storage_errors(f"using the cache {directory}"):
        os.makedirs(directory, exist_ok=True)
    with _locked(os.path.join(directory, ".lock"), log):
        if refresh or not os.path.exists(cached):
            _check_host()
            with scratch_directory(directory) as scratch:
                made = _build(scratch, inputs["suite"], inputs["packages"].split(), log)
                with storage_errors(f"writing to the cache {directory}"):
                    os.rename(made, cached)
        else:
            log(f"using the cached archive {cached}")
    return cached


def _code_name(suite: str) -> str:
    name = SUITES.get(suite, suite)
    if re.fullmatch(r"[a-z][a-z0-9-]*", name) is None:
        raise InvalidRequest(f"{suite!r} is no Debian suite: write bookworm, trixie, ... or 12, 13")
    return name


def _all_packages(packages: Sequence[str]) -> list[str]:
    for package in packages:  # also keeps apt's options and patterns out
        if re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", package) is None:
            raise InvalidRequest(f"{package!r} is no name of a Debian package")
    return sorted({*PACKAGES, *packages})


def _check_host() -> None:
    if os.geteuid() != 0:
        raise Unavailable("building a Debian base needs root")
    for program, package in (("mmdebstrap", "mmdebstrap"), ("apt-get", "apt")):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is missing: run 'apt-get install {package}'")
    if not os.path.exists(_KEYRING):
        raise Unavailable("run 'apt-get install debian-archive-keyring'")


@contextlib.contextmanager
def _locked(path: str, log: Log) -> Iterator[None]:
    with open(path, "a", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("waiting for another build")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(scratch: str, suite: str, packages: Sequence[str], log: Log) -> str:
    os.chmod(scratch, 0o755)  # noqa: S103  # apt's own user must get through
    log(f"Debian {suite}: package lists")
    lists = _fetch_lists(scratch, suite, log)
    epoch = _archive_epoch(lists)
    temporary = os.path.join(scratch, "tmp")
    hook = os.path.join(scratch, "customize")
    out = os.path.join(scratch, "root.tar")
    with storage_errors("preparing a Debian build"):
        os.mkdir(temporary, 0o755)
        with open(hook, "w", encoding="utf-8") as file:
            file.write(CUSTOMIZE)
    log(f"Debian {suite}: root file system")
    options = [f"--include={','.join(packages)}", f"--keyring={_KEYRING}"]
    options += [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in _DROPPED]
    options += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
    options += ["--dpkgopt=path-include=/usr/share/locale/locale.alias"]
    options += [f"--aptopt={line}" for line in _host_apt_settings()]
    options += [f'--customize-hook=sh {hook} "$1" {suite}']
    _stream(
        [*_PRIVATE, *_MMDEBSTRAP, *options, suite, out, os.path.join(scratch, "sources.list")],
        {"TMPDIR": temporary, "SOURCE_DATE_EPOCH": str(epoch), "HOME": "/root"},
        log,
        f"mmdebstrap could not make {suite}",
    )
    return out


def _fetch_lists(scratch: str, suite: str, log: Log) -> str:
    """Fetches the suite's lists into an apt state of its own; returns their directory."""
    main, security = _archive("Debian"), _archive("Debian-Security")
    if main is None:  # without downloaded lists apt does not know which entry is Debian's
        _stream(["apt-get", "-q", "update"], {}, log, "apt cannot fetch its package lists")
        main, security = _archive("Debian"), _archive("Debian-Security")
    if main is None:
        raise Unavailable("no Debian archive is configured in apt on this machine")
    lines = [f"deb [signed-by={_KEYRING}] {main} {suite} main"]
    if suite not in _NO_UPDATES:
        lines.append(f"deb [signed-by={_KEYRING}] {main} {suite}-updates main")
        if security is not None:
            lines.append(f"deb [signed-by={_KEYRING}] {security} {suite}-security main")
        else:
            log("note: apt has no Debian-Security entry, so the image gets no security updates")
    lists = os.path.join(scratch, "lists")
    sources = os.path.join(scratch, "sources.list")
    with storage_errors("preparing a Debian build"):
        os.makedirs(os.path.join(lists, "partial"))
        os.makedirs(os.path.join(scratch, "cache", "archives", "partial"))
        with open(sources, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    settings = {
        "Dir::State::lists": lists,
        "Dir::Cache": os.path.join(scratch, "cache"),
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Sandbox::User": "root",
    }
    options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
    _stream(["apt-get", "-q", *options, "update"], {}, log, f"cannot fetch the lists of {suite}")
    return lists


def _archive(label: str) -> str | None:
    """Returns the address of the configured archive with that label."""
    text = _run(
        ["apt-get", "indextargets", "--format", "$(LABEL)|$(REPO_URI)", "Created-By: Packages"]
    )
    for line in text.splitlines():
        found, _, uri = line.partition("|")
        if found == label:
            return uri
    return None


def _archive_epoch(lists: str) -> int:
    """Returns the date of the newest Release file: no file of a package is newer."""
    dates = []
    for name in os.listdir(lists):
        if name.endswith("Release"):
            with open(os.path.join(lists, name), encoding="utf-8", errors="replace") as file:
                date = next((line for line in file if line.startswith("Date: ")), None)
            if date:
                dates.append(int(parsedate_to_datetime(date[6:].strip()).timestamp()))
    if not dates:
        raise Unavailable("the package lists hold no Release file with a date")
    return max(dates)


def _host_apt_settings() -> list[str]:
    """Returns how this machine reaches archives (proxy, certificates); they leave with the build."""
    text = _run(["apt-config", "dump", "--format", '%F "%v";%n'])
    return [line for line in text.splitlines() if _HOST_SETTINGS.match(line)]


def _run(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{argv[0]} cannot be run: {error}") from error
    return done.stdout.decode("utf-8", "replace")


def _stream(argv: Sequence[str], environment: dict[str, str], log: Log, failure: str) -> None:
    """Runs a program with its lines to `log`; the last ones go into the Unavailable it raises."""
    clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", **environment}
    tail: deque[str] = deque(maxlen=15)
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=clean,
    )
    killer = threading.Timer(_TIME_LIMIT_S, process.kill)
    killer.start()
    output = cast("IO[bytes]", process.stdout)
    try:
        for raw in output:
            line = raw.decode("utf-8", "replace").strip()
            if line:
                tail.append(line)
                log(line)
        status = process.wait()
    finally:
        killer.cancel()
        process.kill()
        process.wait()
        output.close()
    if status != 0:
        said = "; ".join(tail)
        if "No space left on device" in said:
            raise StorageFailed(f"{failure}: {said}")
        raise Unavailable(f"{failure} (status {status}): {said}")
