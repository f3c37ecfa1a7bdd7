"""Trajectories in a bucket: read and checked without a node, over a link with faults, and while away."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from s3_place import s3_options
from skerry.errors import StorageFailed
from skerry.images.objects.s3 import S3Objects
from skerry.spec.trajectory import FindingKind
from skerry.testing.link import Fault
from skerry.trajectory.format.index import encode_index, index_of
from skerry.trajectory.format.segment import read_segment, segment_numbers
from skerry.trajectory.format.store import BLOBS, index_key, segment_key
from skerry.trajectory.reading.archive import Archive, Wanted
from skerry.trajectory.reading.checking import check_log, check_sandbox
from trajectory_stories import NODE, Story


@pytest.fixture
def objects(s3_server, s3_link, tmp_path: Path) -> S3Objects:
    options = s3_options(s3_server, tmp_path, endpoint=s3_link.endpoint, timeout_s=2, patience_s=8)
    return S3Objects(f"s3://{s3_server.bucket}/{tmp_path.name}", options)


@pytest.fixture
def boxes(tmp_path: Path, objects: S3Objects):
    """Two sandboxes over several segments, shipped to the bucket."""
    story = Story(str(tmp_path / "journal"), segment_bytes=64 << 10)
    made = [story.create(number, rollout=f"r-{number}") for number in range(2)]
    for number in range(200):
        for box in made:
            story.run(box, "echo", str(number), stdout=b"x" * 300)
    content = story.blob(str(tmp_path / "blobs"), b"long" * 5000)
    objects.put_bytes(BLOBS + content["blob"], b"long" * 5000, replace=True)
    asked = {"path": "/a", "content": content}
    story.journal.append(made[0], "did", {"action": "file.write", "request": asked, "result": {}})
    for box in made:
        story.end(box)
    for number in segment_numbers(story.directory):
        data = read_segment(story.directory, number)
        index = index_of(NODE, number, data)
        objects.put_bytes(segment_key(NODE, number), data[: index.size], replace=True)
        objects.put_bytes(index_key(NODE, number), encode_index(index), replace=True)
    story.close()
    return made


def archive(objects: S3Objects) -> Archive:
    return Archive(None, objects, time.monotonic)


def test_trajectories_are_read_and_checked_from_the_bucket_over_a_bad_link(boxes, objects, s3_link):
    s3_link.faults(Fault("status", times=3, share=0.2), Fault("cut", times=2, share=0.1))
    found = archive(objects)
    assert [info.sandbox for info in found.select(Wanted(), 10).items] == boxes
    assert len(list(found.events(boxes[0]))) == 203
    (log,) = found.logs()
    for check in (check_log(found, log), check_sandbox(found, boxes[0])):
        assert (check.findings, check.blobs) == ((), 1)


def test_what_was_taken_from_the_bucket_is_named(boxes, objects):
    objects.delete(segment_key(NODE, 2))
    for key, _ in list(objects.list(BLOBS)):
        objects.delete(key)
    found = archive(objects)
    kinds = {finding.kind for finding in check_sandbox(found, boxes[0]).findings}
    assert {FindingKind.TRUNCATED, FindingKind.MISSING_BLOB} <= kinds
    assert 0 < found.info(boxes[0]).events < 203


def test_bucket_that_is_away_is_said_to_be_and_read_when_it_is_back(boxes, objects, s3_link):
    found = archive(objects)
    s3_link.faults(Fault("cut"))
    with pytest.raises(StorageFailed):
        found.info(boxes[0])
    s3_link.faults()
    assert found.info(boxes[0]).events == 203


def test_command_line_reads_a_bucket_with_a_nodes_configuration(boxes, objects, tmp_path):
    given = objects.options
    words = {"endpoint": given.endpoint, "access_key": given.access_key}
    words["secret_key"] = given.secret_key
    lines = [f'store = "{objects.where}"', "[s3]"]
    config = tmp_path / "node.toml"
    config.write_text("\n".join([*lines, *(f'{name} = "{one}"' for name, one in words.items())]))
    argv = [sys.executable, "-m", "skerry.cli.main", "trace"]
    for place in (["--config", str(config)], ["--config", str(config), "--store", objects.where]):
        done = subprocess.run([*argv, "verify", "--json", *place], capture_output=True, check=True)
        (check,) = [json.loads(line) for line in done.stdout.splitlines()]
        assert (check["sound"], check["node"]) == (True, NODE)
    done = subprocess.run([*argv, "stats", "--json", *place], capture_output=True, check=True)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["rollout"], one["commands"]) for one in told] == [("r-0", 200), ("r-1", 200)]
