"""What a task's sandbox file asks for: skerry.toml, skerry.yaml, a compose file, a Dockerfile.

    image = "debian:12"          # options of skerry.SandboxOptions, by their names
    network = ["pypi"]

or several sandboxes by name, above which stand the options that hold for all:

    memory = "2GiB"
    [sandboxes.default]
    build = { dockerfile = "Dockerfile", context = "." }
    [sandboxes.victim]
    image = "python:3.12"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml
from inspect_ai.util import ComposeConfig, is_compose_yaml, is_dockerfile, parse_compose_yaml
from pydantic import BaseModel, ConfigDict, model_validator

from skerry.compat.inspect.compose import sandboxes_of
from skerry.compat.inspect.errors import Refused
from skerry.errors import SkerryError
from skerry.sdk.bases import ImageSources
from skerry.sdk.options import SandboxOptions, spec_of

FILES = ("skerry.toml", "skerry.yaml", "skerry.yml")
DEFAULT = "default"
# The sandboxes belong to the sample that they are made for.
_OPTIONS = tuple(name for name in SandboxOptions.__annotations__ if name not in {"rollout", "job"})
_ONE = ("backend", "build", *_OPTIONS)
_BUILD = ("dockerfile", "context", "args", "network", "memory", "timeout")
_SOURCES = ("images", "registries", "authfile")
_ALL = ("url", "token", "wait", "sandboxes", *_SOURCES, *_ONE)
WAIT_S = 3600.0  # a sample waits for room as it would for one of Inspect's own turns


@dataclass(frozen=True)
class Build:
    """An image that is built from a recipe before the task begins."""

    dockerfile: Path
    context: Path
    options: tuple[tuple[str, Any], ...] = ()  # args, network, memory, timeout of build_recipe


@dataclass(frozen=True)
class Wanted:
    """One sandbox of a sample."""

    name: str
    backend: str = "container"
    options: dict[str, Any] = field(default_factory=dict)
    build: Build | None = None


@dataclass(frozen=True)
class Setup:
    """What a sample needs, the default sandbox first, and where the node and images are."""

    wanted: tuple[Wanted, ...]
    sources: ImageSources
    url: str | None = None
    token: str | None = None
    wait: float = WAIT_S


class _Sources(msgspec.Struct):
    images: dict[str, str] | None  # other names for layers
    registries: list[str] | None
    authfile: str | None


class SkerryConfig(BaseModel):
    """The content of a skerry.toml, given in code: SandboxEnvironmentSpec("skerry", SkerryConfig(...)).

    Fields are those of the file. Raises pydantic's ValidationError, which names what is wrong; paths of
    a `build` are relative to the directory of the process.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    @model_validator(mode="after")
    def _sound(self) -> SkerryConfig:
        try:
            _setup_of(self.model_dump(), Path(), "SkerryConfig")
        except Refused as error:
            raise ValueError(str(error)) from None
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


