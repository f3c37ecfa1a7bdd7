"""The two honest scripts: the real fix, which must earn 1, and nothing, which must earn 0."""

from __future__ import annotations

from skerry.errors import SandboxFailed
from skerry.worker.session import Needs, Session


class Gold:
    """Applies the difference between the two releases, as the maintainers made it."""

    name = "gold"
    needs = Needs()

    def variant(self, task_index: int, rollout_index: int) -> str:
        """Returns no variant."""
        del task_index, rollout_index
        return ""

    async def act(self, session: Session, variant: str) -> None:
        """Patches the workdir; raises SandboxFailed if the patch does not apply."""
        del variant
        result = await session.run(
            ["patch", "-p1", "--no-backup-if-mismatch"], stdin=session.environment.patch
        )
        if not result.ok:
            raise SandboxFailed(f"the real fix does not apply: {result.text[-500:]}")


class Noop:
    """Looks around and changes nothing."""

    name = "noop"
    needs = Needs()

    def variant(self, task_index: int, rollout_index: int) -> str:
        """Returns no variant."""
        del task_index, rollout_index
        return ""

    async def act(self, session: Session, variant: str) -> None:
        """Lists the workdir."""
        del variant
        await session.run(["ls", "-la"])
