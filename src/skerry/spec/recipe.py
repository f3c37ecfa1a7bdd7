"""Recipes: how a layer is made, in the Dockerfile language, as steps that are ready to run. Pure.

| instruction | taken |
|---|---|
| FROM IMAGE | a layer (debian:12 is base/debian:12), a registry's image, an earlier stage; AS |
| RUN | shell form, `["exec", "form"]`, here-document; a cache mount is dropped with a note |
| COPY | files and directories, patterns, here-documents; --chown, --chmod, --from, --link |
| ENV, ARG, WORKDIR, USER | as in Docker |
| LABEL, CMD, ENTRYPOINT | kept in the layer's configuration |
| SHELL | for the shell form of RUN |
| EXPOSE, VOLUME, STOPSIGNAL, HEALTHCHECK, MAINTAINER | no meaning here; a note says so |

All else is refused by name, with its line: ADD, ONBUILD. `skerry.spec.recipe_stages` reads the text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

import msgspec

from skerry.spec.layers import ImageConfig, LayerKind
from skerry.spec.recipe_stages import TAKEN, Recipe, args_of
from skerry.spec.recipe_text import (
    Document,
    Instruction,
    expand,
    fault,
    without_documents,
    words,
)

# What $PATH stands for where the base does not say.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Layers of single steps are workspaces below this name.
BUILD_CACHE_NAME = "build-cache"
_CACHED = f"{LayerKind.WORKSPACE}/{BUILD_CACHE_NAME}/"
_MODE = re.compile("[0-7]{1,4}")


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
    """Files into the image: of the context, of another image, or such as the recipe itself holds."""

    line: int
    text: str
    # Below the context, or the root of `origin`; perhaps patterns; no .. leads out of it.
    sources: tuple[str, ...] = ()
    origin: str | None = None  # of --from: an earlier stage, or an image
    files: tuple[tuple[str, str], ...] = ()  # name and content of here-documents
    target: str  # absolute; with a / at its end it is a directory
    owner: str | None = None  # of --chown: user[:group]
    mode: str | None = None  # of --chmod: octal digits


Step = RunStep | CopyStep


class Plan(msgspec.Struct, frozen=True):
    """What is to be done on the base image, in order, and what the layer says of itself then."""

    steps: tuple[Step, ...]
    config: ImageConfig
    notes: tuple[str, ...] = ()


def is_build_cache(name: str) -> bool:
    """Says whether a layer of this name is a single step of a recipe, and not one that was asked for."""
    return name.startswith(_CACHED)


def plan(recipe: Recipe, base: ImageConfig, stage: int = -1) -> Plan:
    """Returns a stage's steps on an image that says `base` of itself; InvalidRequest names the line."""
    maker = _Maker(recipe, base)
    for one in recipe.stages[stage].instructions:
        _DO.get(one.word, _Maker.leave)(maker, one)
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
            if name not in {"chown", "chmod", "from", "link"}:
                raise fault(
                    one.line, f"COPY --{name} is not taken: --chown, --chmod and --from are"
                )
        if options.get("from") == "" or (one.documents and "from" in options):
            raise fault(one.line, "write COPY --from=IMAGE SOURCE... TARGET")
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
                origin=options.get("from"),
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
        for name, default in args_of(one, self._escape):
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


_DO: dict[str, Callable[[_Maker, Instruction], None]] = dict(
    zip(
        TAKEN,
        (
            *(_Maker.run, _Maker.copy, _Maker.set_env, _Maker.set_arg, _Maker.set_workdir),
            *(_Maker.set_user, _Maker.set_labels, _Maker.set_cmd, _Maker.set_entrypoint),
            _Maker.set_shell,
        ),
        strict=True,
    )
)


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
