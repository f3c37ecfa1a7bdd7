"""Inspect AI's sandboxes: `sandbox="skerry"` in a task, `--sandbox skerry` on its command line.

Inspect finds this by the entry point group `inspect_ai`. docs/guide/inspect.md says how it is used.
"""

from skerry.compat.inspect.config import SkerryConfig
from skerry.compat.inspect.provider import SkerrySandbox

__all__ = ["SkerryConfig", "SkerrySandbox"]
