"""Downloads named files of one project with this machine's own pip (run by a throw-away user).

    fetch.py PROJECT TARGET_DIRECTORY FILE...

pip finds the links, with its own configuration, certificates and credentials; the files are then
read over pip's session. No metadata is prepared, so nothing of a package is ever run: `pip download`
would run the build code of a source archive. The caller checks the hashes.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import Any

BYTES_MAX = 64 << 20
_WHEEL = re.compile(r".+-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl")


def target_options(files: list[str]) -> list[str]:
    """Returns pip's options for the interpreter and platform that the wheels' names ask for."""
    options: list[str] = []
    for name in files:
        match = _WHEEL.fullmatch(name)
        if match is None or match["platform"] == "any":
            continue
        version = re.fullmatch(r"cp(\d)(\d+)", match["python"])
        if version is not None:
            options += ["--implementation", "cp", "--python-version", f"{version[1]}.{version[2]}"]
        for abi in match["abi"].split("."):
            options += ["--abi", abi]
        for platform in match["platform"].split("."):
            options += ["--platform", platform]
        break
    return options


def find_links(command: Any, options: Any, project: str) -> tuple[Any, dict[str, Any]]:
    """Returns pip's session, and its links to the project's files by file name."""
    from pip._internal.cli.cmdoptions import make_target_python

    session = command.get_default_session(options)
    finder = command._build_package_finder(  # noqa: SLF001 - pip has no public interface
        options=options, session=session, target_python=make_target_python(options)
    )
    found = finder.find_all_candidates(project)
    return session, {candidate.link.filename: candidate.link for candidate in found}


def save(session: Any, link: Any, path: str) -> None:
    """Writes what a link leads to into a new file."""
    # Source archives are gzip files: they must come as they are.
    answer = session.get(
        link.url_without_fragment, headers={"Accept-Encoding": "identity"}, stream=True
    )
    answer.raise_for_status()
    written = 0
    with open(path, "xb") as file:
        while chunk := answer.raw.read(256 * 1024):
            written += len(chunk)
            if written > BYTES_MAX:
                sys.exit(f"{link.filename} is larger than {BYTES_MAX} bytes")
            file.write(chunk)


def main(project: str, target: str, *files: str) -> None:
    """Downloads the files, or ends with a message."""
    from pip._internal.commands.download import DownloadCommand

    logging.disable(logging.WARNING)  # of places that this machine's configuration has in vain
    command = DownloadCommand("download", "")
    options, _ = command.parse_args(["--quiet", "--no-cache-dir", *target_options(list(files))])
    with command.main_context():
        session, links = find_links(command, options, project)
        for name in files:
            if name not in links:
                sys.exit(f"this machine's package index has no {name}")
            save(session, links[name], os.path.join(target, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
