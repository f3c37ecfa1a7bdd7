"""A server of SWE-ReX's remote runtime: its own client works in a sandbox of Skerry's.

    python -m skerry.compat.swerex --image debian:12 --port 8000

and then `RemoteDeployment(host="http://127.0.0.1", port=8000, auth_token=...)`. SWE-ReX itself is not
needed here: what is spoken is its wire.
"""

from __future__ import annotations

from skerry.compat.swerex.app import build_app
from skerry.compat.swerex.runtime import Runtime

__all__ = ["Runtime", "build_app"]
