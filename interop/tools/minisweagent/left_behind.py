"""Ends with an agent at work: interrupted in a command, or without having cleaned up."""

import sys
from pathlib import Path

from minisweagent.environments import get_environment
from scripted_turns import sandboxed

label, how = sys.argv[1:]
environments = [get_environment(sandboxed(labels={"job": label})) for _ in range(2)]
assert environments[0].execute({"command": "echo up"})["output"] == "up\n"
if how == "interrupt":
    Path(f"/var/tmp/skerry-interop-{label}").touch()
    environments[1].execute({"command": "sleep 600"}, timeout=600)
