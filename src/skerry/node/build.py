"""Puts a node together. Reads as a list of its parts; nothing is started here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata

from skerry.backends import registry
from skerry.backends.api import Attended, Backend
from skerry.density.pressure import Pressure, places
from skerry.images.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.local import LocalLayers
from skerry.images.store import DirectoryStore
from skerry.node import registry as nodes
from skerry.node.admission.doors import Admission
from skerry.node.clock import Clock, SystemClock
from skerry.node.commands.outputs import Outputs
from skerry.node.commands.results import Results
from skerry.node.config import NodeConfig
from skerry.node.gauges.loopwatch import LoopWatch
from skerry.node.gauges.readings import Host, Readings
from skerry.node.identity import Identity, claim
from skerry.node.images import Images, Library
from skerry.node.ledger import Ledger
from skerry.node.life.owners import Owners
from skerry.node.life.sandboxes import Sandboxes
from skerry.node.network import Networks
from skerry.node.node import Node
from skerry.node.parts import Parts
from skerry.node.tasks import Tasks
from skerry.node.timers import Timers
from skerry.trajectory.journal import Journal

log = logging.getLogger("skerry.node")


def build_node(
    config: NodeConfig,
    *,
    clock: Clock | None = None,
    backends: Mapping[str, Backend] | None = None,
    library: Library | None = None,
    host: Callable[[], Readings] | None = None,
    networks: Networks | None = None,
) -> Node:
    """Returns a node that holds the lock of its state directory.

    Tests give parts of their own. Raises Conflict if another daemon has the state directory,
    StorageFailed if it cannot be used.
    """
    config.check()
    limits = config.limits
    clock = clock or SystemClock()
    # All must be there when the launcher starts: it binds them.
    for path in (config.state_dir, config.run_dir, config.store_dir, _local_layers(config)):
        os.makedirs(path, mode=0o700, exist_ok=True)
    identity = claim(config.state_dir, config.socket_path)
    try:
        nodes.enter(config.registry_dir, identity.name, config)
        journal = _journal(config, clock)
        found = backends if backends is not None else _backends(config, identity)
        library = library or _library(config)
    except BaseException:
        identity.release()
        raise

    timers = Timers(clock)
    loop_watch = LoopWatch()
    sandboxes = Sandboxes(identity.name)
    return Node(
        Parts(
            config=config,
            clock=clock,
            identity=identity,
            tasks=Tasks(),
            timers=timers,
            ledger=Ledger(journal),
            networks=networks or Networks(config.network, clock),
            outputs=Outputs(os.path.join(config.state_dir, "spool")),
            results=Results(limits.results_memory_bytes_max),
            admission=Admission(
                limits,
                clock,
                timers,
                host or Host(config.state_dir, lambda: _daemons(found)),
                pressure=Pressure(config.pressure, _pressure_places()),
                lag=loop_watch.lag,
                weights=config.weights,
            ),
            loop_watch=loop_watch,
            sandboxes=sandboxes,
            owners=Owners(
                timers,
                lease_s=config.lease_s,
                owners_max=limits.owners_max,
                required=config.embedded,
            ),
            images=Images(
                library, clock, threads_max=limits.image_threads_max, in_use=sandboxes.digests
            ),
            backends=found,
            version=_version(),
        )
    )


def _journal(config: NodeConfig, clock: Clock) -> Journal:
    path = os.path.join(config.state_dir, "journal")
    journal = Journal.open(path, now_ns=lambda: int(clock.wall() * 1e9))
    for problem in journal.problems:
        log.warning("journal: %s", problem)
    return journal


def _version() -> str:
    """Returns the installed version; the package itself is not asked: it imports the client."""
    try:
        return metadata.version("skerry")
    except metadata.PackageNotFoundError:
        return "0+uninstalled"


def _daemons(backends: Mapping[str, Backend]) -> list[tuple[str, int]]:
    """Returns the processes of the backends whose descriptors are watched."""
    named: Iterable[object] = backends.values()
    return [daemon for one in named if isinstance(one, Attended) for daemon in one.daemons()]


def _pressure_places() -> tuple[str, ...]:
    """Returns where pressure is read: the host, and this process's own group if it is in one."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            own = file.read()
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            mounts = [line.split() for line in file if " - cgroup2 " in line]
    except OSError:
        return places("", None)
    return places(own, mounts[0][4] if mounts else None)


def _backends(config: NodeConfig, identity: Identity) -> dict[str, Backend]:
    """Returns the configured backends, each with directories of its own."""
    return {
        name: registry.load(
            name,
            state_dir=os.path.join(config.state_dir, name),
            run_dir=os.path.join(config.run_dir, name),
            node=identity.name,
            layer_dirs=(config.store_dir, _local_layers(config)),
            orphan_after_s=config.orphans_end_after_s,
            **config.backend_options.get(name, {}),
        )
        for name in config.backends
    }


def _library(config: NodeConfig) -> Library:
    return ImageLibrary(
        DirectoryStore(config.store_dir),
        Tools(config.cache_dir),
        os.path.join(config.store_dir, "scratch"),
        local=LocalLayers(_local_layers(config)),
    )


def _local_layers(config: NodeConfig) -> str:
    return os.path.join(config.state_dir, "layers")
