"""A job and its sandboxes, as the tests of jobs make them."""

from __future__ import annotations

from skerry.node.node import Node
from skerry.spec.command import CommandSpec
from skerry.spec.job import JobSpec
from skerry.spec.sandbox import SandboxSpec

IN_JOB = SandboxSpec(job="train")


def make(node: Node, **spec):
    return node.keeping.make(JobSpec(**({"id": "train"} | spec)), owner="")


async def begin(node: Node, sandbox) -> object:
    return await node.operations.start(sandbox, None, CommandSpec(shell="sleep 1000"))
