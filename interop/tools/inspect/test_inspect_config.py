"""What sandbox files ask for, and what is refused, with words that say what to do. No node is needed."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest
from inspect_ai.model._call_tools import tool_call_error
from inspect_ai.tool import ToolError
from inspect_ai.util import ComposeConfig, SandboxEnvironmentSpec, SandboxUnavailableError
from pydantic import ValidationError

from skerry.compat.inspect import SkerryConfig, SkerrySandbox
from skerry.compat.inspect.config import Build, setup_of
from skerry.compat.inspect.errors import TaskRefused, in_inspects_terms
from skerry.errors import (
    Bug,
    DiskFull,
    FileDenied,
    FileRefused,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    SandboxFailed,
    StorageFailed,
    Unavailable,
)


@pytest.fixture
def written(tmp_path):
    """Writes a file beside a task and returns its path."""

    def write(name: str, content: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        return str(path)

    return write


def test_without_a_file_there_is_one_sandbox_with_defaults() -> None:
    (one,) = setup_of(None).wanted
    assert (one.name, one.backend, one.options, one.build) == ("default", "container", {}, None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("skerry.toml", 'image = "a"\ncpu = 2\nnetwork = ["pypi"]\nbackend = "fullvm"\n'),
        ("skerry.yaml", "image: a\ncpu: 2\nnetwork: [pypi]\nbackend: fullvm\n"),
    ],
)
def test_options_go_by_their_names(written, name: str, content: str) -> None:
    (one,) = setup_of(written(name, content)).wanted
    assert one.backend == "fullvm"
    assert one.options == {"image": "a", "cpu": 2, "network": ["pypi"]}


def test_named_sandboxes_have_what_stands_above_them_and_their_own(written) -> None:
    setup = setup_of(
        written(
            "skerry.toml",
            'url = "http://a:1"\nwait = 5\nimage = "a"\nmemory = "2GiB"\n[sandboxes.x]\nimage = "b"\n'
            '[sandboxes.default]\n[sandboxes.y]\nbuild = "."\n',
        )
        if written("Dockerfile", "FROM debian:12\n")
        else None
    )
    assert (setup.url, setup.wait) == ("http://a:1", 5)
    first, x, y = setup.wanted
    assert (first.name, first.options) == ("default", {"image": "a", "memory": "2GiB"})
    assert (x.name, x.options) == ("x", {"image": "b", "memory": "2GiB"})
    assert (y.name, y.options) == ("y", {"memory": "2GiB"})
    assert y.build is not None


def test_images_come_from_where_the_task_allows(written) -> None:
    text = (
        'images = { "python:3.12" = "debian:12" }\nregistries = ["docker.io"]\nauthfile = "a.json"'
    )
    path = written("skerry.toml", text)
    sources = setup_of(path).sources
    assert sources.aliases == {"python:3.12": "debian:12"}
    assert sources.registries == ("docker.io",)
    assert sources.authfile == Path(path).with_name("a.json")
    assert setup_of(None).sources.registries == ()


def test_default_is_the_one_that_says_so_or_is_alone(written) -> None:
    two = "[sandboxes.a]\n[sandboxes.b]\ndefault = true\n"
    assert [one.name for one in setup_of(written("skerry.toml", two)).wanted] == ["b", "a"]
    alone = written("skerry.toml", "[sandboxes.a]\n")
    assert [one.name for one in setup_of(alone).wanted] == ["a"]


def test_dockerfile_beside_the_task_is_built_where_it_lies(written) -> None:
    path = Path(written("Dockerfile", "FROM debian:12\n"))
    (one,) = setup_of(str(path)).wanted
    assert one.build == Build(path.resolve(), path.parent.resolve())
    assert one.options == {}


def test_build_has_a_recipe_a_context_and_arguments(written) -> None:
    recipe = Path(written("docker/Dockerfile", "FROM debian:12\n"))
    config = 'build = { context = ".", dockerfile = "docker/Dockerfile", args = { A = "1" } }\n'
    (one,) = setup_of(written("skerry.toml", config)).wanted
    assert one.build == Build(
        recipe.resolve(), recipe.parents[1].resolve(), (("args", (("A", "1"),)),)
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("imag = 'a'", r"no option 'imag'; there are .*image, .*memory"),
        ("[sandboxes.a]\nimag = 'a'", r"sandboxes\.a: no option 'imag'; there are"),
        ("memory = 'much'", "memory: 'much' is no size"),
        ("cpu = 0", "cpu must be between"),
        ("network = ['10.0.0.1']", "network"),
        ("rollout = 'x'", "no option 'rollout'"),
        ("sandboxes = 3", "sandboxes: expected `object"),
        ("[sandboxes]\na = 3", r"sandboxes\[...\]: expected `object"),
        ("[sandboxes]\n", "sandboxes is a table"),
        ("[sandboxes.a]\n[sandboxes.b]", "which of a, b is the default"),
        ("[sandboxes.a]\ndefault=true\n[sandboxes.b]\ndefault=true", "a and b are both"),
        ("image = 'a'\nbuild = '.'", "no image, no restore beside it"),
        ("build = { dockerfile = 'none' }", "there is no .*none"),
        ("build = { target = 'x' }", "build: no option 'target'"),
        ("wait = 'long'", "wait: expected `float`, got `str`"),
        ("wait = true", "wait: expected `float`, got `bool`"),
        ("wait = -1", "wait: expected `float` >= 0"),
        ("lease = 0", "lease: expected `float` >= 1"),
        ("url = 3", "url: expected `str"),
        ("token = ['a']", "token: expected `str"),
        ("build = { context = 3 }", "build: context: expected `str`, got `int`"),
        ("build = { timeout = 'long' }", "build: timeout: expected `float"),
        ("build = { args = { A = 1 } }", r"build: args\[...\]: expected `str`, got `int`"),
        ("registries = 'docker.io'", r"registries"),
        ("image =", "Invalid value"),
    ],
)
def test_what_cannot_be_is_refused_by_name(written, content: str, said: str) -> None:
    written("Dockerfile", "FROM debian:12\n")
    with pytest.raises(TaskRefused, match=said) as error:
        setup_of(written("skerry.toml", content))
    assert "skerry.toml" in str(error.value)


def test_file_of_another_kind_is_refused(written) -> None:
    with pytest.raises(
        TaskRefused, match=r"skerry\.toml, a skerry\.yaml, a compose file or a Dockerf"
    ):
        setup_of(written("values.json", "{}"))
    with pytest.raises(TaskRefused, match="No such file"):
        setup_of("/nowhere/skerry.toml")


def test_configuration_in_code_is_the_same_and_survives_a_log() -> None:
    config = SkerryConfig(image="a", sandboxes={"default": {}, "b": {"cpu": 2}})
    spec = SandboxEnvironmentSpec("skerry", config)
    assert len({spec, SandboxEnvironmentSpec("skerry", config)}) == 1
    again = SandboxEnvironmentSpec.model_validate(spec.model_dump())
    assert again.config == config
    assert [one.name for one in setup_of(again.config).wanted] == ["default", "b"]
    with pytest.raises(ValidationError, match="no option 'imag'"):
        SkerryConfig(imag="a")


# --- errors


@pytest.mark.parametrize(
    ("error", "theirs"),
    [
        (NotFound("gone", errno=errno.ENOENT, path="/a"), FileNotFoundError),
        (FileRefused("no directory", errno=errno.ENOTDIR, path="/a"), FileNotFoundError),
        (FileRefused("it is one", errno=errno.EISDIR, path="/a"), IsADirectoryError),
        (FileDenied("closed", errno=errno.EACCES, path="/a"), PermissionError),
        (FileDenied("read-only", errno=errno.EROFS, path="/a"), PermissionError),
        (DiskFull("full", errno=errno.ENOSPC, path="/a"), ToolError),
        (FileRefused("a FIFO", errno=errno.EINVAL, path="/a"), ToolError),
        (InvalidRequest("argv: too long"), ToolError),
        (SandboxFailed("its first process has ended"), SandboxUnavailableError),
    ],
)
def test_what_an_agent_does_wrong_is_an_error_that_inspect_tells_it(error, theirs) -> None:
    with pytest.raises(theirs) as raised, in_inspects_terms("a"):
        raise error
    assert isinstance(raised.value, OSError) <= ("'a'" in str(raised.value))
    assert tool_call_error(raised.value, "bash") is not None


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("the node is away"),
        Overloaded("full"),
        StorageFailed("the store is away"),
        OutcomeUnknown("it may have run"),
        SandboxFailed("it was deleted", lost=True),
        NotFound("there is no such sandbox"),
        Bug("an invariant"),
    ],
)
def test_fault_of_the_platform_is_none_that_inspect_tells_a_model(error) -> None:
    with pytest.raises(type(error)) as raised, in_inspects_terms("a"):
        raise error
    assert raised.value is error
    assert tool_call_error(error, "bash") is None


def test_loop_of_another_kind_is_refused_before_anything_begins() -> None:
    begun = SkerrySandbox.task_init("task", None)
    with pytest.raises(TaskRefused, match="asyncio"):
        begun.send(None)  # as a loop that is not asyncio's would run it


# --- compose

COMPOSE = """
services:
  default:
    image: python:3.12
    command: tail -f /dev/null
    init: true
    network_mode: none
    working_dir: /srv
    user: nobody
    hostname: box
    mem_limit: 512mb
    cpus: 0.5
    pids_limit: 64
    stop_grace_period: 1s
    environment:
      - A=1
  other:
    build:
      context: .
      dockerfile: Dockerfile
    command: ["sleep", "infinity"]
    environment: {B: "2"}
    deploy: {resources: {limits: {cpus: "2", memory: 1g}}}
    x-default: true
    x-skerry:
      network: [pypi]
      layers: [toolkit/harness]
