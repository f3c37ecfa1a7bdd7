"""A real repository with a real bug, from source archives on PyPI: one of the example tasks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import NamedTuple

from interop.tools import ROOT
from skerry.spec.task import TaskSpec
from skerry.worker import Downloads, load_tasks
from skerry.worker.archives import source_files
from skerry.worker.downloads import wanted_of


class Repository(NamedTuple):
    """Two directories: with the bug, and of the release that mended it, where the hidden tests are."""

    spec: TaskSpec
    bug: Path
    fix: Path


def repository(task: str, place: Path) -> Repository:
    """Unpacks both archives of an example task below `place`; they are fetched once a machine."""
    (spec,) = load_tasks([str(ROOT / "examples" / "tasks" / task)])
    downloads = Downloads(Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry")), os.environ)
    package = spec.package
    asyncio.run(downloads.fetch(wanted_of([spec], ())))
    for name, release in (("bug", package.bug), ("fix", package.fix)):
        for path, content in source_files(downloads.read(release), release.file).items():
            target = place / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    return Repository(spec, place / "bug", place / "fix")
