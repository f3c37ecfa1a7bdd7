"""Finding the checkout that this installation runs from, if it does."""

from __future__ import annotations

from pathlib import Path

import skerry


def checkout() -> Path | None:
    """Returns the root of the checkout, or None in an installed package."""
    root = Path(skerry.__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "src/skerry").is_dir() else None
