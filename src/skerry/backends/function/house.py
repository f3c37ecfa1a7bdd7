"""All pools of a node: who may begin a container when there is no room for one more."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from skerry.backends.function.member import Member, Stage
from skerry.backends.function.pool import Pool

K = TypeVar("K", bound=Hashable)

TURN_S: Final = 5.0  # a container serves at least so long before another environment has its room


class Moves(NamedTuple, Generic[K]):
    """What is to be done now: begin so many in each pool, and end these."""

    begin: dict[K, int]
    retire: list[tuple[K, Member, str]]


def plan(pools: Mapping[K, Pool], now: float, *, containers_max: int) -> Moves[K]:
    """Returns what to begin and what to end, that all pools have what they need of the room there is.

    Pools with nothing come first, then those that are furthest below their target. Where calls wait
    and there is no room for their first container, another one ends: one that idles, the one that was
    used longest ago first; else, once it has served TURN_S, the oldest of the largest pool. The next
    plan has its room.
    """
    retire = [
        (key, member, "it was idle") for key, pool in pools.items() for member in pool.surplus(now)
    ]
    room = containers_max - sum(len(pool.members) for pool in pools.values())
    short = {key: missing for key, pool in pools.items() if (missing := pool.missing(now))}
    begin: dict[K, int] = {}
    for key in _in_turn(pools, short)[: max(0, room)]:
        begin[key] = begin.get(key, 0) + 1
    starving = [
        key
        for key in short
        if key not in begin and not pools[key].living and pools[key].demand.count
    ]
    ending = {one.name for pool in pools.values() for one in pool.members.values() if _ends(one)}
    ending |= {member.name for _, member, _ in retire}
    for key in starving[len(ending) :]:
        found = _spare(pools, now, ending, but=key)
        if found is None:
            break
        retire.append((*found, "another environment needs its room"))
        ending.add(found[1].name)
    return Moves(begin, retire)


def _ends(member: Member) -> bool:
    return member.stage is Stage.RETIRING


def _in_turn(pools: Mapping[K, Pool], short: dict[K, int]) -> list[K]:
    """Returns who may begin one, in turn; a key comes as often as it is short of one.

    Among those that have as many, who began its last one longest ago is first: so what had to make
    room does not take it back at once.
    """
    turns: list[tuple[int, float, K]] = []
    for key, missing in short.items():
        pool = pools[key]
        turns += [(len(pool.living) + number, pool.began, key) for number in range(missing)]
    return [key for _, _, key in sorted(turns, key=lambda turn: turn[:2])]


def _spare(
    pools: Mapping[K, Pool], now: float, ending: set[str], *, but: K
) -> tuple[K, Member] | None:
    """Returns whose room another environment gets."""
    others = [(key, pool) for key, pool in pools.items() if key != but]
    idle = [
        (key, one)
        for key, pool in others
        if (one := pool.spared(now)) is not None and one.name not in ending
    ]
    if idle:
        return min(idle, key=lambda pair: pair[1].last_used)
    served = [
        (len(pool.living), one.made, key, one)
        for key, pool in others
        for one in pool.living
        if one.stage is Stage.READY and now - one.made >= TURN_S and one.name not in ending
    ]
    if not served:
        return None
    most = max(size for size, *_ in served)
    _, _, key, one = min((four for four in served if four[0] == most), key=lambda four: four[1])
    return key, one
