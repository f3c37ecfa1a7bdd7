"""A recipe as it is written: its stages, each with an image that it begins with. Pure.

Several FROM make several stages; the last one is what is built, and the others are built if it takes
something of them, by `COPY --from=NAME` or `FROM NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from skerry.errors import InvalidRequest
from skerry.spec.layers import LayerKind, LayerName, parse_layer_name
from skerry.spec.recipe_text import Instruction, escape_of, expand, fault, instructions, words
from skerry.spec.reference import parse_reference

STAGES_MAX = 64
_STAGE_NAME = re.compile("[a-z][a-z0-9_.-]{0,127}")
TAKEN = (
    *("RUN", "COPY", "ENV", "ARG", "WORKDIR", "USER"),
    *("LABEL", "CMD", "ENTRYPOINT", "SHELL"),
)
# What Docker lets a build set without an ARG that names it.
FREE_ARGS = frozenset(
    name
    for word in ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
    for name in (word, word.lower())
)
SILENT = {"EXPOSE", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER"}
_REFUSED = {
    "ADD": "use COPY, and RUN for what is to be fetched or unpacked",
    "ONBUILD": "write the instruction into the recipe that needs it",
}


class Stage(msgspec.Struct, frozen=True):
    """A FROM and what follows it. `base` is an image, or an earlier stage by its name."""

    name: str | None  # of AS, in lower case
    base: str
    line: int
    instructions: tuple[Instruction, ...]


class Recipe(msgspec.Struct, frozen=True):
    """A recipe whose instructions are known to be well formed."""

    stages: tuple[Stage, ...]
    global_args: dict[str, str]
    asked: dict[str, str]  # what the caller gives ARGs
    escape: str = "\\"

    @property
    def base(self) -> str:
        """The image that the last stage begins with."""
        return self.stages[-1].base

    def earlier(self, name: str, than: int, *, numbers: bool = False) -> int | None:
        """Returns which stage before number `than` has the name; None: it is an image's."""
        for at in reversed(range(than)):
            if name.lower() == self.stages[at].name or (numbers and name == str(at)):
                return at
        return None


def parse_recipe(text: str, args: Mapping[str, str] | None = None) -> Recipe:
    """Reads a recipe; InvalidRequest names the first line that is wrong, and what would be right.

    `args` are values for the recipe's ARG instructions; one that no ARG names is refused.
    """
    asked = dict(args or {})
    escape = escape_of(text)
    values: dict[str, str] = {}
    declared = set(FREE_ARGS)
    stages: list[Stage] = []
    for one in instructions(text):
        if one.word == "ARG":
            declared.update(name for name, _ in args_of(one, escape))
        if one.word == "FROM":
            stages.append(_stage(one, values, escape, stages))
        elif stages:
            last = stages[-1]
            stages[-1] = replace(last, instructions=(*last.instructions, _known(one)))
        elif one.word == "ARG":
            for name, default in args_of(one, escape):
                values[name] = asked.get(name, expand(default or "", values, escape, one.line))
        else:
            raise fault(one.line, f"{one.word} before FROM: a recipe begins with FROM IMAGE")
    if not stages:
        raise InvalidRequest("recipe: it has no FROM: begin with FROM debian:12, say")
    unknown = sorted(set(asked) - declared)
    if unknown:
        raise InvalidRequest(f"recipe: no ARG names {', '.join(unknown)}", unknown=unknown)
    return Recipe(tuple(stages), values, asked, escape)


def _stage(
    one: Instruction, values: Mapping[str, str], escape: str, before: Sequence[Stage]
) -> Stage:
    parts = words(expand(one.rest, values, escape, one.line), escape, one.line)
    parts = tuple(part for part in parts if not part.startswith("--platform="))
    name = None
    if len(parts) == 3 and parts[1].upper() == "AS":
        name, parts = parts[2].lower(), parts[:1]
        if _STAGE_NAME.fullmatch(name) is None or any(name == other.name for other in before):
            raise fault(one.line, f"AS {name[:40]}: it is no name, or another stage has it")
    if len(parts) != 1:
        raise fault(one.line, "write FROM IMAGE")
    if len(before) == STAGES_MAX:
        raise fault(one.line, f"more than {STAGES_MAX} stages")
    if any(parts[0].lower() == other.name for other in before):
        return Stage(name, parts[0].lower(), one.line, ())
    return Stage(name, _base(parts[0], one.line), one.line, ())


def _base(text: str, line: int) -> str:
    try:
        name: LayerName = parse_layer_name(text, LayerKind.BASE)
    except InvalidRequest as error:
        try:
            parse_reference(text)
        except InvalidRequest:
            raise fault(line, error.message) from None
        return text
    if name.kind is not LayerKind.BASE:
        raise fault(line, f"FROM {text}: it must be a base, not a {name.kind}")
    return str(name)


def _known(one: Instruction) -> Instruction:
    if one.word in _REFUSED:
        raise fault(one.line, f"{one.word} is not taken: {_REFUSED[one.word]}")
    if one.word not in TAKEN and one.word not in SILENT:
        raise fault(one.line, f"{one.word[:40]} is no instruction; known: {', '.join(TAKEN)}")
    return one


def args_of(one: Instruction, escape: str) -> list[tuple[str, str | None]]:
    """Returns the names of an ARG with their defaults."""
    found = []
    for word in words(one.rest, escape, one.line):
        name, equals, default = word.partition("=")
        if not name.isidentifier():
            raise fault(one.line, f"{word[:40]!r}: write ARG NAME or ARG NAME=DEFAULT")
        found.append((name, default if equals else None))
    if not found:
        raise fault(one.line, "write ARG NAME or ARG NAME=DEFAULT")
    return found
