"""Ends with a backend open: interrupted in a command, or without having closed it."""

import os
import sys
from pathlib import Path

from skerry.compat.langchain import SkerryBackend

label, how = sys.argv[1:]
backend = SkerryBackend.create(image=os.environ["INTEROP_IMAGE"], labels={"job": label})
assert backend.execute("echo up").output == "up\n"
if how == "interrupt":
    Path(f"/var/tmp/skerry-interop-{label}").touch()
    backend.execute("sleep 600")
