"""The environment: one sandbox a trial, and one more for a verifier that wants its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.environments.definition import (
    require_agent_environment_definition,
    should_use_prebuilt_docker_image,
)
from harbor.models.task.config import NetworkMode, NetworkPolicy

from skerry.compat.harbor.faults import Trial
from skerry.compat.harbor.images import Build, Image, Images, layer_name, making, reject_compose
from skerry.compat.harbor.network import entries_of
from skerry.compat.harbor.options import SkerryOptions
from skerry.compat.harbor.results import OUTPUT_LIMIT, chunked, result_of
from skerry.compat.outcome import is_of_platform
from skerry.errors import FileRefused, InvalidRequest, NotFound, SkerryError
from skerry.sdk.bases import ImageSources
from skerry.sdk.client import AsyncClient, connect
from skerry.sdk.sandbox import AsyncSandbox
from skerry.sdk.sync import connect as connect_sync
from skerry.spec.files import FileType

ROOT = "root"  # for whom files are put and fetched, whoever the image's user is
STOP_S = 120.0
ANSWERS_WITHIN_S = 5.0


class SkerryEnvironment(BaseEnvironment):
    """A sandbox on a Skerry node, found by SKERRY_URL and SKERRY_TOKEN, options, or on this machine.

    Failures of the platform are RuntimeRequestError: such a trial is not graded. Images that cannot be
    made are SandboxBuildFailedError.
    """

    options_model = SkerryOptions

    @staticmethod
    def type() -> str:
        """Returns what records call it."""
        return "skerry"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._trial = Trial(self.trial_paths)
        self._client: AsyncClient | None = None
        self._made: AsyncSandbox | None = None
        for mount in self._host_mounts:
            _check_mount(mount)

    # --- what there is

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What is enforced: names, and nothing by address (the proxy checks names)."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            dynamic_network_policy=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Limits hold; nothing is set aside for one sandbox, so requests cannot be promised."""
        return EnvironmentResourceCapabilities(
            cpu_limit=True, memory_limit=True, fractional_cpus=True
        )

    @classmethod
    def parse_options(cls, kwargs: dict[str, Any] | None = None) -> Any:
        """Returns the options; ValueError for an unknown one names those there are."""
        try:
            return super().parse_options(kwargs)
        except ValueError as error:
            known = ", ".join(SkerryOptions.model_fields)
            raise ValueError(f"{error}\nOptions of Skerry: {known}.") from None

    @classmethod
    def preflight(cls, kwargs: dict[str, Any] | None = None) -> None:
        """Asks the node once before any trial; SystemExit says why it cannot be used."""
        options = cls.parse_options(kwargs)
        try:
            with connect_sync(options.url, options.token) as client:
                client.health()
                client.sandboxes.list(key="harbor-preflight")  # health needs no token
        except SkerryError as error:
            raise SystemExit(f"Skerry: {error}") from error

    def _validate_definition(self) -> None:
        require_agent_environment_definition(
            self.environment_dir, docker_image=self.task_env_config.docker_image
        )

    def validate_network_policy_support(self, network_policy: Any = None) -> None:
        """Raises ValueError or InvalidRequest for a policy that no node could enforce."""
        super().validate_network_policy_support(network_policy)
        entries_of(network_policy or self._network_policy, self.options.public)

    async def _apply_network_policy(self, network_policy: Any) -> None:
        async with self._judged("changing the network policy"):
            await self._sandbox.set_network(entries_of(network_policy, self.options.public))

    # --- its life

    async def start(self, force_build: bool) -> None:
        """Makes the sandbox, on its image, which is built first if need be."""
        reject_compose(self.environment_dir)
        with self._trial.judged("starting"):
            client = connect(self.options.url, self.options.token)
            self._client = await client.__aenter__()
            try:
                await self._make(self._client, force_build)
            except BaseException:
                await asyncio.shield(self._end(delete=True))
                raise
        await self._prepare()

    async def _make(self, client: AsyncClient, force_build: bool) -> None:
        options = self.options
        sources = ImageSources(options.images, options.registries, authfile=options.authfile)
        images = Images(client, sources, self.logger.debug)
        image = await self._image(images, force_build)
        mounts = [
            await images.mounted(Path(mount["source"]), mount["target"])
            for mount in self._host_mounts
        ]
        with making("the sandbox"):
            self._made = await self._create(client, image, mounts)
        self.logger.debug("Skerry sandbox %s", self._made.id)

    async def _create(self, client: AsyncClient, image: Image, mounts: list[str]) -> AsyncSandbox:
        options = self.options
        return await client.sandboxes.create(
            options.backend,
            image=image.image,
            layers=(*image.layers, *mounts, *options.layers),
            readonly=[mount["target"] for mount in self._host_mounts],
            workdir=self.task_env_config.workdir or image.workdir,
            network=entries_of(self._network_policy, options.public),
            labels=options.labels | self._labels(),
            wait=self.task_env_config.build_timeout_sec,
            pids=options.pids,
            nofile=options.nofile,
            cpu_class=options.cpu_class,
            idle_timeout=options.idle_timeout,
            ttl=options.ttl,
            priority=options.priority,
            durability=options.durability,
            **self._limits(),
        )

    async def _image(self, images: Images, force_build: bool) -> Image:
        named = self.task_env_config.docker_image
        if should_use_prebuilt_docker_image(
            self.environment_dir, docker_image=named, force_build=force_build
        ):
            return await images.named(named)
        build = Build(
            network=entries_of(NetworkPolicy(network_mode=NetworkMode.PUBLIC), self.options.public),
            cpu=max(2.0, float(self._effective_cpus or 0)),
            memory=self._limits()["memory"],
            timeout_s=self.task_env_config.build_timeout_sec,
            forced=force_build,
        )
        name = layer_name(self.environment_name, self.environment_id)
        return await images.built(self.environment_dir, name, build)

    def _limits(self) -> dict[str, Any]:
        memory, storage = self._effective_memory_mb, self._effective_storage_mb
        return {
            "cpu": float(self._effective_cpus or self.options.cpu),
            "memory": f"{memory}MiB" if memory else self.options.memory,
            "disk": f"{storage}MiB" if storage else self.options.disk,
        }

    def _labels(self) -> dict[str, str]:
        labels = {"harness": "harbor", "task": self.environment_name, "trial": self.session_id}
        if self.context_id is not None:
            labels["context"] = str(self.context_id)
        return {name: value[:256] for name, value in labels.items()}

    async def _prepare(self) -> None:
        if workdir := self.task_env_config.workdir:
            async with self._judged("making the working directory"):
                await self._sandbox.files.mkdir(workdir, parents=True, user=ROOT)
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Removes the sandbox; with `delete=False` it stands still until its idle timeout.

        One that cannot be removed now is told in the log, and ends by its idle timeout: the trial's
        result stands.
        """
        sandbox = self._made
        try:
            await self._end(delete=delete)
        except (SkerryError, TimeoutError) as error:
            self.logger.warning("Skerry sandbox %s could not be removed: %s", sandbox, error)

    async def _end(self, *, delete: bool) -> None:
        sandbox, self._made = self._made, None
        client, self._client = self._client, None
        try:
            if sandbox is None:
                return
            async with asyncio.timeout(STOP_S):
                if delete:
                    with contextlib.suppress(NotFound):
                        await sandbox.destroy()
                else:
                    await sandbox.pause()
                    self.logger.info("kept: skerry shell %s; skerry rm %s", sandbox.id, sandbox.id)
        finally:
            if client is not None:
                await client.__aexit__(None, None, None)

    @property
    def _sandbox(self) -> AsyncSandbox:
        if self._made is None:
            raise RuntimeError("The sandbox is not there: start the environment first.")
        return self._made

    async def attach(self) -> None:
        """Becomes a terminal in the sandbox."""
        for name, value in (("SKERRY_URL", self.options.url), ("SKERRY_TOKEN", self.options.token)):
            if value:
                os.environ[name] = value
        argv = [sys.executable, "-m", "skerry.cli.main", "shell", self._sandbox.id]
        os.execv(sys.executable, argv)  # noqa: S606 - the terminal takes the place of this process

    @contextlib.asynccontextmanager
    async def _judged(self, what: str) -> AsyncIterator[None]:
        """Faults of the platform in the block are told; so is one that an agent's time ran out by.

        Harbor grades an agent that took too long. One that waited for a node which does not answer
        did not.
        """
        try:
            with self._trial.judged(what):
                yield
        except asyncio.CancelledError:
            try:
                async with asyncio.timeout(ANSWERS_WITHIN_S):
                    if self._client is not None:
                        await self._client.health()
            except (SkerryError, TimeoutError):
                self.logger.warning("%s: given up, and the node does not answer", what)
                self._trial.failed(f"{what}: the node did not answer when it was given up")
            raise

    # --- files

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Puts a local file there, root's, with its mode."""
        async with self._judged(f"uploading {target_path}"):
            await self._sandbox.files.upload(source_path, str(target_path), user=ROOT)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Puts a local directory's content beneath that one, root's."""
        if not Path(source_dir).is_dir():
            raise FileNotFoundError(f"Source directory {source_dir} does not exist")
        async with self._judged(f"uploading {target_dir}"):
            done = await self._sandbox.files.upload(source_dir, str(target_dir), user=ROOT)
        self._tell(done.notes, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Puts a file of the sandbox into a local one."""
        async with self._judged(f"downloading {source_path}"):
            await self._sandbox.files.download(str(source_path), target_path, user=ROOT)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Puts a directory's content beneath a local one."""
        async with self._judged(f"downloading {source_dir}"):
            done = await self._sandbox.files.download(str(source_dir), target_dir, user=ROOT)
        self._tell(done.notes, source_dir)

    def _tell(self, notes: tuple[str, ...], where: str) -> None:
        for note in notes[:20]:
            self.logger.debug("%s: %s", where, note)

    async def is_dir(self, path: str, user: str | int | None = None) -> bool:
        """Says whether it is a directory, or leads to one."""
        return await self._type(path, user) is FileType.DIRECTORY

    async def is_file(self, path: str, user: str | int | None = None) -> bool:
        """Says whether it is a regular file, or leads to one."""
        return await self._type(path, user) is FileType.FILE

    async def _type(self, path: str, user: str | int | None) -> FileType | None:
        who = self._resolve_user(user)
        async with self._judged(f"looking at {path}"):
            try:
                info = await self._sandbox.files.stat(
                    str(path), follow=True, user=None if who is None else str(who)
                )
            except (FileRefused, NotFound) as error:
                if is_of_platform(error):
                    raise
                return None
        return info.type

    # --- commands

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a shell line; a timeout or what cannot start is a result (124, 126, 127)."""
        who = self._resolve_user(user)
        sandbox, on_output = self._sandbox, self._output_callback()
        asked: dict[str, Any] = {
            "env": self._merge_env(env),
            "cwd": cwd,
            "user": None if who is None else str(who),
            "timeout": timeout_sec or None,  # 0 is none, as elsewhere in Harbor
            "output_limit": OUTPUT_LIMIT,
        }
        async with self._judged(shlex.join(command.split()[:8])):
            if on_output is None:
                return result_of(await sandbox.run(command, **asked), timeout_sec)
            return result_of(
                await chunked(sandbox.stream(command, **asked), on_output), timeout_sec
            )


def _check_mount(mount: Any) -> None:
    if mount["type"] != "bind" or not mount.get("read_only"):
        raise InvalidRequest(
            f"mount {mount['target']}: only read-only bind mounts are taken, as copies: the node may be "
            "another machine. What comes out of a sandbox are its logs and artifacts"
        )
    if not os.path.exists(mount["source"]):
        raise InvalidRequest(f"mount {mount['target']}: there is no {mount['source']}")
    if not mount["target"].startswith("/"):
        raise InvalidRequest(f"mount {mount['target']}: its place must be absolute")
