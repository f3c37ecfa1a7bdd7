"""The node dies under an evaluation, and does not come back; or the evaluation does."""

from __future__ import annotations

import threading
import time

from evaluations import ended, evaluation, log_of, place, theirs, wait_for

from interop.looking import until
from interop.lost import TOLD_WITHIN_S, other_node

__all__ = ["place"]  # a fixture
LEASE_S = 4


def test_a_node_that_is_gone_is_told_once_and_within_a_minute(place) -> None:
    """Each of four samples has its sandbox: none of them is waited for on its own."""
    with other_node() as node:
        with (place / "skerry.toml").open("a") as file:
            file.write(f'url = "{node.url}"\n')
        killer = threading.Thread(target=node.kill_under, args=("sleep 1000", 4))
        killer.start()
        process = evaluation(
            place, "-T", "line=sleep 1000", "-T", "samples=4", "--no-fail-on-error"
        )
        said = ended(process)
        assert time.monotonic() - node.killed_at < TOLD_WITHIN_S
        killer.join()
    log = log_of(place)
    assert [("Unavailable" in sample.error.traceback) for sample in log.samples] == [True] * 4, said
    assert all("cannot reach the node" in sample.error.message for sample in log.samples)
    assert said.count("4 sandboxes could not be removed") == 1, said


def test_what_a_killed_evaluation_leaves_ends_by_itself_and_not_before(node, place) -> None:
    """While it lives they do, through several terms of its lease."""
    with (place / "skerry.toml").open("a") as file:
        file.write(f"lease = {LEASE_S}\n")
    process = evaluation(place, "-T", "line=sleep 1000", "-T", "samples=2")
    wait_for(node, 2, 2, process)
    ids = [info.id for info in theirs(node)]
    time.sleep(3 * LEASE_S)
    assert process.poll() is None
    assert [info.id for info in theirs(node) if info.running_commands] == ids
    process.kill()
    ended(process)
    until(
        lambda: all(info.state in ("stopped", "failed") for info in theirs(node)),
        "the sandboxes have ended",
    )
    node.sandboxes.destroy_many(ids)


def test_a_task_that_says_how_long_has_no_lease(node, place) -> None:
    with (place / "skerry.toml").open("a") as file:
        file.write("idle_timeout = 500\n")
    process = evaluation(place, "-T", "line=true", "-T", "samples=1", "--no-sandbox-cleanup")
    ended(process)
    (info,) = theirs(node)
    assert (info.spec.ttl_s, info.spec.idle_timeout_s) == (None, 500)
    node.sandboxes.destroy_many([info.id])


def test_sandboxes_that_are_to_stay_have_no_end(node, place) -> None:
    process = evaluation(place, "-T", "line=true", "-T", "samples=1", "--no-sandbox-cleanup")
    ended(process)
    (info,) = theirs(node)
    assert (info.spec.ttl_s, info.spec.idle_timeout_s) == (None, None)
    node.sandboxes.destroy_many([info.id])
