"""Large images over a slow store: read on demand beside downloaded and unpacked whole.

Usage: python bench/layers.py [--quick] [--json] [--out FILE]

The images are made once, of real Debian and PyPI packages with their bytecode (`layers_images.py`),
and kept below SKERRY_CACHE in the directory of a real S3 server (SeaweedFS). The product is a node whose
layer store is that server, behind a link of 200 MB/s and 2 ms in a process of its own. The peer does as
`docker pull` does: one compressed archive of each layer (zstd -3) comes over the same link from the
same server, a few ranges ahead of `tar`, which unpacks it as it comes; the base once a node. The
command runs there under `bwrap` with an overlay. Both begin with nothing on this disk; the page
cache of what they wrote is theirs to use. Parties take turns.

Cold start, one image of more than 2 GB (`cold_*`): from just before the sandbox is asked for (the peer:
before the download) until the result of a Python test run (pytest over a module of sympy's tests) is
there.
- `cold_speedup_vs_eager`: the peer's time by ours, medians. `_prefetch`: the same with the profile that
  a first run left (`lazy.profile`), on a node that has nothing else.
- The floor of `cold_s`: the same run in a new sandbox when the node has all of it.
- `cold_create_s`: of that, until the sandbox is there. `cold_requests`: to the store;
  `cold_store_cpu_s`: what it took for them, on the same processors.
- `fetched_fraction`: bytes of bodies that came over the link, by the content of the image.
- `cold_write_ratio`: bytes that the peer's trees take on disk, by those of our cache.
- `cold_s_20ms`: as `cold_s`, over a link of 20 ms.

Burst (`burst_*`): 64 sandboxes over 8 images at once, as a job starts them, each image for as many
sandboxes as the paper's fan-out gives (median 3, at most 28). An image is the base, the large layer of
the cold start as a stack that all of a team share, and a layer of its own: the paper's images have
gigabytes, too. Every sandbox runs a test module, or uses its package (`layers_images.py`). From just
before the first is asked for until the last result. The peer fetches and unpacks each layer once a
node, 4 at a time. Both run at most 16 at once.
- `burst_speedup_vs_eager`, `burst_write_ratio`, `burst_fetched_ratio`. `_prefetch`: with the profiles
  that a first run of each image left, on a node that has nothing else.
- The floor of `burst_s`: the same burst again on that node, which has all of it. The peer's time by it
  is the most that `burst_speedup_vs_eager` can come to.
- `burst_busy_share`: of the processors, by whomever. At 1 the jobs themselves are the time.

Composition (`compose_*`): 16 sandboxes (8 with --quick) at once, each the base with a workspace
(scikit-learn and what it needs) and a toolkit (two type checkers, one on its own Node.js, a linter, a
language server), run the 20 tool calls of `layers_compose.py`: an agent who looks, reads, edits, checks
and tests. The peer's sandboxes unpack workspace and toolkit as .tar.gz into themselves first (the
paper's other way); the archives come over the same link, once a node. From just before the first create
to the last end.
- `compose_speedup_vs_tar`: the peer's time by ours.

Warm (`warm_*`): a file of 256 MiB of a verified layer, read by `cat` inside, once its chunks are in the
node's cache. `warm_read_ratio_to_local`: MiB/s with the page cache filled, by those of the same file on
a local directory's layer. `lazy_read_mib_s`: the first read after the page cache was dropped, through
FUSE from the cache on disk; beside it the same of the local layer.

Catalogue (`catalogue_*`): 103 toolkits and 1,000 workspaces, small ones, in one store. Listing them; a
create with a pair drawn at random, whose layers are mounted for it, beside one of the base alone; one
toolkit made anew, which touches nothing else; what the store takes, beside an image for each pair.

Commits and forks (`commit_*`, `fork8_*`): see `commit.py`, which runs alone too.
"""

import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import commit
from harness import RawLog
from layers_cold import burst, cold, far_away
from layers_compose import catalogue, composed
from layers_images import Bench, server
from layers_warm import warm
from product import OwnNode
from report import Result, run

RATE = 200e6
LATENCY_S = 0.002


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    cold_rounds: int
    far_rounds: int
    burst: bool
    composed: int


QUICK, FULL = Plan(1, 1, False, 8), Plan(3, 3, True, 16)


async def measure(result: Result, quick: bool) -> None:
    """Take all figures."""
    from skerry.testing.link import link

    plan = QUICK if quick else FULL
    with ExitStack() as stack:
        s3 = stack.enter_context(server())
        scratch = Path(tempfile.mkdtemp(prefix="skerry-layers-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        raw = stack.enter_context(RawLog("layers"))
        async with OwnNode() as node:
            bench = Bench(s3, node, scratch)
            await bench.prepare(burst=plan.burst)
            with link(s3.port, rate=RATE, latency_s=LATENCY_S) as far:
                await cold(bench, far, result, raw, plan.cold_rounds)
                if plan.burst:
                    await burst(bench, far, result, raw)
                await composed(bench, far, result, raw, plan.composed)
                await warm(bench, far, result, raw)
                await far_away(bench, far, result, raw, plan.far_rounds)
        if plan.burst:
            await catalogue(result, raw)
        result.notes.append("the peer runs its commands under bwrap, without limits or quota")
    await commit.measure(result, quick)


if __name__ == "__main__":
    sys.exit(run("layers", __doc__ or "", measure))
