"""The routes of jobs."""

from __future__ import annotations

from typing import Final

from skerry.spec.job import JobInfo, JobSpec
from skerry.wire.http import STREAM
from skerry.wire.jobs import JobChange, JobQueue
from skerry.wire.route import FLAG, JOB, STRING, Param, Route

JOB_ROUTES: Final[tuple[Route, ...]] = (
    Route("POST", "/v1/jobs", "Makes a job, or finds it by its id.", JobSpec, JobInfo),
    Route(
        "GET",
        "/v1/jobs",
        "Lists jobs, oldest first.",
        answer=list[JobInfo],
        params=(
            Param("label", {"type": "array", "items": STRING}, "name=value; all must match"),
            Param("all", FLAG, "1: ended ones too"),
        ),
    ),
    Route("GET", JOB, "How a job stands.", answer=JobInfo),
    Route("PATCH", JOB, "Changes its lease, limits and labels.", JobChange, JobInfo),
    Route("DELETE", JOB, "Ends it: destroys its sandboxes and frees its id.", answer=JobInfo),
    Route("POST", f"{JOB}/heartbeat", "Renews its lease.", answer=JobInfo),
    Route("POST", f"{JOB}/pause", "Pauses all; a stream of JobStep.", answer=STREAM),
    Route("DELETE", f"{JOB}/pause", "Ends a pause of all where it is.", answer=JobInfo),
    Route("POST", f"{JOB}/resume", "Resumes what was paused so.", answer=STREAM),
    Route("DELETE", f"{JOB}/resume", "Ends a resume of all where it is.", answer=JobInfo),
    Route("GET", f"{JOB}/queue", "Who of it waits for room, and how long.", answer=JobQueue),
)
