"""The async face of the SDK; the package itself is the sync one."""

from skerry.sdk.client import AsyncClient as Client
from skerry.sdk.client import connect
from skerry.sdk.command import AsyncCommandHandle as CommandHandle
from skerry.sdk.commits import AsyncCommitHandle as CommitHandle
from skerry.sdk.files import AsyncFiles as Files
from skerry.sdk.forward import ReverseForward
from skerry.sdk.functions import AsyncFunctions as Functions
from skerry.sdk.functions import CallOutcome
from skerry.sdk.images import AsyncImages as Images
from skerry.sdk.jobs import AsyncJob as Job
from skerry.sdk.jobs import AsyncJobs as Jobs
from skerry.sdk.rollout import AsyncRollout as Rollout
from skerry.sdk.sandbox import AsyncSandbox as Sandbox
from skerry.sdk.sandboxes import AsyncSandboxes as Sandboxes
from skerry.sdk.session import AsyncSession as Session
from skerry.sdk.stream import LiveCommand
from skerry.sdk.trajectories import AsyncTrajectories as Trajectories
from skerry.spec.command import RunResult, Terminal
from skerry.spec.function_result import CallResult
from skerry.spec.job import JobInfo
from skerry.spec.sandbox import SandboxInfo, State, Usage

__all__ = [
    "CallOutcome",
    "CallResult",
    "Client",
    "CommandHandle",
    "CommitHandle",
    "Files",
    "Functions",
    "Images",
    "Job",
    "JobInfo",
    "Jobs",
    "LiveCommand",
    "ReverseForward",
    "Rollout",
    "RunResult",
    "Sandbox",
    "SandboxInfo",
    "Sandboxes",
    "Session",
    "State",
    "Terminal",
    "Trajectories",
    "Usage",
    "connect",
]
