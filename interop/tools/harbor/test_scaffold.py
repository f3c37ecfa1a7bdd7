"""The task that `harbor init` writes: its verifier has a sandbox of its own."""

from __future__ import annotations


def test_oracle_earns_1_and_nop_0_on_the_scaffold(harbor, client) -> None:
    task = harbor.init("demo")
    for agent, reward in (("oracle", 1.0), ("nop", 0.0)):
        job = harbor.run(task, "-a", agent)
        assert job.exceptions == [None], job.log()
        assert job.rewards == [reward], job.log()
    built = [one.name for one in client.images.list() if one.name.startswith("workspace/harbor/")]
    assert {name.partition(":")[0] for name in built} >= {"workspace/harbor/demo"}


def test_an_unknown_option_is_refused_with_those_there_are(harbor, client) -> None:
    job = harbor.run(harbor.init("demo"), "-a", "nop", memroy="1GiB")
    assert job.status != 0
    assert "Unknown option 'memroy'" in job.said
    assert "memory" in job.said.partition("Options of Skerry")[2]
    assert job.trials == []
