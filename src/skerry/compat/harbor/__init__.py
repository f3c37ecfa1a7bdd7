"""A Harbor environment: `harbor run -e skerry.compat.harbor:SkerryEnvironment`.

`options` are what a job may say (`--ek NAME=VALUE`), `network` maps Harbor's policies, `images` finds
and builds what a task runs in, `results` maps results of commands, `faults` tells Harbor whose fault
a failure was, and `environment` is the rest.
"""

from skerry.compat.harbor.environment import SkerryEnvironment
from skerry.compat.harbor.faults import RuntimeRequestError
from skerry.compat.harbor.options import SkerryOptions

__all__ = ["RuntimeRequestError", "SkerryEnvironment", "SkerryOptions"]
