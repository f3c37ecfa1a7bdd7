"""Where the native pair is: in the installed package, else in the checkout's release build."""

from __future__ import annotations

import os
from pathlib import Path

import skerry
from skerry.errors import Unavailable


def candidates(name: str) -> tuple[Path, ...]:
    """Returns the places to look at."""
    package = Path(skerry.__file__).parent
    return (package / "_native" / name, package.parents[1] / "native/build/release" / name)


def find(name: str) -> Path:
    """Returns the binary's path; in a checkout that has both, the one that was built last.

    Unavailable says what to run if there is none.
    """
    places = candidates(name)
    found = [place for place in places if os.access(place, os.X_OK)]
    if found:
        return max(found, key=lambda place: place.stat().st_mtime)
    looked = " and ".join(str(place.parent) for place in places)
    raise Unavailable(
        f"{name} was not found in {looked}: in a checkout run `make -C native` "
        "(needs musl-gcc, from the package musl-tools); elsewhere install a wheel of skerry"
    )
