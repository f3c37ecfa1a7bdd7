"""Plans for both cgroup layouts. v2 with controllers is planned, and played on a directory tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec import structs

from skerry.backends.shared.cgroup import (
    Counters,
    Layout,
    Limits,
    OomKind,
    burst_us,
    detect,
    groups_of,
    quota_us,
)

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime shared:5 - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
SMALL = Limits(memory_bytes=64 << 20, pids=32, cpu=0.5)
LARGE = Limits(memory_bytes=128 << 20, pids=32, cpu=2)


def nothing(_path: str) -> str:
    return ""


def v1(*, memsw: bool = True) -> Layout:
    return detect(HYBRID, lambda _path: memsw, nothing)


def v2(mount: str = "/sys/fs/cgroup") -> Layout:
    text = UNIFIED.replace("/sys/fs/cgroup", mount)
    return detect(text, lambda _path: True, lambda _path: "cpuset cpu io memory pids\n")


def play(steps: tuple[str, ...]) -> None:
    """What the launcher does with STEP texts, on a plain directory tree."""
    for step in steps:
        verb, path, *rest = step.split(" ")
        if verb == "mkdir":
            Path(path).mkdir(int(rest[0], 8))
        elif verb == "rmdir":
            if not Path(path).exists():
                continue
            for name in os.listdir(path):
                if (Path(path) / name).is_file():
                    (Path(path) / name).unlink()
            Path(path).rmdir()
        else:
            Path(path).write_text(" ".join(rest))


def test_hybrid_host_is_v1():
    layout = v1()
    assert layout.kind == "v1"
    assert layout.unified == "/sys/fs/cgroup/unified"
    assert layout.controllers["pids"] == "/sys/fs/cgroup/pids"
    assert layout.memsw


def test_unified_host_with_controllers_is_v2():
    assert v2().kind == "v2"


@pytest.mark.parametrize(
    ("text", "word"), [("", "cgroup2"), (UNIFIED, "memory"), (HYBRID.replace("pids", "x"), "pids")]
)
def test_host_without_controllers_says_what_is_missing(text, word):
    layout = detect(text, lambda _path: True, nothing)
    assert layout.kind == "none"
    assert word in layout.reason


def test_bind_mounts_of_a_subgroup_are_no_hierarchy():
    text = HYBRID.replace("0:32 / ", "0:32 /docker/x ")
    assert detect(text, lambda _path: True, nothing).kind == "none"


def test_v1_slot_is_entered_through_tasks_and_owned_where_the_agent_acts():
    slot = groups_of(v1(), "abcde").slot(7, 3_000_000_007)
    assert slot.agent == "/sys/fs/cgroup/unified/skerry-abcde/slot-7/agent"
    assert slot.tasks == tuple(
        f"/sys/fs/cgroup/{name}/skerry-abcde/slot-7/tasks" for name in ("memory", "pids", "cpu")
    )
    assert "mkdir /sys/fs/cgroup/unified/skerry-abcde/slot-7/agent 0755 -1" in slot.make
    assert "mkdir /sys/fs/cgroup/unified/skerry-abcde/slot-7/w 0755 3000000007" in slot.make
    assert slot.oom_kind is OomKind.V1
    assert slot.drop[0] == "rmdir /sys/fs/cgroup/unified/skerry-abcde/slot-7/w"


def test_v1_controllers_mounted_together_share_one_group():
    both = HYBRID.replace("/cpu rw,relatime - cgroup cgroup rw,cpu", "/m rw - cgroup c rw,cpu")
    both = both.replace("/sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory", "/x/m r -")
    layout = Layout("v1", "/u", {"memory": "/m", "pids": "/m", "cpu": "/c"})
    slot = groups_of(layout, "n").slot(1, 5)
    assert slot.tasks == ("/m/skerry-n/slot-1/tasks", "/c/skerry-n/slot-1/tasks")


def test_unchanged_limits_are_not_written():
    groups = groups_of(v1(), "n")
    (only,) = groups.limit(1, SMALL, SMALL)
    assert only.endswith("memory.max_usage_in_bytes 0")
    assert groups_of(v2(), "n").limit(1, SMALL, SMALL) == ()


def test_v1_memsw_is_raised_first_and_lowered_last():
    groups = groups_of(v1(), "n")
    up = [step.split()[1].rsplit("/", 1)[1] for step in groups.limit(1, SMALL, LARGE)]
    down = [step.split()[1].rsplit("/", 1)[1] for step in groups.limit(1, LARGE, SMALL)]
    assert up[:2] == ["memory.memsw.limit_in_bytes", "memory.limit_in_bytes"]
    assert down[:2] == ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    assert "pids.max" not in up


@pytest.mark.parametrize("before", [1 << 20, 1 << 40, -1])
def test_v1_memsw_is_never_the_lower_one_whatever_an_adopted_slot_had(before):
    """A restarted node does not know what the slot of an adopted instance is set to."""
    limits = {"memory.limit_in_bytes": before, "memory.memsw.limit_in_bytes": before}
    for step in groups_of(v1(), "n").limit(1, None, SMALL):
        _, path, value = step.split(" ")
        limits[path.rsplit("/", 1)[1]] = int(value)
        plain, swap = limits["memory.limit_in_bytes"], limits["memory.memsw.limit_in_bytes"]
        assert swap == -1 or (plain != -1 and swap >= plain), step
    assert limits["memory.limit_in_bytes"] == limits["memory.memsw.limit_in_bytes"] == 64 << 20


def test_v1_without_swap_accounting_writes_no_memsw():
    steps = groups_of(v1(memsw=False), "n").limit(1, None, SMALL)
    assert not any("memsw" in step for step in steps)


def test_quota_is_rounded_up_and_never_below_what_the_kernel_takes():
    assert quota_us(0.5) == 50_000
    assert quota_us(0.001) == 1_000


def test_v1_counters_are_parsed():
    contents = (b"4096\n", b"8192\n", b"3\n", b"oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert groups_of(v1(), "n").parse(
        (*contents, b"usage_usec 77\nuser_usec 1\n", b"cache 9\n")
    ) == Counters(4096, 9, 8192, 3, 2, 77)


def test_files_that_are_gone_count_as_nothing():
    for layout in (v1(), v2()):
        assert groups_of(layout, "n").parse((b"",) * 7) == Counters()
        assert (
            groups_of(layout, "n").parse((b"max\n", b"-1", b"\xff", b"oom_kill x", b"", b""))
            == Counters()
        )


def test_v2_plan_played_on_a_tree_leaves_limits_on_work_and_nothing_after_drop(tmp_path):
    groups = groups_of(v2(str(tmp_path)), "abcde")
    for root in groups.roots():
        Path(root).mkdir()
    for path, text in groups.prepare():
        Path(path).write_text(text)
    slot = groups.slot(3, -1)
    play(slot.make)
    play(groups.limit(3, None, LARGE))
    assert Path(slot.work, "memory.max").read_text() == str(128 << 20)
    assert Path(slot.work, "cpu.max").read_text() == "200000 100000"
    assert Path(slot.work, "pids.max").read_text() == "32"
    assert Path(slot.work).parent == Path(slot.agent).parent
    assert not os.listdir(slot.agent)
    play(slot.drop)
    assert os.listdir(groups.roots()[0]) == ["cgroup.subtree_control"]


def test_v1_plan_played_on_a_tree_leaves_nothing_after_drop(tmp_path):
    mounts = {name: str(tmp_path / name) for name in ("memory", "pids", "cpu")}
    groups = groups_of(Layout("v1", str(tmp_path / "u"), mounts, True), "abcde")
    for root in groups.roots():
        Path(root).mkdir(parents=True)
    for best_effort in (False, True):
        slot = groups.slot(3, -1, best_effort=best_effort)
        play(slot.make)
        play(groups.limit(3, None, structs.replace(SMALL, best_effort=best_effort)))
        memory = tmp_path / "memory/skerry-abcde/slot-3"
        assert (memory / "memory.memsw.limit_in_bytes").read_text() == str(64 << 20)
        play(slot.drop)
        assert all(not os.listdir(root) for root in groups.roots())


def files(steps: tuple[str, ...]) -> dict[str, str]:
    """The files written, by their names, in order."""
    words = (step.split(" ", 2) for step in steps if step.startswith("write"))
    return {path.rsplit("/", 1)[1]: value for _, path, value in words}


def test_best_effort_slots_lie_below_a_root_that_is_idle():
    groups = groups_of(v1(), "n")
    idle = "/sys/fs/cgroup/cpu/skerry-n-idle"
    assert idle in groups.roots()
    assert groups.prepare() == ((f"{idle}/cpu.idle", "1"),)
    usual, yielding = groups.slot(2, 5), groups.slot(2, 5, best_effort=True)
    assert usual.tasks[-1] == "/sys/fs/cgroup/cpu/skerry-n/slot-2/tasks"
    assert yielding.tasks[-1] == f"{idle}/slot-2/tasks"
    assert usual.tasks[:2] == yielding.tasks[:2]
    assert set(usual.drop) == set(yielding.drop)  # who cleans up need not know the class
    limits = groups.limit(2, None, structs.replace(SMALL, best_effort=True))
    assert f"write {idle}/slot-2/cpu.cfs_quota_us 50000" in limits


def test_kernel_without_idle_groups_gives_them_the_least_shares():
    layout = detect(HYBRID, lambda path: not path.endswith("cpu.idle"), nothing)
    assert groups_of(layout, "n").prepare() == (
        ("/sys/fs/cgroup/cpu/skerry-n-idle/cpu.shares", "2"),
    )


def test_cpu_mounted_with_another_controller_makes_the_slot_itself_idle():
    layout = Layout("v1", "/u", {"memory": "/m", "pids": "/m", "cpu": "/m"})
    groups = groups_of(layout, "n")
    assert groups.roots() == ("/m/skerry-n", "/u/skerry-n")
    assert groups.prepare() == ()
    slot = groups.slot(1, 5, best_effort=True)
    assert slot.tasks == ("/m/skerry-n/slot-1/tasks",)
    assert "write /m/skerry-n/slot-1/cpu.idle 1" in slot.make
    # An idle group refuses any weight.
    limits = groups.limit(1, None, structs.replace(SMALL, best_effort=True))
    assert "cpu.shares" not in files(limits)


def test_v2_best_effort_work_is_idle_beside_its_agent():
    groups = groups_of(v2(), "n")
    made = groups.slot(1, 5, best_effort=True).make
    assert made[-2:] == (
        "write /sys/fs/cgroup/skerry-n/slot-1/cpu.weight 1",
        "write /sys/fs/cgroup/skerry-n/slot-1/w/cpu.idle 1",
    )
    assert not any("idle" in step for step in groups.slot(1, 5).make)
    assert "cpu.weight" not in files(
        groups.limit(1, None, structs.replace(SMALL, best_effort=True))
    )
    assert files(groups.limit(1, None, structs.replace(SMALL, weight=7)))["cpu.weight"] == "7"


@pytest.mark.parametrize("layout", [v1(), v2()], ids=["v1", "v2"])
def test_unknown_state_writes_weight_and_burst_too(layout):
    written = files(groups_of(layout, "n").limit(1, None, SMALL))
    weight, burst = ("cpu.shares", "cpu.cfs_burst_us")
    if layout.kind == "v2":
        weight, burst = ("cpu.weight", "cpu.max.burst")
    assert written[weight] == ("1024" if layout.kind == "v1" else "100")
    assert written[burst] == "0"


@pytest.mark.parametrize("layout", [v1(), v2()], ids=["v1", "v2"])
def test_burst_is_never_above_the_quota_between_two_writes(layout):
    groups = groups_of(layout, "n")
    names = ("cpu.cfs_quota_us", "cpu.cfs_burst_us")
    if layout.kind == "v2":
        names = ("cpu.max", "cpu.max.burst")
    cases = [
        structs.replace(SMALL, cpu=cpu, burst=burst)
        for cpu in (0.5, 1.0, 2.0)
        for burst in (0.0, 0.3, 0.5)
    ]
    for old in cases:
        for new in cases:
            now = {names[0]: quota_us(old.cpu), names[1]: burst_us(old)}
            for step in groups.limit(1, old, new):
                _, path, value = step.split(" ", 2)
                name = path.rsplit("/", 1)[1]
                if name in names:
                    now[name] = int(value.split()[0])
                assert now[names[1]] <= now[names[0]]
            assert now == {names[0]: quota_us(new.cpu), names[1]: burst_us(new)}


def test_v2_opens_swap_for_a_reclaim_and_closes_it():
    groups = groups_of(v2(), "n")
    work = "/sys/fs/cgroup/skerry-n/slot-1/w"
    assert groups.reclaim(1, 4096) == (
        f"write {work}/memory.swap.max max",
        f"write {work}/memory.reclaim 4096 swappiness=200",
    )
    assert groups.settle(1) == (f"write {work}/memory.swap.max 0",)
    assert groups_of(v1(), "n").reclaim(1, 4096) == groups_of(v1(), "n").settle(1) == ()


def test_what_is_in_swap_is_counted():
    stat = b"cache 9\nswap 8192\npgmajfault 5\n"
    found = groups_of(v1(), "n").parse((b"", b"", b"", b"", b"", stat))
    assert (found.swap_bytes, found.major_faults) == (8192, 5)
    stat = b"file 9\npgmajfault 6\n"
    found = groups_of(v2(), "n").parse((b"", b"", b"", b"", b"", stat, b"4096\n"))
    assert (found.swap_bytes, found.major_faults) == (4096, 6)
