"""Who holds which device: nobody has a device whole that another has a part of, whatever comes."""

from __future__ import annotations

import random

import pytest

from skerry.backends.devices.ledger import Held, Ledger
from skerry.errors import Bug
from skerry.spec.device import SHARES, Device, DeviceClaim, DeviceMode, DeviceNode


def device(name: str, asked_as: str = "gpu") -> Device:
    return Device(id=name, name=asked_as, provider="test", nodes=(DeviceNode(name, 195, 0),))


def shared(share: float) -> DeviceClaim:
    return DeviceClaim(mode=DeviceMode.SHARED, share=share)


WHOLE = DeviceClaim()


def test_exclusive_claim_holds_a_device_alone() -> None:
    ledger = Ledger([device("a")])
    held = ledger.take(ledger.devices["a"], WHOLE, "x", 1.0)
    assert ledger.find(WHOLE) is None
    assert ledger.find(shared(0.001)) is None
    with pytest.raises(Bug):
        ledger.take(ledger.devices["a"], shared(0.001), "y", 1.0)
    assert ledger.free(held, 3.5)
    assert not ledger.free(held, 9.0)
    assert ledger.find(WHOLE) == ledger.devices["a"]
    assert ledger.seconds == {"a": 2.5}


def test_shares_add_up_to_the_whole_and_no_further() -> None:
    ledger = Ledger([device("a")])
    for _ in range(2):
        ledger.take(ledger.devices["a"], shared(1 / 3), "x", 0.0)
    assert ledger.shares_of("a") == 2 * 334  # a third counts as 334: the last one does not fit
    assert ledger.find(shared(1 / 3)) is None
    assert ledger.find(shared(0.332)) is not None
    assert ledger.find(shared(0.333)) is None
    assert ledger.find(WHOLE) is None


def test_shared_claims_go_together_and_leave_devices_whole() -> None:
    ledger = Ledger([device("a"), device("b"), device("c")])
    for _ in range(4):
        found = ledger.find(shared(0.25))
        assert found is not None
        assert found.id == "a"
        ledger.take(found, shared(0.25), "x", 0.0)
    assert ledger.find(WHOLE) == ledger.devices["b"]


def test_among_equals_the_preferred_device_is_taken() -> None:
    ledger = Ledger([device("a"), device("b")])
    assert ledger.find(WHOLE, lambda one: one.id == "b") == ledger.devices["b"]
    ledger.take(ledger.devices["b"], WHOLE, "x", 0.0)
    assert ledger.find(WHOLE, lambda one: one.id == "b") == ledger.devices["a"]


def test_claim_gets_a_device_of_its_name_only() -> None:
    ledger = Ledger([device("a"), device("b", "tpu")])
    ledger.take(ledger.devices["a"], WHOLE, "x", 0.0)
    assert ledger.find(WHOLE) is None
    assert ledger.find(DeviceClaim(name="tpu")) == ledger.devices["b"]
    with pytest.raises(Bug):
        ledger.take(ledger.devices["b"], WHOLE, "x", 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_invariants_hold_over_random_claims_and_ends(seed: int) -> None:
    """Beside a count of its own: what is held of each device, and for how long."""
    chance = random.Random(seed)
    ledger = Ledger([device(f"d{n}", chance.choice(("gpu", "mig"))) for n in range(5)])
    held: list[Held] = []
    spent = dict.fromkeys(ledger.devices, 0.0)
    now = 0.0
    refused = 0
    for _ in range(2000):
        now += chance.random()
        if held and chance.random() < 0.45:
            one = held.pop(chance.randrange(len(held)))
            assert ledger.free(one, now)
            spent[one.device.id] += now - one.since
        else:
            claim = DeviceClaim(name=chance.choice(("gpu", "mig")))
            if chance.random() < 0.7:
                share = chance.choice((0.001, 0.1, 0.25, 1 / 3, 0.5, 0.999, 1.0))
                claim = DeviceClaim(name=claim.name, mode=DeviceMode.SHARED, share=share)
            found = ledger.find(claim)
            if found is None:
                used = [ledger.shares_of(one.id) for one in ledger.named(claim.name)]
                assert all(shares + claim.shares > SHARES for shares in used)
                refused += 1
            else:
                held.append(ledger.take(found, claim, "x", now))
        ledger.check_invariants()
        for name in ledger.devices:
            mine = [one for one in held if one.device.id == name]
            assert ledger.shares_of(name) == sum(one.claim.shares for one in mine) <= SHARES
            alone = [one for one in mine if one.claim.mode is DeviceMode.EXCLUSIVE]
            assert not alone or len(mine) == 1
    for one in held:
        ledger.free(one, now)
        spent[one.device.id] += now - one.since
    assert ledger.held == []
    assert ledger.seconds == pytest.approx(spent)
    assert refused
