"""`skerry node`: a node in the foreground. The only place where its configuration is read."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skerry.cli.app import App, Settings
from skerry.cli.group import SkerryCommand
from skerry.cli.secrets import cache_home
from skerry.errors import Conflict, InvalidRequest, NotFound

if TYPE_CHECKING:
    from skerry.node.config import NodeConfig

STUCK_S = 10.0  # threads that are about to end have that long
ALREADY_RUNNING = 75  # EX_TEMPFAIL: another node has the state directory; use that one


@click.command(cls=SkerryCommand)
@click.option("--embedded", is_flag=True, help="End with the last client that uses it.")
@click.option("--listen", metavar="HOST:PORT", help="Serve TCP too; needs --token-file.")
@click.option("--token-file", metavar="FILE", help="Tokens that are accepted, one a line.")
@click.option("--config", metavar="FILE", help="TOML file; keys as in docs/guide/cli.md.")
@click.option("--state", metavar="DIR", help="State directory [/var/lib/skerry].")
@click.option("--run", "run_dir", metavar="DIR", help="Run directory [/run/skerry].")
@click.option("--log", "log_file", metavar="FILE", help="Log there, in bounded size [stderr].")
@click.option("--zram", metavar="SIZE", help="Make compressed swap of that size, as 4GiB.")
@click.option("--name", metavar="NAME", help="Five characters of a-z2-7 [drawn once].")
@click.pass_obj
def node(
    app: App,
    /,
    *,
    embedded: bool,
    listen: str | None,
    token_file: str | None,
    config: str | None,
    state: str | None,
    run_dir: str | None,
    log_file: str | None,
    zram: str | None,
    name: str | None,
) -> int:
    """Run a node in the foreground, until SIGTERM or Ctrl-C.

    Its sandboxes outlive it and are taken over by the next start. Exit status 75: another node has
    the state directory.
    """
    settings = Settings(
        state_dir=state or app.settings.state_dir, run_dir=run_dir or app.settings.run_dir
    )
    content = read_config(config) if config else {}
    made = node_config(
        settings,
        content,
        given={
            "embedded": embedded or None,
            "tcp": listen,
            "tokens": read_tokens(token_file) if token_file else None,
            "log_file": os.path.abspath(log_file) if log_file else None,
            "zram": zram,
        },
    )
    from skerry.cli.log import start_logging

    start_logging(quiet=app.quiet, log_format=made.log_format, log_file=made.log_file)
    if name is not None:
        claim_name(made.state_dir, name)
    if made.log_format != "json":  # where every line is an object, this one is none
        app.note(f"node on {made.socket_path}" + (f" and {made.tcp}" if made.tcp else ""))
    try:
        run_node(made)
    except Conflict as error:
        app.warn(error.message)
        return ALREADY_RUNNING
    return 0


def run_node(config: NodeConfig) -> None:
    """Serves until the node ends; the loop is uvloop's, about twice as fast for many sandboxes."""
    import asyncio
    import gc

    import uvloop

    from skerry.cli.heap import bound_heap
    from skerry.node.main import serve

    bound_heap()
    gc.freeze()  # code is never garbage, and looking through it stops the loop for 10 ms
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config))
        leave_stuck_threads()


def leave_stuck_threads() -> None:
    """Ends this process soon, even if threads wait for a file system that does not answer.

    All that has to be kept is written by now; Python would wait for those threads for ever.
    """
    import threading

    watchdog = threading.Timer(STUCK_S, os._exit, (0,))
    watchdog.daemon = True
    watchdog.start()


