"""The word `build`: what builds of images may reach, as the operator says."""

from __future__ import annotations

import pytest

from skerry.errors import InvalidRequest, Unavailable
from skerry.network.services import NetworkConfig, Service, Services


def discover(word: str) -> Service:
    if word == "npm":
        raise Unavailable("npm is not installed")
    return Service(hosts=(f"{word}.example",), env={word: "1"})


async def test_build_stands_for_what_this_machine_installs_from() -> None:
    services = Services(NetworkConfig(), discover)
    await services.learn(("build", "more.example"))
    policy = services.policy(("build", "more.example"))
    for host in ("pypi.example", "debian.example", "more.example"):
        assert policy.allows(host, 443)
    assert policy.allows("npm.example", 443) is None
    assert [service.env for service in services.chosen(("build",))] == [
        {"pypi": "1"},
        {"debian": "1"},
    ]


async def test_a_word_that_is_asked_for_by_name_is_not_left_out() -> None:
    services = Services(NetworkConfig(), discover)
    with pytest.raises(Unavailable, match="npm"):
        await services.learn(("build", "npm"))


async def test_operator_chooses_what_builds_reach() -> None:
    config = NetworkConfig(
        services={"own": Service(hosts=("own.example",))}, build=("own", "a.example")
    )
    services = Services(config.check(), discover)
    await services.learn(("build",))
    policy = services.policy(("build",))
    assert policy.allows("own.example", 443)
    assert policy.allows("a.example", 443)
    assert policy.allows("pypi.example", 443) is None


@pytest.mark.parametrize(
    "config",
    [
        NetworkConfig(build=("build",)),
        NetworkConfig(services={"build": Service(hosts=("a.example",))}),
    ],
)
def test_build_cannot_stand_for_itself_or_be_a_service(config: NetworkConfig) -> None:
    with pytest.raises(InvalidRequest, match=r"network\.build"):
        config.check()
