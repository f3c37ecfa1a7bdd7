"""A server of SandboxFusion's `/run_code`: its own client and verl's judge programs by function calls.

    python -m skerry.compat.sandboxfusion --image debian:12 --port 8080

and then `SANDBOX_FUSION_ENDPOINT` is the `url` that it prints. SandboxFusion itself is not needed here:
what is spoken is its wire.
"""

from __future__ import annotations

from skerry.compat.sandboxfusion.app import build_app
from skerry.compat.sandboxfusion.languages import Defaults

__all__ = ["Defaults", "build_app"]
