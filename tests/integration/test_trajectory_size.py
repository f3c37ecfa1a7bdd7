"""A sandbox with 100,000 operations is read in the memory of one with few."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trajectory_stories import NODE, Story

EVENTS = 100_000
BYTES_MAX = 48 << 20

READER = """
import resource, sys
from skerry.trajectory.reading.archive import Archive, Wanted
from skerry.trajectory.reading.checking import check_sandbox
from skerry.trajectory.reading.sources import Directory
archive = Archive(Directory(sys.argv[1], sys.argv[2]), None, lambda: 0.0)
(info,) = archive.select(Wanted(), 10).items
count = sum(1 for _ in archive.events(info.sandbox))
assert check_sandbox(archive, info.sandbox).sound
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def written(directory: str, commands: int) -> str:
    story = Story(directory, segment_bytes=32 << 20)
    box = story.create(1)
    waiting: bytes | None = None
    for number in range(commands):
        op = story.ask(box, "echo", str(number))
        if number % 1000 == 0:  # some run in the background for long
            if waiting is not None:
                story.answer(box, waiting)
            waiting = op
        else:
            story.answer(box, op, stdout=b"x" * 200)
    story.close()
    return directory


def read(directory: str) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, "-c", READER, directory, NODE], capture_output=True, check=True
    )
    count, peak = map(int, done.stdout.split())
    return count, peak


@pytest.mark.slow
def test_memory_of_a_reader_does_not_grow_with_the_trajectory(tmp_path):
    few, few_peak = read(written(str(tmp_path / "few"), 1000))
    many, many_peak = read(written(str(tmp_path / "many"), EVENTS))
    assert (few, many) == (1001, EVENTS + 1)
    # Places of its records, a window and the pieces that are kept; the log itself is much larger.
    assert many_peak - few_peak < BYTES_MAX, (few_peak, many_peak)
