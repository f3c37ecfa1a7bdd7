"""Puts a node together. Reads as a list of its parts; nothing is started here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import NamedTuple

from skerry.backends import registry
from skerry.backends.api import Attended, Backend, Lazy
from skerry.density.pressure import Pressure, places
from skerry.images.format.chunks import Codec
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.objects.api import Objects
from skerry.images.objects.s3 import S3Objects
from skerry.images.oci.images import OciImages
from skerry.images.store.leases import Leases, Timing
from skerry.images.store.local import LocalLayers
from skerry.images.store.patrol import Patrol
from skerry.images.store.store import DirectoryStore, LayerStore
from skerry.node import registry as nodes
from skerry.node.admission.doors import Admission
from skerry.node.blobs import Blobs, lazy_config
from skerry.node.clock import Clock, SystemClock
from skerry.node.commands.outputs import Outputs
from skerry.node.commands.results import Results
from skerry.node.config import NodeConfig
from skerry.node.gauges.loopwatch import LoopWatch
from skerry.node.gauges.readings import Host, Readings
from skerry.node.identity import Identity, claim
from skerry.node.images import Images
from skerry.node.imports import Imports, Oci
from skerry.node.jobs.jobs import Jobs
from skerry.node.keeper import LEASE_S, RENEW_S, Keeper
from skerry.node.library import Library
from skerry.node.life.owners import Owners
from skerry.node.life.sandboxes import Sandboxes
from skerry.node.network import Networks
from skerry.node.node import Node
from skerry.node.parts import Parts
from skerry.node.scrubber import Scrubber
from skerry.node.tasks import Tasks
from skerry.node.timers import Timers
from skerry.node.trail.records import Records, open_records
from skerry.node.trajectories import Trajectories
from skerry.node.workers.uplinks import Uplinks
from skerry.node.workers.workers import Workers
from skerry.trajectory.format.store import Store
from skerry.trajectory.reading.archive import Archive
from skerry.trajectory.reading.sources import Directory, Late

log = logging.getLogger("skerry.node")


def build_node(
    config: NodeConfig,
    *,
    clock: Clock | None = None,
    backends: Mapping[str, Backend] | None = None,
    library: Library | None = None,
    oci: Oci | None = None,
    host: Callable[[], Readings] | None = None,
    networks: Networks | None = None,
    shared: Store | None = None,
) -> Node:
    """Returns a node that holds the lock of its state directory.

    Tests give parts of their own; `shared` is where trajectories are shipped to, else that is the
    layer store. Raises Conflict if another daemon has the state directory, StorageFailed if it
    cannot be used.
    """
    config.check()
    clock = clock or SystemClock()
    place = _open_place(config, clock, backends, library, shared)
    identity, tasks, records, kept = place.identity, place.tasks, place.records, place.kept

    timers = Timers(clock)
    loop_watch = LoopWatch()
    sandboxes = Sandboxes(identity.name)
    images = _images(config, place.library, clock, sandboxes)
    return Node(
        Parts(
            config=config,
            clock=clock,
            identity=identity,
            tasks=tasks,
            timers=timers,
            ledger=records.ledger,
            trail=records.trail,
            shipping=records.shipping,
            networks=networks or Networks(config.network, clock),
            uplinks=_uplinks(config, clock, tasks),
            outputs=Outputs(os.path.join(config.state_dir, "spool")),
            results=Results(config.limits.results_memory_bytes_max),
            admission=_admission(
                config, clock, timers, host or _host(config, place.backends), loop_watch
            ),
            loop_watch=loop_watch,
            sandboxes=sandboxes,
            owners=_owners(config, timers),
            jobs=Jobs(clock, timers, records.ledger, config.limits),
            images=images,
            imports=_imports(config, images, kept, oci),
            keeper=_keeper(config, clock, kept, sandboxes),
            trajectories=_trajectories(config, identity.name, place.store, clock),
            scrubber=Scrubber(_patrol(config, kept), sandboxes, clock),
            blobs=_blobs(config, identity.name, place.backends, kept),
            backends=place.backends,
            version=_version(),
        )
    )


class _Place(NamedTuple):
    """What a node has of its host, once its state directory is its own."""

    identity: Identity
    backends: Mapping[str, Backend]
    library: Library
    kept: ImageLibrary | None  # the library, where it is this node's own
    tasks: Tasks
    store: Callable[[], Store] | None  # for trajectories
    records: Records


def _open_place(
    config: NodeConfig,
    clock: Clock,
    backends: Mapping[str, Backend] | None,
    library: Library | None,
    shared: Store | None,
) -> _Place:
    """Claims the state directory and opens what lies there; else it is nobody's again."""
    _directories(config)
    identity = claim(config.state_dir, config.socket_path)
    try:
        nodes.enter(config.registry_dir, identity.name, config)
        found = backends if backends is not None else _backends(config, identity)
        kept = None
        if library is None:
            kept = library = _library(config, identity.name)
        store = (lambda: shared) if shared is not None else _objects(kept)
        records = _records(config, identity.name, clock, store)
        return _Place(identity, found, library, kept, Tasks(), store, records)
    except BaseException:
        identity.release()
        raise


def _owners(config: NodeConfig, timers: Timers) -> Owners:
    most = config.limits.owners_max
    return Owners(timers, lease_s=config.lease_s, owners_max=most, required=config.embedded)


def _host(config: NodeConfig, backends: Mapping[str, Backend]) -> Host:
    return Host(config.state_dir, lambda: _daemons(backends))


def _records(
    config: NodeConfig,
    name: str,
    clock: Clock,
    store: Callable[[], Store] | None,
) -> Records:
    options = config.trajectory
    return open_records(config.state_dir, options, clock, node=name, store=store)


