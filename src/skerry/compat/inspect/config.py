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
from typing import Annotated, Any, TypeVar

import msgspec
import yaml
from inspect_ai.util import ComposeConfig, is_compose_yaml, is_dockerfile, parse_compose_yaml
from pydantic import BaseModel, ConfigDict, model_validator

from skerry.compat.inspect.compose import sandboxes_of
from skerry.compat.inspect.errors import TaskRefused
from skerry.errors import SkerryError
from skerry.sdk.bases import ImageSources
from skerry.sdk.options import SandboxOptions, spec_of

FILES = ("skerry.toml", "skerry.yaml", "skerry.yml")
DEFAULT = "default"
# The sandboxes belong to the sample that they are made for.
_OPTIONS = tuple(name for name in SandboxOptions.__annotations__ if name not in {"rollout", "job"})
_ONE = ("backend", "build", *_OPTIONS)
WAIT_S = 3600.0  # a sample waits for room as it would for one of Inspect's own turns
LEASE_S = 3600.0  # what a killed evaluation leaves is gone by then


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
    lease: float = LEASE_S


class _Shared(msgspec.Struct):
    """What stands once in a file, for all its sandboxes."""

    url: str | None = None
    token: str | None = None
    wait: Annotated[float, msgspec.Meta(ge=0)] = WAIT_S
    lease: Annotated[float, msgspec.Meta(ge=1)] = LEASE_S
    images: dict[str, str] | None = None  # other names for layers
    registries: list[str] | None = None
    authfile: str | None = None
    sandboxes: dict[str, dict[str, Any]] | None = None


class _Recipe(msgspec.Struct):
    """What a `build` may say."""

    dockerfile: str = "Dockerfile"
    context: str = "."
    args: dict[str, str] | None = None
    network: list[str] | None = None
    memory: str | int | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None


_ALL = (*_Shared.__struct_fields__, *_ONE)
_T = TypeVar("_T", _Shared, _Recipe)


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
        except TaskRefused as error:
            raise ValueError(str(error)) from None
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


def setup_of(config: BaseModel | str | None) -> Setup:
    """Returns what a task's or sample's sandbox file asks for; TaskRefused names what is wrong."""
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
        raise TaskRefused(f"{config}: {error}") from None
    if not isinstance(content, dict):
        raise TaskRefused(f"{config}: it holds no options")
    return _setup_of(content, path.parent, path.name)


def _content(path: Path) -> object:
    if path.suffix == ".toml":
        return tomllib.loads(path.read_text())
    if path.suffix in {".yaml", ".yml"}:
        content: object = yaml.safe_load(path.read_text())
        return content
    raise TaskRefused(f"{path}: write a skerry.toml, a skerry.yaml, a compose file or a Dockerfile")


def _of_compose(config: ComposeConfig, place: Path, where: str) -> Setup:
    try:
        asked = sandboxes_of(config.model_dump(by_alias=True, exclude_none=True))
    except TaskRefused as error:
        raise TaskRefused(f"{where}: {error}") from None
    return _setup_of({"sandboxes": asked}, place, where)


def _setup_of(content: Mapping[str, Any], place: Path, where: str) -> Setup:
    _known(content, _ALL, where)
    whole = _typed(content, _Shared, where)
    shared = {name: value for name, value in content.items() if name in _ONE}
    named = {DEFAULT: {}} if whole.sandboxes is None else whole.sandboxes
    if not named:
        raise TaskRefused(f"{where}: sandboxes is a table of tables, one for each sandbox")
    wanted, chosen = [], []
    for name, options in named.items():
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
    sources = ImageSources(
        aliases=whole.images or {},
        registries=tuple(whole.registries or ()),
        authfile=None if whole.authfile is None else place / whole.authfile,
    )
    return Setup(tuple(wanted), sources, whole.url, whole.token, whole.wait, whole.lease)


def _typed(content: Mapping[str, Any], kind: type[_T], where: str) -> _T:
    """Returns what of the content is of that kind; what is of the wrong type is named."""
    try:
        return msgspec.convert(
            {name: content[name] for name in kind.__struct_fields__ if name in content}, kind
        )
    except msgspec.ValidationError as error:
        why, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`") or "it"
        raise TaskRefused(f"{where}: {name}: {why[:1].lower()}{why[1:]}") from None


def _default(names: list[str], chosen: list[str], where: str) -> str:
    if len(chosen) > 1:
        raise TaskRefused(f"{where}: {' and '.join(chosen)} are both the default")
    if chosen:
        return chosen[0]
    if DEFAULT in names or len(names) == 1:
        return DEFAULT if DEFAULT in names else names[0]
    raise TaskRefused(
        f"{where}: which of {', '.join(names)} is the default? Name it `default`, "
        "or set default = true in it (in a compose file: x-default: true)"
    )


def _wanted(name: str, asked: dict[str, Any], place: Path, where: str) -> Wanted:
    options = dict(asked)
    backend, build = options.pop("backend", "container"), options.pop("build", None)
    made = None
    if build is not None:
        if options.keys() & {"image", "restore"}:
            raise TaskRefused(
                f"{where}: build says what the image is: no image, no restore beside it"
            )
        made = _build(build, place, where)
    try:
        spec_of(backend, **options)
    except (SkerryError, TypeError) as error:
        raise TaskRefused(f"{where}: {error}") from None
    return Wanted(name, backend, options, made)


def _build(build: object, place: Path, where: str) -> Build:
    if isinstance(build, str):
        build = {"context": build}
    if not isinstance(build, dict):
        raise TaskRefused(f"{where}: build is a table with dockerfile and context")
    _known(build, _Recipe.__struct_fields__, f"{where}: build")
    recipe = _typed(build, _Recipe, f"{where}: build")
    context = (place / recipe.context).resolve()
    dockerfile = (context / recipe.dockerfile).resolve()
    if not dockerfile.is_file():
        raise TaskRefused(f"{where}: there is no {dockerfile}")
    more = {
        "args": None if recipe.args is None else tuple(sorted(recipe.args.items())),
        "network": None if recipe.network is None else tuple(recipe.network),
        "memory": recipe.memory,
        "timeout": recipe.timeout,
    }
    given = ((name, value) for name, value in more.items() if value is not None)
    return Build(dockerfile, context, tuple(given))


def _known(content: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    if unknown := [str(name) for name in content if name not in known]:
        raise TaskRefused(
            f"{where}: no option {unknown[0]!r}; there are {', '.join(sorted(known))}"
        )
