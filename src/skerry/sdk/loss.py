"""Since when a node does not answer, as all requests of one client have found.

A request waits for a node that went away, and the caller is told of the loss when that was in vain. What
is still asked then, to tidy up, must not wait as long again: ten sandboxes would cost ten minutes.
"""

from __future__ import annotations

RECONNECT_FOR_S = 60.0  # how long a repeatable request looks for a node that went away
HELD_S = 15.0  # a request that was lost after more than this had reached the node
_ENDS = ("/batch/delete", "/cancel", "/stop")


class Loss:
    """Times are those of a loop's clock."""

    def __init__(self) -> None:
        self._since: float | None = None

    def heard(self) -> None:
        """The node answers."""
        self._since = None

    def missed(self, now: float) -> None:
        """It did not."""
        if self._since is None:
            self._since = now

    def give_up_at(self, now: float, method: str, path: str) -> float:
        """Returns until when a request that begins now looks for it.

        Work has a minute of its own. What only frees something has the rest of the minute that began
        with the loss, and is tried once after that.
        """
        frees = method == "DELETE" or path.endswith(_ENDS)
        since = self._since if frees and self._since is not None else now
        return since + RECONNECT_FOR_S


def extended(give_up: float, began: float, now: float) -> float:
    """Returns until when to look for the node: the minute counts from the loss of a long request."""
    return now + RECONNECT_FOR_S if now - began > HELD_S else give_up