def _directories(config: NodeConfig) -> None:
    """Makes what must be there when the launcher starts: it binds them."""
    for path in (config.state_dir, config.run_dir, *_layer_dirs(config)):
        os.makedirs(path, mode=0o700, exist_ok=True)


def _uplinks(config: NodeConfig, clock: Clock, tasks: Tasks) -> Uplinks:
    workers = Workers(
        config.workers,
        state_dir=config.state_dir,
        run_dir=config.run_dir,
        node_socket=config.socket_path,
        orphan_after_s=config.orphans_end_after_s,
    )
    return Uplinks(workers, clock, tasks, proxy_port=config.network.port)


def _images(config: NodeConfig, library: Library, clock: Clock, sandboxes: Sandboxes) -> Images:
    return Images(
        library,
        clock,
        threads_max=config.limits.image_threads_max,
        plan_s_max=config.limits.plan_s_max,
        in_use=sandboxes.digests,
    )


def _admission(
    config: NodeConfig,
    clock: Clock,
    timers: Timers,
    host: Callable[[], Readings],
    loop_watch: LoopWatch,
) -> Admission:
    return Admission(
        config.limits,
        clock,
        timers,
        host,
        pressure=Pressure(config.pressure, _pressure_places()),
        lag=loop_watch.lag,
        weights=config.weights,
    )


def _keeper(
    config: NodeConfig, clock: Clock, kept: ImageLibrary | None, sandboxes: Sandboxes
) -> Keeper:
    leases = kept.store.leases if kept else None
    return Keeper(
        leases,
        kept,
        sandboxes.digests,
        clock,
        collect_every_s=config.collect_every_s,
        # Not at once: until then the lease names what was in use a moment ago.
        collect_after_s=leases.timing.linger_s + 5.0 if leases else 0.0,
        hurry=kept.store.hurry if kept else None,
        counts=kept.store.counts if kept else dict,
    )


def _patrol(config: NodeConfig, kept: ImageLibrary | None) -> Patrol | None:
    if kept is None:
        return None
    return Patrol(
        kept.store,
        kept.suspects,
        every_s=config.scrub_every_s,
        bytes_per_s=config.scrub_bytes_per_s,
    )


def _imports(
    config: NodeConfig, images: Images, kept: ImageLibrary | None, oci: Oci | None
) -> Imports:
    if kept is not None:
        cache = config.registry_cache_dir or os.path.join(config.cache_dir, "oci")
        oci = OciImages(kept, cache, cache_bytes=config.registry_cache_bytes)
    threads_max = config.limits.image_threads_max
    return Imports(oci, images, threads_max=threads_max, auth_file=config.registry_auth_file)


def _blobs(
    config: NodeConfig, name: str, backends: Mapping[str, Backend], kept: ImageLibrary | None
) -> Blobs | None:
    """Returns what serves verified mounts; also if only sandboxes of an earlier run have such."""
    lazy = lazy_config(config, _local_layers(config))
    if not config.verified and not os.path.exists(lazy.socket):
        return None
    for backend in backends.values():
        if isinstance(backend, Lazy):
            log_path = os.path.join(config.state_dir, "blobs.log")
            return Blobs(
                lazy,
                backend,
                node=name,
                log_path=log_path,
                add_profile=kept.add_profile if kept else None,
                prepare=kept.check_lists if kept else lambda: None,
            )
    return None


def _objects(kept: ImageLibrary | None) -> Callable[[], Store] | None:
    """Returns what gives the objects of the layer store: one that is away may be back later."""
    if kept is None:
        return None
    layers = kept.store
    return lambda: layers.objects


def _trajectories(
    config: NodeConfig, name: str, store: Callable[[], Store] | None, clock: Clock
) -> Trajectories:
    def archive(breathe: Callable[[], None]) -> Archive:
        return Archive(
            Directory(os.path.join(config.state_dir, "journal"), name),
            Late(store) if store is not None else None,
            clock.monotonic,
            own_blobs=os.path.join(config.state_dir, "trajectory", "blobs"),
            breathe=breathe,
        )

    return Trajectories(archive)


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
            layer_dirs=_layer_dirs(config),
            orphan_after_s=config.orphans_end_after_s,
            **config.backend_options.get(name, {}),
        )
        for name in config.backends
    }


def _library(config: NodeConfig, node: str) -> ImageLibrary:
    store = _store(config, node)
    # On a disk of this host: on a shared one nobody could tell whose scratch was left behind.
    scratch = os.path.join(config.state_dir, "scratch")
    # In a bucket no kernel reads the bytes in place: there they may as well be short (ADR 0012).
    codec = Codec.ZSTD if config.store else Codec.NONE
    return ImageLibrary(
        store,
        Tools(config.cache_dir),
        scratch,
        codec=codec,
        local=LocalLayers(_local_layers(config)),
        verified=config.verified,
    )


def _store(config: NodeConfig, node: str) -> LayerStore:
    if not config.store:
        return DirectoryStore(config.store_dir, leases=lambda objects: _leases(objects, node))
    objects = S3Objects(config.store, config.s3)
    return LayerStore(objects, _leases(objects, node))


def _layer_dirs(config: NodeConfig) -> tuple[str, ...]:
    """Returns where the launcher mounts layers from."""
    local = _local_layers(config)
    return (local,) if config.store else (config.store_dir, local)


def _local_layers(config: NodeConfig) -> str:
    return os.path.join(config.state_dir, "layers")


def _leases(objects: Objects, node: str) -> Leases:
    return Leases(objects, node, Timing.of(objects, ttl_s=LEASE_S, renew_s=RENEW_S))
