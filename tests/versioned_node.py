"""`skerry`, as another release of it: versioned_node.py DIRECTORY VERSIONFILE WORD..."""

from __future__ import annotations

import sys
from pathlib import Path

from skerry.backends.shared import binaries
from skerry.cli.main import main
from skerry.node import build

place, version = Path(sys.argv.pop(1)), Path(sys.argv.pop(1)).read_text()
binaries.candidates = lambda name: (place / name,)
build._version = lambda: version
sys.exit(main())
