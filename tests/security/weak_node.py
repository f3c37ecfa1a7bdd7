"""`skerry`, with the native pair of a given directory: weak_node.py DIRECTORY WORD..."""

from __future__ import annotations

import sys
from pathlib import Path

from skerry.backends.shared import binaries
from skerry.cli.main import main

place = Path(sys.argv.pop(1))
binaries.candidates = lambda name: (place / name,)
sys.exit(main())
