"""The layers that a node knows, and making new ones."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import msgspec

from skerry.errors import Bug, InvalidRequest, NotFound, SandboxFailed
from skerry.sdk.bases import ImageSources, find_base
from skerry.sdk.context import Context
from skerry.sdk.ocisource import REGISTRY, parse_oci_source, read_auth
from skerry.sdk.recipe_build import RecipeBuild
from skerry.sdk.sandbox import AsyncSandbox
from skerry.sdk.sandboxes import AsyncSandboxes
from skerry.sdk.stream import events_of
from skerry.sdk.transfer import Progress, file_chunks, pack_tree
from skerry.sdk.transport import Transport
from skerry.sdk.typed import listed
from skerry.spec.layers import (
    CollectReport,
    LayerCheck,
    LayerKind,
    LayerManifest,
    RecordsCheck,
    parse_layer_name,
)
from skerry.spec.limits import parse_bytes
from skerry.spec.recipe_stages import parse_recipe
from skerry.spec.residue import DEFAULT
from skerry.wire.http import DebianBody
from skerry.wire.registry import CollapseBody, PushBody, RegistryBody

Log = Callable[[str], None]


class AsyncImages:
    """Layers of a node's store. Names are `kind/name[:tag]`; without a kind, a base is meant."""

    def __init__(self, transport: Transport, sandboxes: AsyncSandboxes) -> None:
        self._transport = transport
        self._sandboxes = sandboxes

    async def list(self) -> list[LayerManifest]:
        """Returns all layers, sorted by name."""
        return await self._transport.call("GET", "/v1/images", list[LayerManifest], repeatable=True)

    async def inspect(self, name: str) -> LayerManifest:
        """Returns one layer's manifest; raises NotFound."""
        return await self._transport.call("GET", _path(name), LayerManifest, repeatable=True)

    async def remove(self, name: str) -> None:
        """Removes a name, and its bytes once nothing refers to them; Conflict while in use."""
        await self._transport.call("DELETE", _path(name))

    async def pin(self, name: str) -> LayerManifest:
        """Makes what the name stands for now stay, whatever its names do later; NotFound."""
        return await self._transport.call("POST", f"{_path(name)}/pin", LayerManifest)

    async def unpin(self, name: str) -> LayerManifest:
        """Takes a pin back; NotFound if there is none."""
        return await self._transport.call("DELETE", f"{_path(name)}/pin", LayerManifest)

    async def verify(self, name: str, *, remove_damaged: bool = False) -> LayerCheck:
        """Reads all of a layer's bytes in the store again and says what is damaged.

        With `remove_damaged` damaged blobs go, so that making the layer again stores them anew.
        Raises NotFound, StorageFailed if the store cannot be reached.
        """
        params = {"remove": "1"} if remove_damaged else None
        path = f"{_path(name)}/verify"
        return await self._transport.call("POST", path, LayerCheck, params=params)

    async def last_check(self, name: str) -> LayerCheck:
        """Returns what the last check of a layer found, by `verify` or by any node of the store.

        Nodes scrub all layers slowly by themselves. `checked` is "" if parts never were. NotFound.
        """
        return await self._transport.call("GET", f"{_path(name)}/verify", LayerCheck)

    async def verify_records(self) -> RecordsCheck:
        """Reads all records of the store (names, manifests, pins, leases) and says which are damaged.

        Each problem says by name what the record is of, and what to do. A manifest whose name is
        whole is written anew, and told as `mended`. Raises StorageFailed.
        """
        return await self._transport.call("POST", "/v1/store/verify", RecordsCheck)

    async def collect(self, *, dry_run: bool = False) -> CollectReport:
        """Removes the bytes that no name, pin, sandbox or lease needs, and says what stays and why.

        Takes ten seconds or a minute and a half (the grace period of the store); a dry run no time.
        """
        params = {"dry_run": "1"} if dry_run else None
        return await self._transport.call("POST", "/v1/store/collect", CollectReport, params=params)

    async def import_tar(
        self,
        name: str,
        source: str | os.PathLike[str] | BinaryIO,
        *,
        progress: Progress | None = None,
    ) -> LayerManifest:
        """Makes a layer of a tar file (plain, gzip, xz)."""
        if isinstance(source, str | os.PathLike):
            chunks: AsyncIterator[bytes] = file_chunks(Path(source), progress)
        else:
            chunks = _handle_chunks(source, progress)
        return await self._import(name, chunks)

    async def import_directory(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        prefix: str = "/",
        progress: Progress | None = None,
    ) -> LayerManifest:
        """Makes a layer of a local directory's content, placed at `prefix`."""
        return await self._import(name, pack_tree(Path(path), progress, prefix))

    async def import_oci(
        self,
        name: str,
        source: str,
        *,
        platform: str | None = None,
        authfile: str | os.PathLike[str] | None = None,
        tls_verify: bool = True,
        progress: Progress | None = None,
        on_log: Log | None = None,
    ) -> LayerManifest:
        """Makes a layer of an image: `docker://HOST/NAME:TAG`, `oci:DIR[:TAG]`, or an archive.

        `oci-archive:FILE` and `docker-archive:FILE` are such. The node fetches what is in a
        registry, with its progress to `on_log`; the rest is sent there, its bytes told to
        `progress`. `authfile` is like ~/.docker/config.json. Sandboxes take the image's env,
        workdir and user as defaults. Raises RegistryDenied, NotFound, ImageBroken, Unavailable.
        """
        found = parse_oci_source(source)
        if found.reference is not None:
            body = RegistryBody(
                reference=found.reference,
                platform=platform,
                auth=read_auth(authfile),
                tls_verify=tls_verify,
            )
            return await self._made(f"{_path(name)}/registry", body, on_log)
        params = {"kind": "oci"}
        params |= {"tag": found.tag} if found.tag else {}
        params |= {"platform": platform} if platform else {}
        pack = pack_tree if found.path.is_dir() else file_chunks
        chunks = pack(found.path, progress)
        return await self._transport.send(
            "POST", f"{_path(name)}/import", chunks, LayerManifest, params
        )

    async def find(
        self, name: str, sources: ImageSources | None = None, *, on_log: Log | None = None
    ) -> LayerManifest:
        """Returns the base that a name stands for: a layer, or an image as Docker names it.

        If there is none it is fetched, once, from where `sources` allow it. Raises NotFound, and
        what `import_oci` raises.
        """
        given = sources or ImageSources()

        async def fetch(layer: str, source: str) -> LayerManifest:
            auth, verify = given.authfile, given.tls_verify
            return await self.import_oci(
                layer, source, authfile=auth, tls_verify=verify, on_log=on_log
            )

        return await find_base(name, given, self.inspect, fetch)

    async def push(
        self,
        names: str | Sequence[str],
        target: str,
        *,
        authfile: str | os.PathLike[str] | None = None,
        tls_verify: bool = True,
        on_log: Log | None = None,
    ) -> str:
        """Takes layers, composed, to a registry (`docker://HOST/NAME:TAG`); returns the digest there."""
        first, *more = check_names([names] if isinstance(names, str) else names)
        reference = target.removeprefix(REGISTRY)
        if reference == target:
            raise InvalidRequest(f"{target[:200]!r} is no registry: write docker://HOST/NAME:TAG")
        body = PushBody(
            reference=reference,
            layers=tuple(more),
            auth=read_auth(authfile),
            tls_verify=tls_verify,
        )
        chunks = self._transport.receive("POST", f"{_path(first)}/push", body=body)
        async for event in events_of(chunks):
            if event.log is not None and on_log:
                on_log(event.log)
            if event.pushed is not None:
                return event.pushed
        raise Bug("the stream ended without a digest or an error")

    async def collapse(
        self,
        names: Sequence[str],
        into: str,
        *,
        threshold: int | str | None = None,
        scrub: Sequence[str] = (),
        on_log: Log | None = None,
    ) -> LayerManifest:
        """Makes one layer of several that shows the same; deletions stay, but in a base.

        Files beyond `threshold` (3 GiB) make further parts of that layer, each mounted alone. What
        the rules `scrub` match is left out (`skerry.spec.residue`; not `git`).
        """
        size = None if threshold is None else parse_bytes(threshold, "threshold")
        body = CollapseBody(
            layers=tuple(check_names(names)), threshold_bytes=size, scrub=listed("scrub", scrub)
        )
        return await self._made(f"{_path(into)}/collapse", body, on_log)

    async def debian(
        self,
        name: str,
        suite: str,
        packages: Sequence[str] = (),
        *,
        refresh: bool = False,
        on_log: Log | None = None,
    ) -> LayerManifest:
        """Makes a base layer from a Debian suite with the node's own apt configuration."""
        body = DebianBody(suite=suite, packages=tuple(packages), refresh=refresh)
        return await self._made(f"{_path(name)}/debian", body, on_log)

    async def build(
        self,
        name: str,
        *,
        image: str = "debian:12",
        layers: Sequence[str] = (),
        context: str | os.PathLike[str] | None = None,
        context_path: str = "/build",
        steps: Sequence[str],
        workdir: str | None = None,
        env: dict[str, str] | None = None,
        network: Sequence[str] = (),
        keep_context: bool = False,
        memory: int | str = "2GiB",
        timeout: float = 1800.0,  # noqa: ASYNC109 - of each step
        on_log: Log | None = None,
    ) -> LayerManifest:
        """Makes a layer by running shell steps in a sandbox, then committing it.

        They reach nothing but what `network` allows. The context is a local directory put at
        `context_path` before and left out of the layer afterwards unless it is kept. A step that fails
        raises SandboxFailed with its output's end.
        """
        exclude = () if keep_context or context is None else (context_path,)
        async with await self._sandboxes.create(
            image=image, layers=layers, memory=memory, cpu=2, pids=2048, env=env, network=network
        ) as sandbox:
            if context is not None:
                await sandbox.files.mkdir(context_path, parents=True)
                await sandbox.files.upload(context, context_path)
            for step in steps:
                if on_log:
                    on_log(f"$ {step}")
                result = await sandbox.run(
                    step,
                    cwd=workdir or (context_path if context is not None else None),
                    timeout=timeout,
                )
                if on_log:
                    for line in (result.text + result.error_text).splitlines():
                        on_log(line)
                if not result.ok:
                    # With a listener the output has been shown already, line by line.
                    tail = "" if on_log else "\n" + (result.text + result.error_text)[-2000:]
                    why = result.start_error or f"status {result.exit_code}"
                    raise SandboxFailed(f"building {name}: the step {step!r} failed ({why}){tail}")
            return await sandbox.commit(name, exclude=exclude)

    async def build_recipe(
        self,
        name: str,
        recipe: str,
        *,
        context: str | os.PathLike[str] | None = None,
        args: dict[str, str] | None = None,
        network: Sequence[str] = ("build",),
        cpu: float = 2,
        memory: int | str = "4GiB",
        timeout: float = 1800.0,  # noqa: ASYNC109 - of each step
        cache: bool = True,
        sources: ImageSources | None = None,
        on_log: Log | None = None,
    ) -> LayerManifest:
        """Makes a layer by a recipe in the Dockerfile language (`skerry.spec.recipe` says what of it).

        Each RUN and COPY runs in a sandbox, its layer kept in `workspace/build-cache`, and is not run
        again while nothing before it has changed. The layer holds what all of them changed on FROM,
        scrubbed as a commit is; as a base/ it holds FROM too. One that there is and that was made of
        the very same is returned as it is. `network` is what steps may reach: by default what the
        operator lets builds reach. FROM is found as `find` does it. SandboxFailed names the line
        that failed.
        """
        parsed = parse_recipe(recipe, args)
        place = None if context is None else Context(context)

        async def create(image: str, layers: Sequence[str]) -> AsyncSandbox:
            return await self._sandboxes.create(
                image=image, layers=layers, network=network, cpu=cpu, memory=memory, pids=4096
            )

        async def find(base: str) -> LayerManifest:
            return await self.find(base, sources, on_log=on_log)

        log = on_log or _silent
        steps = RecipeBuild(self, find, create, log, timeout_s=timeout, use_cache=cache)
        built = await steps.run(parsed, place)
        if cache and (found := await self._same(name, built.key)) is not None:
            return found
        base = parse_layer_name(name, LayerKind.BASE).kind is LayerKind.BASE
        body = CollapseBody(
            layers=(built.base, *built.layers) if base else built.layers,
            scrub=DEFAULT,
            config=built.config,
            recipe={"recipe": recipe, "base": built.base, "key": built.key},
        )
        return await self._made(f"{_path(name)}/collapse", body, on_log)

    async def _same(self, name: str, key: str) -> LayerManifest | None:
        """Returns the layer of that name if a recipe with this key made it."""
        try:
            found = await self.inspect(name)
        except NotFound:
            return None
        return found if found.recipe.get("key") == key else None

    async def _made(self, path: str, body: msgspec.Struct, on_log: Log | None) -> LayerManifest:
        """Returns what long work makes, its lines told as they come."""
        chunks = self._transport.receive("POST", path, body=body)
        async for event in events_of(chunks):
            if event.log is not None and on_log:
                on_log(event.log)
            if event.manifest is not None:
                return event.manifest
        raise Bug("the stream ended without a manifest or an error")

    async def _import(self, name: str, chunks: AsyncIterator[bytes]) -> LayerManifest:
        params = {"kind": "tar"}
        return await self._transport.send(
            "POST", f"{_path(name)}/import", chunks, LayerManifest, params
        )


def _silent(_line: str) -> None:
    pass


def check_names(names: Sequence[str]) -> Sequence[str]:
    """Returns names of layers if they are some; raises InvalidRequest."""
    if isinstance(names, str) or not names:
        raise InvalidRequest(f"layers: {names!r} is no list of names")
    return names


def _path(name: str) -> str:
    parsed = parse_layer_name(name, LayerKind.BASE)
    return "/v1/images/" + quote(str(parsed), safe="/:@")


async def _handle_chunks(source: BinaryIO, progress: Progress | None) -> AsyncIterator[bytes]:
    while chunk := source.read(256 * 1024):
        if progress:
            progress(len(chunk))
        yield chunk
