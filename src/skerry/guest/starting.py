"""START as an agent understands it: the frames of an operation, for one of this version."""

from __future__ import annotations

from typing import Final

from skerry.errors import InvalidRequest
from skerry.guest.api import Kind, Operation
from skerry.wire import guest, guest_cells
from skerry.wire.frames import HEADER_BYTES, PAYLOAD_BYTES_MAX
from skerry.wire.starts import encode_start, takes_cells, takes_long, takes_merge

FRAME_BYTES_MAX: Final = HEADER_BYTES + PAYLOAD_BYTES_MAX


def start_frames(
    operation: Operation, generation: int, agent_version: str, *, result: bool = False
) -> bytes:
    """Returns what starts it; InvalidRequest if it is too long, or more than the agent knows."""
    rows, cols = operation.terminal or (None, None)
    message = guest.Start(
        op_id=operation.op_id,
        kind=operation.kind,
        argv=operation.argv,
        env=operation.env,
        cwd=operation.cwd,
        user=operation.user,
        timeout_ms=operation.timeout_ms or None,
        no_output_ms=operation.no_output_ms or None,
        script=operation.script,
        stdin=operation.stdin,
        merge=operation.merge or None,
        rows=rows,
        cols=cols,
        cell=operation.cell,
        cpu_ms=operation.cpu_ms or None,
        rlimits=_rlimits(operation),
        result=result or None,
    )
    frames = encode_start(message, generation, operation.handle)
    new = operation.no_output_ms or operation.script or len(frames) > FRAME_BYTES_MAX
    new = new or operation.kind is Kind.SESSION
    cells = operation.cell is not None or operation.cpu_ms or operation.rlimits or result
    if (cells or operation.kind > Kind.SESSION) and not takes_cells(agent_version):
        raise InvalidRequest(
            f"the container was made by an earlier version (agent {agent_version}), which has no cells"
        )
    if new and not takes_long(agent_version):
        raise InvalidRequest(
            f"the sandbox was made by an earlier version (agent {agent_version}), which has "
            "no sessions, no long commands and no no-output timeout"
        )
    if operation.merge and not takes_merge(agent_version):
        raise InvalidRequest(
            f"the sandbox was made by an earlier version (agent {agent_version}), which cannot "
            "merge stderr into stdout"
        )
    return frames


def _rlimits(operation: Operation) -> bytes | None:
    limits = operation.rlimits
    if limits is None:
        return None
    return guest_cells.Rlimits(
        fsize=limits.fsize, nofile=limits.nofile, stack=limits.stack, core=limits.core
    ).payload()
