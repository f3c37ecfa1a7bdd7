"""What a job of this worker looks like from outside: status, signal, pages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from skerry.spec.worker import (
    JobStatus,
    LogPage,
    ResultPage,
    RolloutState,
    RolloutStatus,
    Signal,
    rollout_id,
)
from skerry.worker.service.runner import Runner
from skerry.worker.session import Policy

PAGE_BYTES_MAX = 8 << 20


def state_of(runner: Runner, number: int) -> RolloutState:
    """Returns where a rollout is."""
    if number in runner.book.ends:
        return RolloutState.ENDED
    state = runner.states.get(number)
    if state is None:
        return RolloutState.WAITING
    line = runner.lines.get(number)
    if state is RolloutState.ACTING and line is not None and line.memory.open:
        return RolloutState.ASKING
    return state


def counts_of(runner: Runner) -> Counter[RolloutState]:
    """Returns how many rollouts are where."""
    ended, begun = len(runner.book.ends), list(runner.states)
    counts = Counter(state_of(runner, number) for number in begun)
    counts[RolloutState.ENDED] = ended
    counts[RolloutState.WAITING] = len(runner.submit.numbers()) - ended - len(begun)
    return counts


def status(runner: Runner, first: int, limit: int) -> JobStatus:
    """Returns the state of a job, with up to `limit` of its rollouts from a number on."""
    submit = runner.submit
    numbers = list(submit.numbers()[_place(runner, first) :][: limit + 1])
    counts = counts_of(runner)
    return JobStatus(
        job=submit.job,
        total=submit.total,
        share=submit.share,
        rollouts=len(submit.numbers()),
        counts={str(state): count for state, count in counts.items() if count > 0},
        created=runner.book.sheet.created,
        built=runner.built,
        building=runner.building,
        ended=runner.ended,
        failure=runner.failure,
        trouble=runner.trouble,
        page=tuple(_rollout(runner, number) for number in numbers[:limit]),
        next=numbers[limit] if limit and len(numbers) > limit else None,
    )


def _place(runner: Runner, first: int) -> int:
    """Returns the place of the first rollout with this number or a higher one."""
    index, count = runner.submit.share
    return max(0, -(-(first - index) // count))


def _rollout(runner: Runner, number: int) -> RolloutStatus:
    policy = runner.policy_of(number)
    memory, line = runner.book.open.get(number), runner.lines.get(number)
    found = RolloutStatus(
        number=number,
        rollout=rollout_id(runner.submit.job, number),
        task=runner.submit.tasks[runner.task_of(number)].id,
        policy=policy.name,
        state=state_of(runner, number),
        record=runner.book.record(number) if number in runner.book.ends else None,
    )
    if memory is None:
        return found
    return RolloutStatus(
        number=number,
        rollout=found.rollout,
        task=found.task,
        policy=found.policy,
        state=found.state,
        attempt=max(0, memory.attempt),
        sandbox=memory.sandbox,
        paused=line is not None and line.paused,
        asked=memory.asked,
        answered=len(memory.given),
        active_s=round(line.active_s if line is not None else memory.active_s, 3),
    )


def signal(runner: Runner, now: float) -> Signal:
    """Returns what a scheduler wants to know."""
    counts = counts_of(runner)
    busy = [
        line
        for number, line in runner.lines.items()
        if state_of(runner, number) is RolloutState.ACTING
    ]
    oldest = runner.requests.oldest()
    asks = any(policy.needs.port for policy in _all_policies(runner))
    moment = time.monotonic()
    return Signal(
        version=runner.pulse.version,
        waiting=runner.requests.free,
        leased=runner.requests.held,
        oldest_s=round(max(0.0, now - oldest), 3) if oldest is not None else 0.0,
        sandboxes_busy=counts[RolloutState.ACTING],
        verifying=counts[RolloutState.VERIFYING],
        rollouts_waiting=counts[RolloutState.WAITING],
        rollouts_running=len(runner.states),
        rollouts_ended=counts[RolloutState.ENDED],
        next_request_s=runner.pace.next_request(
            waiting=runner.requests.free + runner.requests.held,
            busy_for=[moment - line.answered_at for line in busy],
            starting=asks and counts[RolloutState.STARTING] > 0,
            to_come=asks and counts[RolloutState.WAITING] > 0,
        ),
    )


def _all_policies(runner: Runner) -> Iterator[Policy]:
    for number in range(0, len(runner.submit.actors) * runner.submit.n, runner.submit.n):
        yield runner.policy_of(number)


def log_page(runner: Runner, first: int, limit: int) -> LogPage:
    """Returns lines of the job's record."""
    lines = runner.log.read(first, limit, PAGE_BYTES_MAX)
    last = first + len(lines)
    return LogPage(lines, last, runner.over and last >= runner.log.lines)


def results(runner: Runner, first: int, limit: int) -> ResultPage:
    """Returns rollouts that have ended, from the `first`-th on."""
    numbers = list(runner.book.ends)[first : first + limit]
    records = tuple(runner.book.record(number) for number in numbers)
    last = first + len(records)
    return ResultPage(records, last, runner.over and last >= len(runner.book.ends))
