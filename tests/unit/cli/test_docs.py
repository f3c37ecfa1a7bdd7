"""README.md and docs/guide: commands, options and links that exist, configuration that loads."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from doc_blocks import PAGES, Block, blocks, command_lines
from skerry.cli.app import Settings
from skerry.cli.buildfile import read
from skerry.cli.main import cli
from skerry.cli.node import node_config
from skerry.spec.task import TaskSpec

TASK = Path(__file__).parents[3] / "examples" / "tasks" / "humanize-4.12.3" / "task.toml"
_END = re.compile(r" -- |\s#|\s\||&&")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.mark.parametrize(("where", "line"), sorted(set(command_lines())))
def test_command_in_the_guide_exists_with_its_options(where: str, line: str) -> None:
    words = _words(_END.split(line)[0])
    command: click.Command = cli
    known = _options(command)
    for at, word in enumerate(words):
        if isinstance(command, click.Group) and not word.startswith("-"):
            if word.isupper() or word == "...":  # `skerry COMMAND --help`
                return
            value = at and words[at - 1] in known and not known[words[at - 1]].is_flag
            if value:
                continue
            found = command.get_command(click.Context(command), word)
            assert found is not None, f"{where}: {line}: no command {word}"
            command = found
            known = {**known, **_options(command)}
        elif re.fullmatch(r"--[a-z][a-z-]*|-[a-zA-Z]", word):
            assert word in known, f"{where}: {line}: no option {word}"


def test_control_of_the_command_check() -> None:
    for line in ("skerry frobnicate", "skerry run --frobnicate default", "skerry image frob"):
        with pytest.raises(AssertionError):
            test_command_in_the_guide_exists_with_its_options("here", line)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables in tables; whatever else the one above says replaces what is below."""
    inner = {
        name: merged(below[name], value)
        for name, value in above.items()
        if isinstance(value, dict) and isinstance(below.get(name), dict)
    }
    return below | above | inner


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: block.name)
def test_configuration_in_the_guide_is_taken(block: Block, tmp_path) -> None:
    if "skerry.toml" in block.text:
        (tmp_path / "skerry.toml").write_text(block.text)
        assert read(str(tmp_path / "skerry.toml"))
        return
    content = tomllib.loads(block.text)
    if content.keys() <= {field.name for field in msgspec.structs.fields(TaskSpec)}:
        task = tomllib.loads(TASK.read_text())
        msgspec.convert(merged(task, content), TaskSpec).check()  # a part of a task's file
        return
    settings = Settings(state_dir=str(tmp_path / "state"), run_dir=str(tmp_path / "run"))
    node_config(settings, content, given={}).check()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_guide_lead_somewhere(page) -> None:
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError:  # a quotation that goes on behind `--`
        words = line.split()
    flat = [word.strip("[],") for word in words[1:]]
    return [part for word in flat for part in word.split(",") if part]


def _options(command: click.Command) -> dict[str, click.Option]:
    found = {"--help": click.Option(["--help"], is_flag=True)}
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            found |= dict.fromkeys(parameter.opts + parameter.secondary_opts, parameter)
    return found
