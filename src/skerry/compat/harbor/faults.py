"""Whose fault a failure was, in Harbor's terms.

Harbor judges an exception by the name of its class (`harbor.models.trial.error_policy`), and takes a
name that it does not know for a failure of the agent: it grades the trial, and a reward of 0 counts. It
also swallows what fails while logs and artifacts are collected. So a fault of the platform is raised
under a name that is never graded, and remembered: nothing of that trial works afterwards, in the
verifier's own sandbox neither.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

from skerry.compat.outcome import is_of_platform
from skerry.errors import SkerryError


class RuntimeRequestError(RuntimeError):
    """Skerry or the machines under it are at fault.

    A trial that ends with it is not graded, has no valid reward, and may be run again: Harbor knows
    this name. The cause is the error of Skerry's.
    """


# By the identity of the trial's paths: one object, which all environments of a trial share. A trial that
# is run again has another, though it is equal.
_FAULTS: dict[int, str] = {}


class Trial:
    """The faults of one trial."""

    def __init__(self, paths: Any) -> None:
        self._paths = paths

    def check(self) -> None:
        """Raises RuntimeRequestError if the platform failed in this trial before."""
        if told := _FAULTS.get(id(self._paths)):
            raise RuntimeRequestError(told)

    @contextlib.contextmanager
    def judged(self, what: str) -> Iterator[None]:
        """What fails in the block because of the platform is raised as such, and remembered."""
        self.check()
        try:
            yield
        except SkerryError as error:
            if not is_of_platform(error):
                raise
            told = f"{what}: {type(error).__name__}: {error}"
            self.failed(told)
            raise RuntimeRequestError(told) from error

    def failed(self, told: str) -> None:
        """From now on nothing works in this trial."""
        key = id(self._paths)
        if key not in _FAULTS:
            _FAULTS[key] = f"the platform failed earlier in this trial: {told}"
            weakref.finalize(self._paths, _FAULTS.pop, key, None)
