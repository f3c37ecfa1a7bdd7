"""The participant that owns rollouts: environments, policies, grading, jobs.

What the command line and other programs call stands here; `Client` is anything like the SDK's.
"""

from __future__ import annotations

from skerry.trajectory.rollouts.reader import (
    list_jobs,
    list_rollouts,
    show_rollout,
    verify_job,
)
from skerry.worker.downloads import Downloads
from skerry.worker.job import run_job
from skerry.worker.policies import SCRIPTED, policy_named
from skerry.worker.scaffold import new_task
from skerry.worker.tasks import check_task, load_tasks

__all__ = [
    "SCRIPTED",
    "Downloads",
    "check_task",
    "list_jobs",
    "list_rollouts",
    "load_tasks",
    "new_task",
    "policy_named",
    "run_job",
    "show_rollout",
    "verify_job",
]