def setup_of(config: BaseModel | str | None) -> Setup:
    """Returns what a task's or sample's sandbox configuration asks for; raises Refused, naming it."""
    if config is None:
        return _setup_of({}, Path(), "sandbox")
    if isinstance(config, ComposeConfig):
        return _of_compose(config, Path(), "compose")
    if isinstance(config, BaseModel):
        return _setup_of(config.model_dump(), Path(), type(config).__name__)
    path = Path(config)
    if is_dockerfile(config):
        return _setup_of({"build": {"dockerfile": path.name}}, path.parent, path.name)
    try:
        if is_compose_yaml(config):
            return _of_compose(parse_compose_yaml(config), path.parent, path.name)
        content = _content(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Refused(f"{config}: {error}") from None
    if not isinstance(content, dict):
        raise Refused(f"{config}: it holds no options")
    return _setup_of(content, path.parent, path.name)


def _content(path: Path) -> object:
    if path.suffix == ".toml":
        return tomllib.loads(path.read_text())
    if path.suffix in {".yaml", ".yml"}:
        content: object = yaml.safe_load(path.read_text())
        return content
    raise Refused(f"{path}: write a skerry.toml, a skerry.yaml, a compose file or a Dockerfile")


def _of_compose(config: ComposeConfig, place: Path, where: str) -> Setup:
    try:
        asked = sandboxes_of(config.model_dump(by_alias=True, exclude_none=True))
    except Refused as error:
        raise Refused(f"{where}: {error}") from None
    return _setup_of({"sandboxes": asked}, place, where)


def _setup_of(content: Mapping[str, Any], place: Path, where: str) -> Setup:
    _known(content, _ALL, where)
    shared = {name: value for name, value in content.items() if name in _ONE}
    named = content.get("sandboxes")
    if named is None:
        named = {DEFAULT: {}}
    elif not isinstance(named, dict) or not named:
        raise Refused(f"{where}: sandboxes is a table of tables, one for each sandbox")
    wanted, chosen = [], []
    for name, options in named.items():
        if not isinstance(options, dict):
            raise Refused(f"{where}: sandboxes.{name} is a table of options")
        _known(options, ("default", *_ONE), f"{where}: sandboxes.{name}")
        # An image that one sandbox has of its own takes the place of the build of all, and the reverse.
        own = {"image", "build", "restore"} & options.keys()
        common = {
            k: v for k, v in shared.items() if not own or k not in {"image", "build", "restore"}
        }
        asked = common | options
        if asked.pop("default", False):
            chosen.append(name)
        wanted.append(_wanted(name, asked, place, f"{where}: sandboxes.{name}"))
    first = _default(list(named), chosen, where)
    wanted.sort(key=lambda one: one.name != first)
    wait = content.get("wait", WAIT_S)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or wait < 0:
        raise Refused(f"{where}: wait is a number of seconds")
    return Setup(
        tuple(wanted),
        _sources(content, place, where),
        content.get("url"),
        content.get("token"),
        wait,
    )


def _sources(content: Mapping[str, Any], place: Path, where: str) -> ImageSources:
    try:
        asked = msgspec.convert({name: content.get(name) for name in _SOURCES}, _Sources)
    except msgspec.ValidationError as error:
        raise Refused(f"{where}: {error}") from None
    return ImageSources(
        aliases=asked.images or {},
        registries=tuple(asked.registries or ()),
        authfile=None if asked.authfile is None else place / asked.authfile,
    )


def _default(names: list[str], chosen: list[str], where: str) -> str:
    if len(chosen) > 1:
        raise Refused(f"{where}: {' and '.join(chosen)} are both the default")
    if chosen:
        return chosen[0]
    if DEFAULT in names or len(names) == 1:
        return DEFAULT if DEFAULT in names else names[0]
    raise Refused(
        f"{where}: which of {', '.join(names)} is the default? Name it `default`, "
        "or set default = true in it (in a compose file: x-default: true)"
    )


def _wanted(name: str, asked: dict[str, Any], place: Path, where: str) -> Wanted:
    options = dict(asked)
    backend, build = options.pop("backend", "container"), options.pop("build", None)
    made = None
    if build is not None:
        if options.keys() & {"image", "restore"}:
            raise Refused(f"{where}: build says what the image is: no image, no restore beside it")
        made = _build(build, place, where)
    try:
        spec_of(backend, **options)
    except (SkerryError, TypeError) as error:
        raise Refused(f"{where}: {error}") from None
    return Wanted(name, backend, options, made)


def _build(build: object, place: Path, where: str) -> Build:
    if isinstance(build, str):
        build = {"context": build}
    if not isinstance(build, dict):
        raise Refused(f"{where}: build is a table with dockerfile and context")
    _known(build, _BUILD, f"{where}: build")
    context = (place / build.get("context", ".")).resolve()
    dockerfile = (context / build.get("dockerfile", "Dockerfile")).resolve()
    if not dockerfile.is_file():
        raise Refused(f"{where}: there is no {dockerfile}")
    more = {name: build[name] for name in _BUILD[2:] if name in build}
    if "network" in more:
        more["network"] = tuple(more["network"])
    if "args" in more:
        more["args"] = tuple(sorted(more["args"].items()))
    return Build(dockerfile, context, tuple(sorted(more.items())))


def _known(content: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    if unknown := [str(name) for name in content if name not in known]:
        raise Refused(f"{where}: no option {unknown[0]!r}; there are {', '.join(sorted(known))}")
