"""Every Python example of README.md and docs/guide runs as it is written, on a real node."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from doc_blocks import ROOT, blocks, runs_here

pytestmark = pytest.mark.root
WITHIN_S = 120.0

# What the guide says stands for itself: `client` and `sb`, where an example does not make its own.
BEFORE = """
import skerry
client = skerry.connect()
sb = client.sandboxes.create(image="debian:12")
"""


@pytest.fixture(scope="module", autouse=True)
def tidy(live_node):
    """Removes what the examples keep; what only their clients held has ended with these."""
    yield

    async def remove():
        async with live_node.client() as client:
            await client.sandboxes.destroy_many([one.id for one in await client.sandboxes.list()])
            for layer in await client.images.list():
                if layer.name.startswith(("workspace/noted", "workspace/tool", "workspace/build-")):
                    await client.images.remove(layer.name)

    asyncio.run(remove())


@pytest.mark.parametrize(
    "block", list(filter(runs_here, blocks("python"))), ids=lambda block: block.name
)
def test_example_runs_as_written(live_node, tmp_path, block):
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "a.py").write_text("print('hi')\n")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    before = "" if "skerry.connect()" in block.text else BEFORE
    place = "\n" * (block.line - before.count("\n"))  # so that a traceback names the page's line
    example = tmp_path / block.page.name
    example.write_text(f"{before}{place}{block.text}")
    environment = {**os.environ, "SKERRY_URL": live_node.url, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, str(example)],
        check=False,
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
