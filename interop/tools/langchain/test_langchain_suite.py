"""The published suite for sandboxes of Deep Agents, as a provider's package runs it."""

from __future__ import annotations

import os

import pytest
from deepagents.backends import LocalShellBackend
from langchain_tests.integration_tests import SandboxIntegrationTests

from skerry.compat.langchain import SkerryBackend


class TestSkerry(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, tmp_path_factory):
        if os.environ.get("INTEROP_BACKEND") == "local":
            place = tmp_path_factory.mktemp("local")
            yield LocalShellBackend(root_dir=place, virtual_mode=False, inherit_env=True)
            return
        with SkerryBackend.create(image=os.environ["INTEROP_IMAGE"]) as backend:
            yield backend
