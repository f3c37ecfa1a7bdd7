"""The routes of trajectories: what was done to sandboxes, living ones and others."""

from __future__ import annotations

from typing import Final

from skerry.spec.trajectory import (
    EVENTS_PAGE_MAX,
    TRAJECTORIES_PAGE_MAX,
    EventPage,
    TrajectoryCheck,
    TrajectoryPage,
)
from skerry.wire.route import BYTES, STRING, Param, Route, integer

ONE: Final = "/v1/trajectories/{id}"

TRAJECTORY_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/trajectories",
        "Trajectories of this node and of all that is in its layer store, oldest first.",
        answer=TrajectoryPage,
        params=(
            Param("rollout", STRING, "only those with this rollout key"),
            Param("job", STRING, "only those of this job"),
            Param("sandbox", STRING, "only this sandbox's"),
            Param("limit", integer(1, TRAJECTORIES_PAGE_MAX), "at most that many; 100"),
            Param("cursor", STRING, "of the page before"),
        ),
    ),
    Route(
        "GET",
        f"{ONE}/events",
        "What was done to a sandbox, in order; it may be gone for long.",
        answer=EventPage,
        params=(
            Param("from", integer(0), "ordinal of the first event; 0"),
            Param("limit", integer(1, EVENTS_PAGE_MAX), "at most that many; 1000"),
        ),
    ),
    Route(
        "GET",
        f"{ONE}/verify",
        "Reads all that is recorded of a sandbox again and says what is wrong with it.",
        answer=TrajectoryCheck,
    ),
    Route(
        "GET",
        "/v1/trajectories/blobs/{digest}",
        "A content that is kept by its sha256; breaks off if it was changed.",
        answer=BYTES,
    ),
)
