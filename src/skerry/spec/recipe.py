"""Recipes: how a layer is made, in the Dockerfile language, as steps that are ready to run. Pure.

| instruction | taken |
|---|---|
| FROM IMAGE | once; a layer (debian:12 is base/debian:12), or a registry's image; ARG may stand before |
| RUN | shell form, `["exec", "form"]`, here-document; a cache mount is dropped with a note |
| COPY | files and directories of the context, patterns, here-documents; --chown, --chmod, --link |
| ENV, ARG, WORKDIR, USER | as in Docker |
| LABEL, CMD, ENTRYPOINT | kept in the layer's configuration |
| SHELL | for the shell form of RUN |
| EXPOSE, VOLUME, STOPSIGNAL, HEALTHCHECK, MAINTAINER | no meaning here; a note says so |

All else is refused by name, with its line: ADD, ONBUILD, several FROM, `COPY --from`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec.layers import ImageConfig, LayerKind, LayerName, parse_layer_name
from skerry.spec.recipe_text import (
    Document,
    Instruction,
    escape_of,
    expand,
    fault,
    instructions,
    without_documents,
    words,
)
from skerry.spec.reference import parse_reference

# What Docker lets a build set without an ARG that names it.
FREE_ARGS = frozenset(
    name
    for word in ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
    for name in (word, word.lower())
)
# What $PATH stands for where the base does not say.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Layers of single steps are workspaces below this name.
BUILD_CACHE_NAME = "build-cache"
_CACHED = f"{LayerKind.WORKSPACE}/{BUILD_CACHE_NAME}/"
_MODE = re.compile("[0-7]{1,4}")
_SILENT = {"EXPOSE", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER"}
_REFUSED = {
    "ADD": "use COPY, and RUN for what is to be fetched or unpacked",
    "ONBUILD": "write the instruction into the recipe that needs it",
}


class RunStep(msgspec.Struct, frozen=True, kw_only=True):
    """A command in the image as it is so far. `env` holds what ENV and ARG set."""

    line: int
    text: str  # as the recipe has it, for people
    argv: tuple[str, ...]
    stdin: str | None = None
    env: dict[str, str]
    workdir: str
    user: str | None = None


class CopyStep(msgspec.Struct, frozen=True, kw_only=True):
    """Files into the image: from the context, and such as the recipe itself holds."""

    line: int
    text: str
    sources: tuple[str, ...] = ()  # below the context, perhaps patterns; no .. leads out of it
    files: tuple[tuple[str, str], ...] = ()  # name and content of here-documents
    target: str  # absolute; with a / at its end it is a directory
    owner: str | None = None  # of --chown: user[:group]
    mode: str | None = None  # of --chmod: octal digits


Step = RunStep | CopyStep


class Recipe(msgspec.Struct, frozen=True):
    """A recipe whose instructions are known to be well formed, and the image that it begins with."""

    base: str
    instructions: tuple[Instruction, ...]
    global_args: dict[str, str]
    asked: dict[str, str]  # what the caller gives ARGs
    escape: str = "\\"


class Plan(msgspec.Struct, frozen=True):
    """What is to be done on the base image, in order, and what the layer says of itself then."""

    steps: tuple[Step, ...]
    config: ImageConfig
    notes: tuple[str, ...] = ()


def is_build_cache(name: str) -> bool:
    """Says whether a layer of this name is a single step of a recipe, and not one that was asked for."""
    return name.startswith(_CACHED)


def parse_recipe(text: str, args: Mapping[str, str] | None = None) -> Recipe:
    """Reads a recipe; InvalidRequest names the first line that is wrong, and what would be right.

    `args` are values for the recipe's ARG instructions; one that no ARG names is refused.
    """
    asked = dict(args or {})
    escape = escape_of(text)
    values: dict[str, str] = {}
    declared = set(FREE_ARGS)
    base: str | None = None
    rest: list[Instruction] = []
    for one in instructions(text):
        if one.word == "ARG":
            declared.update(name for name, _ in _args_of(one, escape))
        if base is not None:
            rest.append(_known(one))
        elif one.word == "ARG":
            for name, default in _args_of(one, escape):
                values[name] = asked.get(name, expand(default or "", values, escape, one.line))
        elif one.word == "FROM":
            base = _base(one, values, escape)
        else:
            raise fault(one.line, f"{one.word} before FROM: a recipe begins with FROM IMAGE")
    if base is None:
        raise InvalidRequest("recipe: it has no FROM: begin with FROM debian:12, say")
    unknown = sorted(set(asked) - declared)
    if unknown:
        raise InvalidRequest(f"recipe: no ARG names {', '.join(unknown)}", unknown=unknown)
    return Recipe(base, tuple(rest), values, asked, escape)


def _base(one: Instruction, values: Mapping[str, str], escape: str) -> str:
    parts = words(expand(one.rest, values, escape, one.line), escape, one.line)
    parts = tuple(part for part in parts if not part.startswith("--platform="))
    if len(parts) == 3 and parts[1].upper() == "AS":
        parts = parts[:1]
    if len(parts) != 1:
        raise fault(one.line, "write FROM IMAGE")
    try:
        name: LayerName = parse_layer_name(parts[0], LayerKind.BASE)
    except InvalidRequest as error:
        try:
            parse_reference(parts[0])
        except InvalidRequest:
            raise fault(one.line, error.message) from None
        return parts[0]
    if name.kind is not LayerKind.BASE:
        raise fault(one.line, f"FROM {parts[0]}: it must be a base, not a {name.kind}")
    return str(name)


def _known(one: Instruction) -> Instruction:
    if one.word == "FROM":
        raise fault(one.line, "a second FROM: stages are not known; build two layers")
    if one.word in _REFUSED:
        raise fault(one.line, f"{one.word} is not taken: {_REFUSED[one.word]}")
    if one.word not in _TAKEN and one.word not in _SILENT:
        raise fault(one.line, f"{one.word[:40]} is no instruction; known: {', '.join(_TAKEN)}")
    return one


def plan(recipe: Recipe, base: ImageConfig) -> Plan:
    """Returns the steps on an image that says `base` of itself; InvalidRequest names the line."""
    maker = _Maker(recipe, base)
    for one in recipe.instructions:
        _TAKEN.get(one.word, _Maker.leave)(maker, one)
    config = ImageConfig(
        env=maker.env,
        workdir=maker.workdir,
        user=maker.user,
        entrypoint=maker.entrypoint,
        cmd=maker.cmd,
        labels=maker.labels,
    )
    return Plan(tuple(maker.steps), config, tuple(maker.notes))


class _Maker:
    """The state between two instructions."""

    def __init__(self, recipe: Recipe, base: ImageConfig) -> None:
        self._recipe = recipe
        self._escape = recipe.escape
        self._args: dict[str, str] = {}
        self._shell: tuple[str, ...] = ("/bin/sh", "-c")
        self.env = dict(base.env)
        self.workdir = base.workdir or "/"
        self.user = base.user
        self.entrypoint, self.cmd = base.entrypoint, base.cmd
        self.labels = dict(base.labels)
        self.steps: list[Step] = []
        self.notes: list[str] = []

    def _values(self) -> dict[str, str]:
        return {"PATH": DEFAULT_PATH} | self._args | self.env

    def _words(self, one: Instruction, text: str | None = None) -> tuple[str, ...]:
        whole = one.rest if text is None else text
        return words(expand(whole, self._values(), self._escape, one.line), self._escape, one.line)

    def run(self, one: Instruction) -> None:
        flags, rest = _flags(one, self._escape)
        for name, value in flags:
            if name != "mount" or "type=cache" not in value.split(","):
                raise fault(one.line, f"RUN --{name}={value}: only cache mounts are taken")
            self.notes.append(f"line {one.line}: the cache mount is an ordinary directory here")
        stdin = None
        argv = _exec_form(rest)
        if argv is None and one.documents:
            argv, stdin = self._script(one, rest)
        elif argv is None:
            argv = (*self._shell, rest)
        if not rest or not argv:
            raise fault(one.line, "RUN without a command")
        env = {name: value for name, value in self._args.items() if name not in self.env}
        self.steps.append(
            RunStep(
                line=one.line,
                text=f"RUN {rest}",
                argv=argv,
                stdin=stdin,
                env=env | self.env,
                workdir=self.workdir,
                user=self.user,
            )
        )

    def _script(self, one: Instruction, rest: str) -> tuple[tuple[str, ...], str | None]:
        """`RUN <<EOF` is a script; `RUN program <<EOF` gives the document to a program."""
        command = without_documents(rest)
        if len(one.documents) > 1:
            raise fault(one.line, "RUN takes one here-document")
        content = one.documents[0].content
        if command:
            return (*self._shell, command), content
        first, _, _ = content.partition("\n")
        if first.startswith("#!"):
            return (*first[2:].split(), "/dev/stdin"), content
        return (*self._shell, content), None

    def copy(self, one: Instruction) -> None:
        flags, rest = _flags(one, self._escape)
        options = dict(flags)
        for name in options:
            if name not in {"chown", "chmod", "link"}:
                raise fault(one.line, f"COPY --{name} is not taken, only --chown and --chmod")
        plain = without_documents(rest) if one.documents else rest
        exact = _exec_form(plain)
        values = self._values()
        if exact is None:
            parts = self._words(one, plain)
        else:
            parts = tuple(expand(word, values, self._escape, one.line) for word in exact)
        if not parts or len(parts) + len(one.documents) < 2:
            raise fault(one.line, "write COPY SOURCE... TARGET")
        *sources, target = parts
        several = len(sources) + len(one.documents) > 1
        if several and not target.endswith("/"):
            raise fault(one.line, f"COPY of several to {target!r}: end it with / for a directory")
        mode = options.get("chmod")
        if mode is not None and _MODE.fullmatch(mode) is None:
            raise fault(one.line, f"--chmod={mode}: write octal digits, like 755")
        self.steps.append(
            CopyStep(
                line=one.line,
                text=f"COPY {rest}",
                sources=tuple(_below(source, one.line) for source in sources),
                files=tuple((doc.name, self._filled(doc, one.line)) for doc in one.documents),
                target=self._absolute(target),
                owner=expand(options["chown"], values, self._escape, one.line)
                if "chown" in options
                else None,
                mode=mode,
            )
        )

    def _filled(self, document: Document, line: int) -> str:
        if document.quoted:
            return document.content
        return expand(document.content, self._values(), self._escape, line)

    def _absolute(self, path: str) -> str:
        joined = posixpath.normpath(posixpath.join(self.workdir, path))
        directory = path.endswith("/") or posixpath.basename(path) in (".", "..")
        return joined + "/" if directory and joined != "/" else joined

    def set_env(self, one: Instruction) -> None:
        self.env.update(self._pairs(one))

    def set_labels(self, one: Instruction) -> None:
        self.labels.update(self._pairs(one))

    def _pairs(self, one: Instruction) -> dict[str, str]:
        name, _, value = one.rest.partition(" ")
        if name and "=" not in name:  # the old form: ENV NAME the rest
            if not value.strip():
                raise fault(one.line, f"write {one.word} NAME=VALUE")
            return {name: expand(value.strip(), self._values(), self._escape, one.line)}
        pairs = {}
        for word in self._words(one):
            name, equals, value = word.partition("=")
            if not equals or not name:
                raise fault(one.line, f"{word[:40]!r}: write {one.word} NAME=VALUE")
            pairs[name] = value
        if not pairs:
            raise fault(one.line, f"write {one.word} NAME=VALUE")
        return pairs

    def set_arg(self, one: Instruction) -> None:
        for name, default in _args_of(one, self._escape):
            asked, outer = self._recipe.asked.get(name), self._recipe.global_args.get(name)
            if asked is not None:
                self._args[name] = asked
            elif default is not None:
                self._args[name] = expand(default, self._values(), self._escape, one.line)
            elif outer is not None:
                self._args[name] = outer

    def set_workdir(self, one: Instruction) -> None:
        path = " ".join(self._words(one))
        if not path:
            raise fault(one.line, "write WORKDIR PATH")
        self.workdir = posixpath.normpath(posixpath.join(self.workdir, path))
        # Docker makes it at once; an empty COPY does the same here, as root.
        self.steps.append(
            CopyStep(line=one.line, text=f"WORKDIR {path}", target=self.workdir.rstrip("/") + "/")
        )

    def set_user(self, one: Instruction) -> None:
        parts = self._words(one)
        if len(parts) != 1:
            raise fault(one.line, "write USER NAME[:GROUP]")
        self.user = parts[0]

    def set_cmd(self, one: Instruction) -> None:
        self.cmd = self._command(one)

    def set_entrypoint(self, one: Instruction) -> None:
        self.entrypoint, self.cmd = self._command(one), ()

    def _command(self, one: Instruction) -> tuple[str, ...]:
        argv = _exec_form(one.rest)
        return (*self._shell, one.rest) if argv is None else argv

    def set_shell(self, one: Instruction) -> None:
        argv = _exec_form(one.rest)
        if not argv:
            raise fault(one.line, 'write SHELL ["/bin/bash", "-c"]')
        self._shell = argv

    def leave(self, one: Instruction) -> None:
        self.notes.append(f"line {one.line}: {one.word} has no meaning in a sandbox")


_TAKEN: dict[str, Callable[[_Maker, Instruction], None]] = {
    "RUN": _Maker.run, "COPY": _Maker.copy, "ENV": _Maker.set_env, "ARG": _Maker.set_arg,
    "WORKDIR": _Maker.set_workdir, "USER": _Maker.set_user, "LABEL": _Maker.set_labels,
    "CMD": _Maker.set_cmd, "ENTRYPOINT": _Maker.set_entrypoint, "SHELL": _Maker.set_shell,
}  # fmt: skip


def _args_of(one: Instruction, escape: str) -> list[tuple[str, str | None]]:
    found = []
    for word in words(one.rest, escape, one.line):
        name, equals, default = word.partition("=")
        if not name.isidentifier():
            raise fault(one.line, f"{word[:40]!r}: write ARG NAME or ARG NAME=DEFAULT")
        found.append((name, default if equals else None))
    if not found:
        raise fault(one.line, "write ARG NAME or ARG NAME=DEFAULT")
    return found


def _flags(one: Instruction, escape: str) -> tuple[list[tuple[str, str]], str]:
    """Cuts `--name=value` from the start of the arguments."""
    rest, flags = one.rest, []
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        name, _, value = words(word, escape, one.line)[0][2:].partition("=")
        flags.append((name, value))
        rest = rest.strip()
    return flags, rest


def _exec_form(text: str) -> tuple[str, ...] | None:
    if not text.startswith("["):
        return None
    try:
        return tuple(msgspec.json.decode(text, type=list[str]))
    except msgspec.MsgspecError:
        return None  # Docker, too, takes it for a shell line then


def _below(source: str, line: int) -> str:
    path = posixpath.normpath("/" + source).lstrip("/") or "."
    if ".." in source.split("/") and posixpath.normpath(source).startswith(".."):
        raise fault(line, f"COPY {source}: it lies outside the context")
    return path
