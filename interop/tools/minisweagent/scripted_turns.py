"""What a scripted model does: commands, one a turn; and the configuration that says so."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

PLACE = "/testbed"
ENVIRONMENT = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
}
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"
WRONG = "sed -i 's/^ /&/' src/semver/version.py; git diff -- src > patch.txt; wc -c patch.txt"
TRY = """cat > /tmp/try.py <<'END'
from semver import Version
class Mine(Version):
    pass
assert type(Mine(1).replace(minor=2)) is Mine
END
PYTHONPATH=src python3 /tmp/try.py"""
# What a model would do about semver 3.0.1: see the bug, find its place, mend it, try again.
MEND = (
    "ls && git log --oneline | head -3",
    TRY,
    "grep -n 'return Version(\\*\\*version)' src/semver/version.py",
    "sed -i 's/return Version(\\*\\*version)/return type(self)(**version)/' src/semver/version.py",
    "PYTHONPATH=src python3 /tmp/try.py && echo mended",
    "git diff -- src > patch.txt && cat patch.txt",
    SUBMIT,
)


def turns(*commands: str) -> list[dict]:
    return [
        {
            "role": "assistant",
            "content": f"I run {command.split()[0]}.",
            "extra": {"actions": [{"command": command}]},
        }
        for command in commands
    ]


def configuration(place: Path, *commands: str, environment: dict, **sections) -> Path:
    """Writes one: a model that says these commands, in this environment."""
    model = {
        "model_class": "minisweagent.models.test_models.DeterministicModel",
        "model_name": "scripted",
        "outputs": turns(*commands),
        "cost_per_call": 0.0,
    }
    target = place / "config.yaml"
    target.write_text(yaml.safe_dump({"model": model, "environment": environment, **sections}))
    return target


def sandboxed(**options) -> dict:
    return {
        "environment_class": "skerry.compat.minisweagent.SkerryEnvironment",
        "image": os.environ.get("INTEROP_IMAGE", ""),
        **options,
    }