"""


def test_compose_file_is_mapped_where_a_sandbox_is_the_same(written) -> None:
    written("Dockerfile", "FROM debian:12\n")
    other, first = setup_of(written("compose.yaml", COMPOSE)).wanted
    assert first.options == {
        "image": "python:3.12",
        "workdir": "/srv",
        "user": "nobody",
        "hostname": "box",
        "env": {"A": "1"},
        "cpu": 0.5,
        "memory": "512m",
        "pids": 64,
        "network": (),
    }
    assert other.name == "other"
    assert other.build is not None
    assert other.options == {
        "env": {"B": "2"},
        "cpu": 2.0,
        "memory": "1g",
        "network": ["pypi"],
        "layers": ["toolkit/harness"],
    }


def test_compose_of_a_task_made_in_code_is_taken() -> None:
    config = ComposeConfig.model_validate(
        {"services": {"default": {"image": "a", "network_mode": "none"}}}
    )
    assert setup_of(config).wanted[0].options == {"image": "a", "network": ()}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", r"services\.default\.network_mode: .*whole Internet.*x-skerry"),
        ("network_mode: bridge", "network_mode"),
        ("network_mode: none\n    volumes: ['./a:/a']", r"default\.volumes"),
        ("network_mode: none\n    ports: ['80:80']", r"default\.ports"),
        ("network_mode: none\n    privileged: true", r"default\.privileged"),
        ("network_mode: none\n    cap_add: [SYS_ADMIN]", r"default\.cap_add"),
        ("network_mode: none\n    cap_drop: [ALL]", r"default\.cap_drop"),
        ("network_mode: none\n    read_only: true", r"default\.read_only"),
        ("network_mode: none\n    runtime: nvidia", r"default\.runtime"),
        ("network_mode: none\n    healthcheck: {test: 'true'}", r"default\.healthcheck"),
        ("network_mode: none\n    env_file: .env", r"default\.env_file"),
        ("network_mode: none\n    command: python server.py", r"default\.command.*setup"),
        ("network_mode: none\n    entrypoint: /start.sh", r"default\.entrypoint"),
        ("network_mode: none\n    environment: [HOME]", "HOME has no value"),
        ("network_mode: none\n    working_dir: ${PLACE}", "variables are not replaced"),
        ("network_mode: none\n    mem_reservation: 1g", r"default\.mem_reservation"),
        ("network_mode: none\n    deploy: {resources: {reservations: {cpus: '1'}}}", "reserved"),
        ("network_mode: none\n    build: {context: ., no_cache: true}", r"build\.no_cache"),
        ("network_mode: none\n    x-skerry: {imag: a}", "no option 'imag'"),
        ("network_mode: none\n    unheard_of: 1", "unheard_of"),
    ],
)
def test_what_compose_asks_for_and_a_sandbox_is_not_is_refused(written, lines, said) -> None:
    text = f"services:\n  default:\n    image: a\n    {lines}\n"
    with pytest.raises(TaskRefused, match=said) as error:
        setup_of(written("compose.yaml", text))
    assert "compose.yaml" in str(error.value)


def test_networks_and_volumes_of_a_compose_file_are_refused(written) -> None:
    for name in ("networks", "volumes"):
        text = f"services:\n  default: {{image: a, network_mode: none}}\n{name}:\n  shared: {{}}\n"
        with pytest.raises(TaskRefused, match=name):
            setup_of(written("compose.yaml", text))


def test_examples_of_the_guide_are_sound(written) -> None:
    written("Dockerfile", "FROM debian:12\n")
    text = (Path(__file__).parents[3] / "docs/guide/inspect.md").read_text()
    blocks = re.findall(r"^```(ini|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    made = [
        setup_of(written("skerry.toml" if kind == "ini" else "compose.yaml", block))
        for kind, block in blocks
    ]
    assert [len(setup.wanted) for setup in made] == [1, 2, 1]


def test_inspect_looks_for_our_file_before_those_of_others() -> None:
    files = SkerrySandbox.config_files()
    assert files[0] == "skerry.toml"
    assert files.index("compose.yaml") < files.index("Dockerfile")
    assert SkerrySandbox.is_docker_compatible()
    assert SkerrySandbox.default_concurrency() is None
