"""The policy of idle reclaim, in a simulated world of sandboxes."""

from __future__ import annotations

import random

import pytest

from skerry.density.idle import (
    CALM_S,
    EXHAUSTED_S,
    MIB,
    REFAULT_PAGES,
    ROUND_BYTES_MAX,
    STEP_MIN_BYTES,
    Host,
    Idle,
    IdleMarks,
    Seen,
    Step,
)
from skerry.errors import InvalidRequest

MARKS = IdleMarks(idle_s=60, still_s=10, backoff_s=60, backoff_max_s=480)
SWAP = 1 << 30


class Box:
    """One simulated sandbox: what it gave comes back when it is touched."""

    def __init__(self, name: str, active: float, memory: int = 64 * MIB) -> None:
        self.name, self.active, self.memory = name, active, memory
        self.swapped = 0
        self.cpu = 1.0
        self.faults = 0
        self.stuck = MIB // 2  # what cannot be given

    def seen(self) -> Seen:
        return Seen(self.name, self.active, self.memory - self.swapped, self.cpu, self.faults)

    def touch(self, now: float) -> None:
        self.active = now
        self.cpu += 0.1
        self.faults += self.swapped // 4096
        self.swapped = 0


class World:
    def __init__(self, *boxes: Box) -> None:
        self.boxes = {box.name: box for box in boxes}
        self.idle = Idle(MARKS)
        self.now = 1000.0
        self.hidden: set[str] = set()  # in use, and not looked at

    def look(self) -> list[str]:
        """One round; returns who gave, in order."""
        seen = [box.seen() for box in self.boxes.values() if box.name not in self.hidden]
        steps = self.idle.look(self.now, seen, self.boxes)
        for step in steps:
            box = self.boxes[step.id]
            given = min(step.bytes, max(0, box.memory - box.swapped - box.stuck))
            box.swapped += given
            self.idle.gave(self.now, step, given, box.faults)
        return [step.id for step in steps]

    def later(self, seconds: float) -> None:
        self.now += seconds


def test_only_short_memory_with_swap_to_take_it_presses():
    idle = Idle(IdleMarks(available_below=0.2, memory_some_above=5))
    assert idle.pressed(Host(0.19, 0, SWAP))
    assert not idle.pressed(Host(0.19, 0, 0))
    assert not idle.pressed(Host(0.21, 0, SWAP))
    assert idle.pressed(Host(0.21, 5.1, SWAP))
    assert not idle.pressed(Host(0.41, 99, SWAP))  # a sandbox in its own limit stalls too
    assert not Idle(IdleMarks(when="off")).pressed(Host(0.01, 99, SWAP))


def test_longest_idle_gives_first_and_step_by_step():
    world = World(Box("young", 900.0), Box("old", 500.0), Box("fresh", 999.0))
    assert world.look() == []  # nobody's CPU is known to stand still yet
    world.later(10)
    assert world.look() == ["old", "young"]
    assert world.boxes["old"].swapped == 32 * MIB
    world.later(5)
    assert world.look() == ["old", "young"]
    assert world.boxes["old"].swapped == 48 * MIB


def test_one_that_computes_is_never_taken_from_however_long_nobody_asked():
    world = World(Box("busy", 0.0))
    for _ in range(50):
        world.boxes["busy"].cpu += 0.001
        assert world.look() == []
        world.later(9)
    assert world.boxes["busy"].swapped == 0


def test_one_that_reads_back_is_left_alone_and_longer_each_time():
    world = World(Box("a", 0.0))
    world.look()
    quiet = []
    for _ in range(5):
        while world.look() != ["a"]:
            world.later(1)
        world.later(1)
        world.boxes["a"].touch(world.now)
        world.look()
        begin = world.now
        world.boxes["a"].active = 0.0  # as if nobody had asked: only its own refaults protect it
        while world.look() != ["a"]:
            world.later(1)
        quiet.append(world.now - begin)
        world.boxes["a"].touch(world.now)
        world.look()
        world.boxes["a"].active = 0.0
    assert quiet == sorted(quiet)
    assert quiet[0] >= MARKS.backoff_s
    assert quiet[-1] == pytest.approx(MARKS.backoff_max_s, abs=2)
    assert world.idle.refaults >= 5


def test_one_that_was_in_use_meanwhile_is_remembered():
    world = World(Box("a", 0.0))
    world.look()
    world.later(10)
    assert world.look() == ["a"]
    world.boxes["a"].touch(world.now)
    world.hidden = {"a"}
    world.later(5)
    world.look()
    world.hidden = set()
    world.boxes["a"].active = 0.0
    world.later(30)
    assert world.look() == []  # its refault is known, though nobody looked when it happened


def test_calm_makes_the_next_refault_the_first_again():
    world = World(Box("a", 0.0))
    world.look()
    for _ in range(2):
        while world.look() != ["a"]:
            world.later(1)
        world.boxes["a"].touch(world.now)
        world.look()
        world.boxes["a"].active = 0.0
    while world.look() != ["a"]:
        world.later(1)
    world.later(CALM_S + 1)
    world.boxes["a"].touch(world.now)
    world.look()
    begin = world.now
    world.boxes["a"].active = 0.0
    while world.look() != ["a"]:
        world.later(1)
    assert world.now - begin <= MARKS.backoff_s + 1


def test_few_faults_are_no_refault():
    world = World(Box("a", 0.0))
    world.look()
    world.later(10)
    assert world.look() == ["a"]
    world.boxes["a"].faults += REFAULT_PAGES
    world.later(1)
    assert world.look() == ["a"]


def test_one_with_nothing_left_is_not_asked_for_a_while():
    world = World(Box("a", 0.0))
    world.boxes["a"].stuck = 64 * MIB
    world.look()
    world.later(10)
    assert world.look() == ["a"]
    world.later(1)
    assert world.look() == []
    world.later(EXHAUSTED_S)
    assert world.look() == ["a"]


def test_small_ones_are_not_worth_it():
    world = World(Box("a", 0.0, memory=MIB - 1))
    world.look()
    world.later(10)
    assert world.look() == []


def test_a_round_is_bounded():
    world = World(*(Box(str(n), float(n), memory=1024 * MIB) for n in range(100)))
    world.look()
    world.later(10)
    before = sum(box.swapped for box in world.boxes.values())
    world.look()
    assert sum(box.swapped for box in world.boxes.values()) - before <= ROUND_BYTES_MAX


def test_sandboxes_that_went_are_forgotten():
    world = World(Box("a", 0.0))
    world.look()
    del world.boxes["a"]
    world.look()
    world.idle.gave(world.now, Step("a", STEP_MIN_BYTES), 0, 0)
    world.boxes["a"] = Box("a", 0.0)  # another one of that name has to stand still anew
    world.later(10)
    assert world.look() == []


def test_random_worlds_keep_the_promises():
    chance = random.Random(7)
    for _ in range(20):
        world = World(*(Box(str(n), 0.0, chance.randrange(MIB, 200 * MIB)) for n in range(30)))
        for _ in range(200):
            busy = {name for name in world.boxes if chance.random() < 0.05}
            for name in busy:
                world.boxes[name].touch(world.now)
            gave = world.look()
            assert not busy & set(gave)
            assert len(gave) == len(set(gave))
            world.later(chance.uniform(1, 20))


@pytest.mark.parametrize(
    "change",
    [{"when": "maybe"}, {"available_below": 2}, {"look_s": 0}, {"memory_some_above": -1}],
)
def test_marks_out_of_bounds_are_refused(change):
    with pytest.raises(InvalidRequest, match="idle_reclaim"):
        IdleMarks(**change).check()