def read_config(path: str) -> dict[str, Any]:
    """Returns the content of a TOML file; InvalidRequest if it is none."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError as error:
        raise NotFound(f"there is no configuration file {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from error


def node_config(settings: Settings, content: dict[str, Any], given: dict[str, Any]) -> NodeConfig:
    """Returns the checked configuration: defaults, then the file, then what was given as options."""
    import msgspec

    from skerry.backends.devices.listed import DevicesConfig, ListedDevice
    from skerry.density.idle import IdleMarks
    from skerry.density.pressure import Marks
    from skerry.images.lazy.options import LazyOptions
    from skerry.images.objects.s3_options import S3Options, is_s3
    from skerry.network.services import NetworkConfig, Service
    from skerry.node.config import Limits, NodeConfig
    from skerry.node.functions.options import FunctionsConfig
    from skerry.node.registry import DIRECTORY
    from skerry.node.workers.options import WorkersConfig
    from skerry.trajectory.options import TrajectoryOptions

    refuse_unknown(content, NodeConfig, "")
    refuse_unknown(content.get("limits", {}), Limits, "limits.")
    refuse_unknown(content.get("pressure", {}), Marks, "pressure.")
    refuse_unknown(content.get("idle_reclaim", {}), IdleMarks, "idle_reclaim.")
    refuse_unknown(content.get("s3", {}), S3Options, "s3.")
    refuse_unknown(content.get("workers", {}), WorkersConfig, "workers.")
    refuse_unknown(content.get("functions", {}), FunctionsConfig, "functions.")
    refuse_unknown(content.get("trajectory", {}), TrajectoryOptions, "trajectory.")
    lazy = content.get("lazy", {})
    refuse_unknown(lazy, LazyOptions, "lazy.")
    for table in ("fetch", "server", "profile"):
        refuse_unknown(lazy.get(table, {}), type(getattr(LazyOptions(), table)), f"lazy.{table}.")
    devices = content.get("devices", {})
    refuse_unknown(devices, DevicesConfig, "devices.")
    for listed in devices.get("listed", ()):
        refuse_unknown(listed, ListedDevice, "devices.listed.")
    network = content.get("network", {})
    refuse_unknown(network, NetworkConfig, "network.")
    services = network.get("services", {})
    for word in services if isinstance(services, dict) else ():
        refuse_unknown(services[word], Service, f"network.services.{word}.")
    values: dict[str, Any] = {
        "state_dir": settings.state,
        "run_dir": settings.run,
        "store_dir": os.path.join(settings.state, "store"),
        "cache_dir": cache_home(),
        "registry_dir": DIRECTORY,
    }
    if settings.state_dir is None and "state_dir" in content and "store_dir" not in content:
        values["store_dir"] = os.path.join(str(content["state_dir"]), "store")
    values |= content
    if not is_s3(str(values.get("store", "")) or "/"):
        if "store_dir" in content and "store" in content:
            raise InvalidRequest("configuration: store and store_dir both name the layer store")
        values["store_dir"] = values.pop("store", "") or values["store_dir"]
    if settings.state_dir is not None:
        values["state_dir"] = settings.state
    if settings.run_dir is not None:
        values["run_dir"] = settings.run
    values |= {key: value for key, value in given.items() if value is not None}
    try:
        return msgspec.convert(values, NodeConfig).check()
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"configuration: {error}") from error


def refuse_unknown(content: Any, known: type, prefix: str) -> None:
    """Raises InvalidRequest if a table has a key that the dataclass has not."""
    if not isinstance(content, dict):
        raise InvalidRequest(f"configuration: {prefix.rstrip('.')} must be a table")
    names = {item.name for item in dataclasses.fields(known)}
    if unknown := sorted(set(content) - names):
        raise InvalidRequest(
            f"configuration: unknown: {', '.join(prefix + key for key in unknown)}",
            hint=f"known: {', '.join(sorted(names))}",
        )


def read_tokens(path: str) -> tuple[str, ...]:
    """Returns the tokens of a file, one a line; blank lines and lines with # are left out."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except FileNotFoundError as error:
        raise NotFound(f"there is no token file {path}") from error
    tokens = tuple(
        line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")
    )
    if not tokens:
        raise InvalidRequest(f"{path} holds no token")
    return tokens


def claim_name(state_dir: str, name: str) -> None:
    """Gives a new state directory its node's name; Conflict if it has another one already."""
    if re.fullmatch(r"[a-z2-7]{5}", name) is None:
        raise InvalidRequest(f"--name: {name!r} is not five characters of a-z and 2-7")
    path = os.path.join(state_dir, "name")
    try:
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        with open(path, "x", encoding="ascii") as file:
            file.write(name + "\n")
    except FileExistsError:
        there = Path(path).read_text("ascii", "replace").strip()
        if there != name:
            raise Conflict(f"{state_dir} belongs to the node {there}, not {name}") from None
