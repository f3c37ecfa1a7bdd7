"""Turns go round by flow, whatever the flows do."""

from __future__ import annotations

import random

import pytest

from skerry.node.admission.fairness import FairQueue


def drain(queue: FairQueue[str], count: int = 1 << 30) -> list[str]:
    order = []
    while len(order) < count and (head := queue.head()) is not None:
        queue.serve(head)
        queue.check_invariants()
        order.append(head.item)
    return order


def test_flow_of_ten_thousand_does_not_starve_a_flow_of_one() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(10_000):
        queue.push("big", 0, f"big {number}")
    assert drain(queue, 5) == [f"big {number}" for number in range(5)]
    queue.push("small", 0, "small")
    assert "small" in drain(queue, 2)
    assert len(queue) == 10_000 - 6


def test_flows_take_turns_and_keep_their_own_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for flow in "abc":
        for number in range(3):
            queue.push(flow, 0, f"{flow}{number}")
    assert drain(queue) == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_priority_orders_within_a_flow_and_never_between_flows() -> None:
    queue: FairQueue[str] = FairQueue()
    for item, priority in (("a low", -1), ("a first", 0), ("a second", 0), ("a high", 5)):
        queue.push("a", priority, item)
    queue.push("b", -10, "b")
    assert drain(queue) == ["a high", "b", "a first", "a second", "a low"]


def test_weight_gives_that_many_turns() -> None:
    queue: FairQueue[str] = FairQueue(lambda flow: 3.0 if flow == "heavy" else 1.0)
    for flow in ("heavy", "light"):
        for _ in range(100):
            queue.push(flow, 0, flow)
    assert drain(queue, 80).count("heavy") == pytest.approx(60, abs=2)


def test_flow_that_leaves_and_returns_gains_no_turn() -> None:
    queue: FairQueue[str] = FairQueue()
    for flow in "abcdefghi":
        for _ in range(100):
            queue.push(flow, 0, flow)
    served = []
    for _ in range(300):
        if not queue.waiting("sly"):
            queue.push("sly", 0, "sly")
        served += drain(queue, 1)
    assert served.count("sly") <= 32


def test_who_leaves_the_queue_is_not_served() -> None:
    queue: FairQueue[str] = FairQueue()
    tickets = [queue.push("a", 0, f"a{number}") for number in range(4)]
    assert queue.remove(tickets[0])
    assert queue.remove(tickets[2])
    assert not queue.remove(tickets[2])
    assert drain(queue) == ["a1", "a3"]
    assert queue.head() is None


def test_flows_that_come_and_go_leave_a_bounded_trace() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(5000):
        assert queue.remove(queue.push(f"flow {number}", 0, ""))
        queue.check_invariants()
    assert len(queue._turns) < 100
    for number in range(5000):
        queue.push(f"flow {number}", 0, "")
        drain(queue)
    assert len(queue._clocks) < 100


def test_random_use_keeps_the_invariants_and_loses_nobody() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        queue: FairQueue[int] = FairQueue(lambda flow: 1.0 + int(flow))
        inside, served = {}, set()
        for number in range(600):
            match rng.randrange(3):
                case 0 | 1 if rng.random() < 0.7:
                    inside[number] = queue.push(str(rng.randrange(6)), rng.randrange(3), number)
                case 1 if inside:
                    assert queue.remove(inside.pop(rng.choice(list(inside))))
                case _:
                    head = queue.head()
                    assert (head is None) == (not inside)
                    if head is not None:
                        queue.serve(head)
                        served.add(head.item)
                        del inside[head.item]
            queue.check_invariants()
        assert len(queue) == len(inside)
        assert set(drain(queue)) == set(inside)


def test_rank_moves_turns_within_a_group_and_takes_none_from_others() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(30):
        queue.push("low", 0, "low", group="g")
        queue.push("other", 0, "other", group="h", rank=-9)
        if number < 10:
            queue.push("high", 0, "high", group="g", rank=1)
    first = drain(queue, 15)
    assert first.count("high") == 10
    assert first.count("other") == 5
    assert drain(queue, 20).count("other") == pytest.approx(10, abs=1)
    rest = drain(queue)
    assert (rest.count("low"), rest.count("other")) == (20, 15) or len(rest) == 35


def test_flows_of_one_rank_share_what_lower_ones_give_them() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(60):
        queue.push("low", 0, "low", group="g")
        for flow in "ab":
            queue.push(flow, 0, flow, group="g", rank=2)
    order = drain(queue, 60)
    assert "low" not in order
    assert order.count("a") == pytest.approx(30, abs=1)


def test_parked_flow_keeps_its_place_and_holds_up_nobody() -> None:
    queue: FairQueue[str] = FairQueue()
    tickets = [queue.push("a", 0, f"a{number}") for number in range(3)]
    queue.push("b", 0, "b")
    queue.park("a")
    queue.check_invariants()
    assert drain(queue) == ["b"]
    assert queue.remove(tickets[1])
    queue.push("a", 0, "a3")
    assert queue.head() is None
    queue.unpark("a")
    assert drain(queue) == ["a0", "a2", "a3"]


def test_who_comes_back_with_its_number_has_its_place_again() -> None:
    queue: FairQueue[str] = FairQueue()
    tickets = [queue.push("a", 0, f"a{number}") for number in range(5)]
    for index in (1, 3):
        queue.remove(tickets[index])
    for index in (3, 1):
        queue.push("a", 0, f"again {index}", number=tickets[index].number)
    queue.check_invariants()
    assert drain(queue) == ["a0", "again 1", "a2", "again 3", "a4"]


def test_random_parking_loses_nobody() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        queue: FairQueue[int] = FairQueue()
        parked: set[str] = set()
        inside = {}
        for number in range(500):
            flow = str(rng.randrange(6))
            match rng.randrange(5):
                case 0 | 1:
                    group, rank = str(int(flow) % 2), int(flow) % 3
                    inside[number] = queue.push(flow, 0, number, group=group, rank=rank)
                case 2:
                    queue.park(flow)
                    parked.add(flow)
                case 3:
                    queue.unpark(flow)
                    parked.discard(flow)
                case _:
                    head = queue.head()
                    if head is not None:
                        queue.serve(head)
                        del inside[head.item]
            queue.check_invariants()
        for flow in "012345":
            queue.unpark(flow)
        assert set(drain(queue)) == set(inside)
