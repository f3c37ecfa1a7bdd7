"""What a node keeps of lives that are over: nothing, counted in objects, not in bytes or time."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from typing import Any

from node_stand import FREE, Api

from skerry.node import trajectories
from skerry.node.config import Limits
from waiting import until

LIVES = 12
# One that was taken back leaves the heap with its deadline, or when there are more than 1,024.
BOUNDED = {"skerry.node.timers.Timer"}


def held() -> Counter[str]:
    """Counts our objects by type."""
    gc.collect()
    kinds = (type(one) for one in gc.get_objects())
    return Counter(
        f"{kind.__module__}.{kind.__qualname__}"
        for kind in kinds
        if str(kind.__module__).startswith("skerry.")
    )


async def life(api: Api, number: int) -> None:
    """One sandbox, and a job around it, from its beginning to its deletion."""
    job = await api.call("POST", "/v1/jobs", {"id": f"j{number}"})
    box = await api.create(job=job["id"], key=f"k{number}", labels={"n": str(number)})
    url = f"/v1/sandboxes/{box}"
    await api.call("POST", f"{url}/run?op={number:032x}", {"shell": "echo hi; exit 3"})
    await api.call("POST", f"{url}/run", {"argv": ["no-such-program"]})
    await api.call("POST", f"{url}/pause")
    await api.call("POST", f"{url}/resume")
    if number % 2 == 0:
        await api.call(
            "POST", f"{url}/stop"
        )  # what has ended is kept for a look, until it is deleted
    await api.call("GET", f"/v1/trajectories/{box}/events")
    await api.call("DELETE", url)
    await api.call("DELETE", f"/v1/jobs/{job['id']}")


async def test_nothing_is_kept_of_sandboxes_and_jobs_that_are_gone(
    stand: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(trajectories, "REST_S", 0.01)
    limits = Limits(**FREE, loop_lag_max_s=0)  # the machine may be busy
    async with stand.serving(limits=limits) as (node, api):
        for number in range(LIVES):
            await life(api, number)
        await until(lambda: not len(node.sandboxes))
        before = held()
        for number in range(LIVES, 4 * LIVES):
            await life(api, number)
        await until(lambda: not len(node.sandboxes))

        def grown() -> dict[str, int]:
            more = held() - before
            return {name: n for name, n in more.items() if n >= LIVES and name not in BOUNDED}

        with contextlib.suppress(AssertionError):
            await until(lambda: not grown())
        assert grown() == {}
